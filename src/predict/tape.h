/*
 * The tape of a predicted training step: runs operators in torch's order on a CPU and reports them to ms_trace as the
 * profiler reports a real step. Computes only sizes.
 * Tests: tests/c/predict/test_predict.c.
 *
 *   config.c          reads the configuration
 *   predict.c         runs the family, builds the graph
 *   decoders.c        Llama, Mistral, Qwen2 and Qwen3 as calls of operators
 *   gpt2.c, bert.c    the other families
 *   models.h          shared by the five files above
 *   tape.c            values, storages and their reports
 *   tape_forward.c    operators: their allocations and autograd's saves
 *   tape_ranks.c      operators that exchange values with other ranks
 *   tape_backward.c   their derivatives, in autograd's order
 *
 * A value is a tensor that a Python variable holds; ms__drop() ends the variable. The tape keeps the first failure;
 * later calls do nothing, so callers check only at the end.
 */
#ifndef MS_PREDICT_TAPE_H
#define MS_PREDICT_TAPE_H

#include "base/array.h"
#include "memscale/trace.h"

enum { MS__RANK = 4, MS__SAVES = 6, MS__EDGES = 3, MS__NO_FUNCTION = -1 };

typedef struct ms__shape {
    uint32_t rank;
    uint64_t size[MS__RANK];
} ms__shape;

/* A value's number in the tape; 0: none. */
typedef uint32_t ms__value;

typedef enum ms__derivative {
    MS__D_PASS,      /* passes the gradient on unchanged: views, a sum's terms */
    MS__D_COPY,      /* passes on a copy, because the view needs another layout */
    MS__D_ADD,       /* passes it to both operands, summed to their shapes */
    MS__D_MUL,
    MS__D_SCALE,     /* of scaling by a number or of the sign: one operator */
    MS__D_POWER,
    MS__D_MEAN,
    MS__D_RSQRT,
    MS__D_REPEAT,    /* of heads that several queries share: sums their gradients */
    MS__D_HALF,      /* of a slice of the last dimension */
    MS__D_JOIN,      /* of joining the two halves */
    MS__D_UNARY,     /* one operator over the gradient and the saved tensor: tanh, silu, gelu, softmax */
    MS__D_LINEAR,
    MS__D_PRODUCT,   /* of batches of matrices */
    MS__D_NORM,      /* of layer norm */
    MS__D_ATTENTION, /* of the fused kernel */
    MS__D_PART,      /* of one of the three parts of a split value */
    MS__D_SPLIT,
    MS__D_EMBEDDING,
    MS__D_LOSS,
    MS__D_CONVERT,      /* to another type */
    MS__D_SPREAD, /* of a value that all ranks have, and each uses differently: the sum of the ranks' gradients */
    MS__D_GATHER, /* of joining the ranks' tokens: the sum of their gradients, divided by tokens */
    MS__D_SCATTER, /* of a sum that is divided by tokens: joins the gradients */
    MS__D_DIVIDED_LOSS, /* of the loss over divided logits, with that of the softmax */
    MS__D_NONE /* computes nothing: an earlier function did */
} ms__derivative;

/* Autograd's save of one storage for one node. */
typedef struct ms__save_of {
    uint32_t trace_node;
    uint64_t serial;
} ms__save_of;

/* A function of autograd's graph. An edge is the number of another function, or -2 - n for leaf n. */
typedef struct ms__function {
    uint32_t kind; /* ms__derivative */
    int32_t edges[MS__EDGES];
    ms__shape operands[MS__EDGES], shape; /* of its inputs and its output */
    uint64_t items[MS__EDGES]; /* bytes of an operand's element, or of an index */
    uint32_t save_count;
    ms__save_of saves[MS__SAVES];
    ms__value gradients[MS__EDGES]; /* of its outputs; most functions have one output */
    int part; /* PART: the part's number */
    const char *derivative; /* UNARY: the operator, a constant */
    uint64_t head; /* number of the loss whose first or last operator it is; 0: none */
    uint64_t product; /* number of the logits that it makes as a linear layer; 0: none */
} ms__function;

typedef struct ms__tensor {
    ms__shape shape;
    uint32_t item_bytes;
    uint32_t storage; /* 0: a number without storage */
    int32_t function; /* the function that made it; MS__NO_FUNCTION; -2 - n: leaf n */
    bool is_view; /* of a gradient: a view of another tensor's storage */
} ms__tensor;

typedef struct ms__held {
    uint64_t bytes;
    uint32_t holders;
    bool resident;
} ms__held;

/* A parameter. */
typedef struct ms__leaf {
    ms__shape shape;
    uint32_t storage;
    ms__value gradient;
    bool is_input; /* its gradient is sent away after backward */
} ms__leaf;

typedef struct ms__tape {
    ms_trace *trace;
    ms_error *err;
    int rc;
    bool differentiates; /* false under torch's no_grad */
    uint32_t real_bytes; /* of a number of parameters and activations: 4, or 2 in BF16 */
    uint64_t ranks; /* that divide each layer; 0 or 1: none do */
    uint64_t moved_bytes; /* passed around their ring; each rank sends its share of it */
    MS__ARRAY(ms__tensor) values;
    MS__ARRAY(ms__held) storages;
    MS__ARRAY(ms__leaf) leaves;
    MS__ARRAY(ms__function) functions;
} ms__tape;

#define MS__PUSH(array, item) \
    (MS__ARRAY_RESERVE(array, (array)->count + 1) == MS_OK ? ((array)->items[(array)->count++] = (item), MS_OK) \
                                                           : MS_ENOMEM)

void ms__tape_clear(ms__tape *tape);

/* ---- values (tape.c) ---------------------------------------------------------------- */

#define MS__SHAPE(...) ms__shape_of(sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (uint64_t[]){__VA_ARGS__})
ms__shape ms__shape_of(size_t rank, const uint64_t *sizes);
uint64_t ms__shape_items(const ms__shape *shape);

ms__value ms__parameter(ms__tape *tape, ms__shape shape);
/* A value that another rank sends: one of `buffers` of its shape, which stay. With `is_leaf`, backward makes its
 * gradient. */
ms__value ms__received(ms__tape *tape, ms__shape shape, uint64_t buffers, bool is_leaf);
ms__value ms__resident(ms__tape *tape, ms__shape shape, uint32_t item_bytes, ms_resident_role role);
/* A value with a new storage, made by no function. */
ms__value ms__fresh(ms__tape *tape, ms__shape shape, uint32_t item_bytes);
/* A value with the same storage and function, in another shape. */
ms__value ms__alias(ms__tape *tape, ms__value of, ms__shape shape);
void ms__drop(ms__tape *tape, ms__value value);
ms__shape ms__shape_at(const ms__tape *tape, ms__value value);
uint64_t ms__key_of(const ms__tape *tape, ms__value value);
/* Bytes of its elements. */
uint32_t ms__item_at(const ms__tape *tape, ms__value value);

/* Reports that an operator ran, with at most eleven operands; an operand may be 0. */
void ms__ran(ms__tape *tape, const char *name, size_t inputs, size_t outputs, const ms__value *operands);
#define MS__RAN(tape, name, inputs, outputs, ...) ms__ran(tape, name, inputs, outputs, (const ms__value[]){__VA_ARGS__})

/* Begins a function of autograd over its operands; MS__NO_FUNCTION if no operand needs a gradient. As in torch, its
 * saves come before or after its result is made. */
int32_t ms__open(ms__tape *tape, ms__derivative kind, size_t count, const ms__value *operands);
#define MS__OPEN(tape, kind, ...) \
    ms__open(tape, kind, sizeof((ms__value[]){__VA_ARGS__}) / sizeof(ms__value), (const ms__value[]){__VA_ARGS__})
void ms__save(ms__tape *tape, int32_t function, ms__value saved);
/* Ends it; `out` is its result. */
void ms__close(ms__tape *tape, int32_t function, ms__value out);
/* Reports that the last operator drew random numbers. */
void ms__random(ms__tape *tape);
void ms__fail_tape(ms__tape *tape, int rc);

/* ---- operators (tape_forward.c); each gives a new value ---------------------------------- */

typedef enum ms__activation { MS__GELU_NEW, MS__GELU, MS__GELU_TANH, MS__SILU, MS__RELU } ms__activation;

/* A result of up to two operands without a derivative, such as a mask or positions. */
ms__value ms__constant(ms__tape *tape, ms__shape shape, uint32_t item_bytes, ms__value a, ms__value b);
ms__value ms__embedding(ms__tape *tape, ms__value weight, ms__value index);
/* With elements of another size; `a` itself with a second holder if it has them. */
ms__value ms__convert(ms__tape *tape, ms__value a, uint32_t item_bytes);
ms__value ms__add(ms__tape *tape, ms__value a, ms__value b);
ms__value ms__mul(ms__tape *tape, ms__value a, ms__value b);
ms__value ms__scale(ms__tape *tape, ms__value a);
ms__value ms__shift(ms__tape *tape, ms__value a); /* by a number */
ms__value ms__power(ms__tape *tape, ms__value a); /* squared, cubed */
ms__value ms__rms_norm(ms__tape *tape, ms__value a, ms__value weight);
ms__value ms__layer_norm(ms__tape *tape, ms__value a, ms__value weight, ms__value bias);
ms__value ms__rotate_half(ms__tape *tape, ms__value a);
ms__value ms__activate(ms__tape *tape, ms__value a, ms__activation kind);
/* `bias` may be 0. */
ms__value ms__linear(ms__tape *tape, ms__value a, ms__value weight, ms__value bias, uint64_t out_width);
/* The same, marked as the layer that makes the logits of the next loss. */
ms__value ms__logits(ms__tape *tape, ms__value a, ms__value weight, ms__value bias, uint64_t vocabulary);
/* [b, s, width] as [b, s, h, d]; its gradient is transposed. */
ms__value ms__split_heads(ms__tape *tape, ms__value a, uint64_t heads);
/* [b, s, width] as heads [b, h, s, d]; `copied_back`: backward copies the gradient. */
ms__value ms__heads(ms__tape *tape, ms__value a, uint64_t heads, bool copied_back);
/* The same for keys that single operators multiply: their gradient is transposed and copied, even for one head, but
 * not for one sample or one token: their layout is already right. */
ms__value ms__turned_heads(ms__tape *tape, ms__value a, uint64_t heads);
/* A part is a third of the last dimension; the parts of one value share `split`. */
int32_t ms__split(ms__tape *tape, ms__value a);
ms__value ms__part(ms__tape *tape, ms__value a, int32_t split, int index);
/* Fused attention; returns [b, s, width]. `mask`: bytes of [s, s] that mark visible keys, or 0 for a kernel with a
 * built-in causal mask. With a mask, heads of keys and values are repeated for the queries. */
ms__value ms__attention(ms__tape *tape, ms__value q, ms__value k, ms__value v, ms__value mask);
/* Attention with dropout, for which torch runs single operators. */
ms__value ms__attention_with_dropout(ms__tape *tape, ms__value q, ms__value k, ms__value v, bool causal);
/* If not `drops`, `a` itself with a second holder. */
ms__value ms__dropout(ms__tape *tape, ms__value a, bool drops);
/* Labels moved by one, for a causal model: [b, s]. `*longer` holds them. */
ms__value ms__next_labels(ms__tape *tape, ms__value labels, ms__value *longer);
/* Mean cross entropy; rows are shifted by one for a causal model. */
ms__value ms__loss(ms__tape *tape, ms__value logits, ms__value labels, bool shifted);

/* ---- exchange with the ranks that divide each layer (tape_ranks.c) ------------------------------ */

/* If no ranks do, these give `a` itself with a second holder. */

/* `a`, of which every rank has all, as the input of a linear layer that is divided by columns. */
ms__value ms__spread(ms__tape *tape, ms__value a);
/* The sum of the ranks' results of a linear layer that is divided by rows: an all-reduce. */
ms__value ms__reduced(ms__tape *tape, ms__value a);
/* All tokens of `a` [b, s / ranks, ...]: an all-gather. */
ms__value ms__gathered(ms__tape *tape, ms__value a);
/* This rank's tokens of the sum: a reduce-scatter. */
ms__value ms__scattered(ms__tape *tape, ms__value a);
/* The embedding of which this rank has some of all `words`: zeros for the others, still to be summed. */
ms__value ms__divided_embedding(ms__tape *tape, ms__value weight, ms__value index, uint64_t words);
/* As ms__loss() for logits of which this rank has some words, as torch's loss_parallel() computes it. */
ms__value ms__divided_loss(ms__tape *tape, ms__value logits, ms__value labels);
/* The gradient of the first operand of a function of these kinds. */
ms__value ms__exchange_back(ms__tape *tape, const ms__function *function, ms__value gradient);

/* ---- backward (tape_backward.c) ------------------------------------------------------------- */

/* From the value `of`, whose gradient is `seed`. */
void ms__backward_from(ms__tape *tape, ms__value of, ms__value seed);
void ms__backward(ms__tape *tape, ms__value loss);

#endif
