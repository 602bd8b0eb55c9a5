/*
 * A model's configuration, read by config.c and divided by part.c, and the families (decoders.c, gpt2.c, bert.c), which run its step on a
 * tape.
 * Tests: tests/c/predict/test_predict.c.
 */
#ifndef MS_PREDICT_MODELS_H
#define MS_PREDICT_MODELS_H

#include "base/json.h"
#include "memscale/predict.h"
#include "predict/tape.h"

typedef enum ms__family { MS__LLAMA, MS__MISTRAL, MS__QWEN2, MS__QWEN3, MS__GPT2, MS__BERT, MS__FAMILIES } ms__family;

enum { MS__LAYERS_MOST = 4096 };

typedef struct ms__model {
    ms__family family;
    uint64_t batch, seq;
    uint64_t width, inner, layers, heads, key_heads, head_width, vocabulary, positions, token_types;
    ms__activation activation;
    bool attention_bias, output_bias, mlp_bias, tied;
    bool drops_embeddings, drops_attention, drops_residuals;
    bool uses_cache;   /* memscale runs the step without its cache */
    bool dynamic_rope; /* reads the sequence's length */
    uint64_t window;   /* tokens that a token sees; 0: all before it */
    bool windowed[MS__LAYERS_MOST]; /* the layers that use the window */
    uint64_t words; /* rows of the embedding and columns of the head that this rank has */
    uint64_t shares; /* ranks that divide each layer; heads, key heads and `inner` are this rank's */
    bool by_sequence; /* tokens are divided between the linear layers */
    uint64_t first_layer, end_layer; /* this rank's */
    uint64_t microbatches; /* for which a stage has buffers */
} ms__model;

/* Fills the model; the caller has set `batch` and `seq`. MS_EFORMAT with the place, MS_EINVAL. */
int ms__read_model(const ms__json_at *config, ms__model *model);

/* Leaves in a model what one rank has of it (part.c). Errors as ms_predict_hf_part(). */
int ms__divide_model(ms__model *model, const ms_part *part, ms_error *err);

/* Run the step of one family: forward with the loss, and backward. */
void ms__write_decoder(ms__tape *tape, const ms__model *model);
void ms__write_gpt2(ms__tape *tape, const ms__model *model);
void ms__write_bert(ms__tape *tape, const ms__model *model);

/* ---- shared by the families (predict.c) ------------------------------------------------- */

void ms__enter_layer(ms__tape *tape, const char *prefix, uint64_t index, size_t inputs, const ms__value *values);
/* `last`: no other layer takes its output. */
void ms__leave_layer(ms__tape *tape, bool last);
/* Runs the operators with which transformers checks whether a row holds several texts (it would then need a mask). */
void ms__look_for_packing(ms__tape *tape, const ms__model *model, ms__value positions);
/* Runs the rest of the step, after forward. Releases both values. */
void ms__finish_step(ms__tape *tape, ms__value logits, ms__value loss);
/* The same for a stage whose output goes to another one, which returns its gradient. Releases it. */
void ms__finish_stage(ms__tape *tape, const ms__model *model, ms__value out);

#endif
