/*
 * The tracer's state: recorded by trace.c and its neighbours, turned into a graph by trace_finish.c.
 * Private to src/trace. Tests: tests/c/trace/test_trace.c.
 */
#ifndef MS_TRACE_TRACE_INTERNAL_H
#define MS_TRACE_TRACE_INTERNAL_H

#include "base/array.h"
#include "base/keymap.h"
#include "memscale/trace.h"

/* Kind of a withdrawn event. */
#define TRACE_VOID_EVENT ((uint32_t)MS_EVENT_COUNT)
#define TRACE_NO_NODE UINT32_MAX
#define TRACE_NO_LIFE UINT32_MAX

/* One storage from birth to death: an address may serve several. */
typedef struct trace_life {
    uint64_t bytes;
    uint32_t role;   /* ms_storage_role */
    uint32_t holds;  /* saves not released */
    bool freed;
    bool in_step;    /* it has an ALLOC, or is of the batch */
    uint32_t writes; /* by operators that write in place */
    uint32_t makers; /* operators that could recompute it */
    uint32_t values_at;   /* 1 + `writes` when it had few values; 0: it never had */
    uint32_t values;      /* then: 1 or 2, ... */
    uint32_t value_bytes; /* ... of elements of this many bytes, ... */
    bool are_truths;      /* ... of torch's bool */
    uint64_t untouched_bytes;
} trace_life;

/* The values that an operator writes to a storage: see trace_values.c. */
typedef struct trace_write {
    /* numbers; one; two; a function of its first operand; that operand with one value more */
    enum { WRITE_ANYTHING, WRITE_ONE_VALUE, WRITE_TWO_VALUES, WRITE_MAPS_VALUES, WRITE_ADDS_VALUE } kind;
    bool in_place;
    bool are_truths;           /* of torch's bool: two values, whatever the operands */
    uint64_t bytes;            /* that it writes */
    uint32_t value_bytes;      /* of an element */
    uint32_t read_value_bytes; /* of an element of its first operand */
} trace_write;

/* An operand of a maker, and its number of writes before the maker ran. */
typedef struct trace_operand {
    uint32_t life;
    uint32_t writes;
} trace_operand;

/* A node's save of a life: any number of saved tensors. */
typedef struct trace_save {
    uint32_t node;
    uint32_t life;
    uint32_t tokens; /* packed and not released */
    uint32_t copies; /* living storages that replace it in backward */
    bool needed;
    bool dropped;        /* its DROP is recorded: ... */
    bool drop_backward;  /* ... in this program, */
    uint32_t drop_index; /* ... at this place */
} trace_save;

/* A cross entropy that was marked. */
typedef struct trace_loss {
    uint32_t node;
    uint32_t life; /* of its logits */
} trace_loss;

/* A linear layer that may make logits. */
typedef struct trace_head {
    uint32_t node;
    uint32_t life; /* of its output */
    size_t index;  /* of its event in the node's forward program, withdrawn until it is used */
    bool used;
} trace_head;

/* A sum of two gradients that may be written over the first: see trace_sums.c. */
typedef struct trace_sum {
    enum { SUM_NONE, SUM_EXPECTED, SUM_MADE } state;
    uint32_t first; /* life */
    /* once made: */
    uint32_t life;
    uint64_t key;
    uint64_t peak_bytes; /* before it */
    uint32_t node;       /* its ALLOC is in backward of this node, ... */
    size_t index;        /* ... at this index */
} trace_sum;

/* Events here number lives, not local storages. */
typedef MS__ARRAY(ms_event) trace_program;

typedef struct trace_node {
    char *name;
    uint32_t kind;
    uint32_t call;
    uint32_t flags;
    bool has_input;
    trace_program forward;
    trace_program backward;
    MS__ARRAY(uint32_t) inputs; /* lives, each once */
    MS__ARRAY(ms_maker) makers; /* see trace_makers.c */
    MS__ARRAY(trace_operand) operands;
} trace_node;

struct ms_trace {
    char *model;
    char *signature;
    char *source;
    ms_trace_phase phase;
    bool finished;
    bool loss_outside;

    ms__keymap keys;    /* address -> its current meaning, see KEY_... */
    ms__keymap save_of; /* node << 32 | life -> index into saves */
    MS__ARRAY(trace_life) lives;
    MS__ARRAY(trace_save) saves;
    MS__ARRAY(trace_node) nodes;
    MS__ARRAY(trace_loss) losses;
    MS__ARRAY(trace_head) heads;

    bool layer_open;        /* the last node is a layer that is still open */
    bool root_open;         /* the last node is a root node that takes more events */
    uint32_t backward_from; /* the node that backward began in */
    uint32_t backward_node; /* the current one */
    MS__ARRAY(uint32_t) old_gradients; /* lives from before the step */

    ms_event last_work; /* of the last operator */
    bool has_large_product, has_convolution;
    trace_write last_write;
    trace_sum sum;

    uint64_t live_bytes;
    uint64_t peak_bytes;

    ms_residents residents;
    uint64_t optimizer_elements; /* of trainable parameters */
    bool optimizer_seen;
    trace_program optimizer; /* ALLOC and FREE of its step */
    uint64_t optimizer_state_bytes;
    uint64_t optimizer_transient_bytes;
    uint64_t optimizer_stream_bytes;
    bool gradients_releasable;
    bool gradients_released;
    bool state_streamed;
};

/* The meaning of an address: the two top bits of its value in `keys`; the rest is an index. */
#define KEY_LIFE (0ULL << 62)
#define KEY_RESIDENT (1ULL << 62) /* parameter or buffer; its index has the bits RESIDENT_... */
#define RESIDENT_TRAINABLE 1ULL
#define RESIDENT_WRITTEN 2ULL     /* an operator of the step wrote to it */
#define KEY_COPY (2ULL << 62)     /* replaces a save in backward */
#define KEY_KIND (3ULL << 62)
#define KEY_INDEX (~KEY_KIND)

static inline bool ms__trace_in_forward(const ms_trace *trace)
{
    return trace->phase == MS_TRACE_FORWARD || trace->phase == MS_TRACE_LOSS;
}

static inline uint32_t ms__trace_last_node(const ms_trace *trace)
{
    return (uint32_t)trace->nodes.count - 1;
}

/* trace.c */
int ms__trace_no_memory(ms_error *err);
int ms__trace_check_open(const ms_trace *trace, ms_error *err);
/* The node of an event of forward. Between layers the first event that ends nothing (FREE, DROP) opens a root
 * node. */
int ms__trace_forward_node(ms_trace *trace, uint32_t event_kind, uint32_t *node, ms_error *err);
/* Opens a root node if there is no node. */
int ms__trace_have_node(ms_trace *trace, ms_error *err);
int ms__trace_push(trace_program *program, ms_event event, ms_error *err);
/* Files an event under the current node, or the optimizer. */
int ms__trace_record(ms_trace *trace, ms_event event, ms_error *err);
/* trace_storages.c: the meaning of an address. */
bool ms__trace_find_life(const ms_trace *trace, uint64_t key, uint32_t *life);
/* True for a parameter or buffer; `*written`: the step has written to it. */
bool ms__trace_is_resident(const ms_trace *trace, uint64_t key, bool *written);
int ms__trace_resident_written(ms_trace *trace, uint64_t key, ms_error *err);
int ms__trace_put_key(ms_trace *trace, uint64_t key, uint64_t value, ms_error *err);
/* Ends the life's count in live bytes if it is freed and not saved. */
void ms__trace_release_life(ms_trace *trace, uint32_t index);
/* trace_sums.c. sum_born(): a storage was born; its ALLOC is the last event. sum_ends(): an event other than WORK
 * follows. sum_replaces(): a life with no holder but autograd dies; `*replaced` if the sum takes over its storage:
 * its FREE is then not recorded. */
void ms__trace_sum_born(ms_trace *trace, uint64_t key, uint32_t life, uint64_t peak_before);
void ms__trace_sum_ends(ms_trace *trace);
int ms__trace_sum_replaces(ms_trace *trace, uint32_t dying, bool *replaced, ms_error *err);
/* trace_saved.c: records the node's DROP of a save. A DROP stands in the node's own programs; if the node is not
 * the current one, at the nearest place there that does not end the storage early in forward. */
int ms__trace_drop_save(ms_trace *trace, uint32_t index, ms_error *err);
/* trace_values.c. write_of(): the values that an operator writes, by its name and operands. note_write(): a life
 * was written to; the write is already counted. note_result(): the last operator made the life from `source`
 * (NULL: unknown). is_two_valued(): it has at most two values now. */
trace_write ms__trace_write_of(const char *name, const ms_operand *inputs, size_t input_count,
                               const ms_operand *outputs, size_t output_count);
void ms__trace_note_write(trace_life *life, const trace_write *write);
void ms__trace_note_result(const ms_trace *trace, const trace_life *source, trace_life *made);
bool ms__trace_is_two_valued(const trace_life *life);
/* trace_makers.c: keeps the makers that lead to the node's saves and whose operands were not written to. `needed`
 * has a zero for each life on entry; its contents are undefined afterwards. */
void ms__trace_thin_makers(ms_trace *trace, trace_node *node, uint8_t *needed);

#endif
