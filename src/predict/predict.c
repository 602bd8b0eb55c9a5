/*
 * From a Hugging Face configuration to a graph: reads and checks the sizes, lets the
 * family write its step down, and finishes the trace. Public face: memscale/predict.h.
 */
#include "memscale/predict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/units.h"
#include "predict/models.h"

enum { SIZE_MOST = 1 << 24, LAYERS_MOST = 4096 };
static const uint64_t batch_most = UINT64_C(1) << 24;

typedef struct family_row {
    const char *type;  /* "model_type" */
    const char *class; /* of the model */
    bool tied;         /* where the configuration doesn't say */
    const char *extra; /* behind the signature's tensors */
    void (*write)(ms__tape *tape, const ms__model *model);
} family_row;

static const family_row families[MS__FAMILIES] = {
    [MS__LLAMA] = {"llama", "LlamaForCausalLM", false, ",use_cache=False", ms__write_decoder},
    [MS__MISTRAL] = {"mistral", "MistralForCausalLM", false, ",use_cache=False", ms__write_decoder},
    [MS__QWEN2] = {"qwen2", "Qwen2ForCausalLM", false, ",use_cache=False", ms__write_decoder},
    [MS__QWEN3] = {"qwen3", "Qwen3ForCausalLM", false, ",use_cache=False", ms__write_decoder},
    [MS__GPT2] = {"gpt2", "GPT2LMHeadModel", true, ",use_cache=False", ms__write_gpt2},
    [MS__BERT] = {"bert", "BertForMaskedLM", true, "", ms__write_bert},
};

/* ---- what the families share ------------------------------------------------------------ */

void ms__enter_layer(ms__tape *tape, const char *prefix, uint64_t index, size_t inputs, const ms__value *values)
{
    char name[64];
    uint32_t node;
    snprintf(name, sizeof name, "%s%" PRIu64, prefix, index);
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_enter(tape->trace, name, 0, &node, tape->err));
    }
    for (size_t i = 0; i < inputs && tape->rc == MS_OK; i++) {
        ms__fail_tape(tape, ms_trace_input(tape->trace, ms__key_of(tape, values[i]), tape->err));
    }
}

void ms__leave_layer(ms__tape *tape, bool last)
{
    if (tape->rc == MS_OK && !last) {
        uint32_t node = ms_trace_current(tape->trace);
        ms__fail_tape(tape, ms_trace_flag(tape->trace, node, MS_NODE_CHAINED, tape->err));
    }
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_leave(tape->trace, tape->err));
    }
}

/* `seen` in another shape, as an operand. */
static ms__value seen_as(ms__tape *tape, ms__value seen, ms__shape shape)
{
    ms__value alias = ms__alias(tape, seen, shape);
    ms__drop(tape, alias);
    return alias;
}

void ms__look_for_packing(ms__tape *tape, const ms__model *m, ms__value positions)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq), column = MS__SHAPE(m->batch, 1), row = MS__SHAPE(m->batch);
    ms__value first = ms__constant(tape, column, 8, seen_as(tape, positions, column), 0);
    ms__value led = ms__constant(tape, MS__SHAPE(m->batch, m->seq + 1), 8, first, seen_as(tape, positions, ids));
    ms__value steps = ms__constant(tape, ids, 8, seen_as(tape, led, ids), seen_as(tape, led, ids));
    ms__drop(tape, led);
    ms__value jumps = ms__constant(tape, ids, 1, steps, 0), texts = ms__constant(tape, ids, 8, jumps, 0);
    ms__drop(tape, jumps);
    ms__value alone = ms__constant(tape, row, 1, seen_as(tape, texts, row), 0);
    ms__value all = ms__constant(tape, (ms__shape){.rank = 0}, 1, alone, 0);
    ms__drop(tape, alone);
    ms__drop(tape, all);
    ms__drop(tape, first);
    ms__drop(tape, steps);
    ms__drop(tape, texts);
}

static void set_phase(ms__tape *tape, ms_trace_phase phase)
{
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_set_phase(tape->trace, phase, tape->err));
    }
}

static void set_output(ms__tape *tape, ms__value value)
{
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_role(tape->trace, ms__key_of(tape, value), 0, MS_STORAGE_OUTPUT, tape->err));
    }
}

void ms__finish_step(ms__tape *tape, ms__value logits, ms__value loss)
{
    set_output(tape, loss);
    set_output(tape, logits);
    set_phase(tape, MS_TRACE_LOSS);
    ms__drop(tape, logits);
    set_phase(tape, MS_TRACE_BACKWARD);
    ms__backward(tape, loss);
    set_phase(tape, MS_TRACE_DONE);
    ms__drop(tape, loss);
}

/* ---- the configuration -------------------------------------------------------------------- */

static int read_size(const ms__json_at *at, const char *name, uint64_t *out)
{
    return ms__json_u64(at, name, 1, SIZE_MOST, out);
}

static int read_size_or(const ms__json_at *at, const char *name, uint64_t fallback, uint64_t *out)
{
    return ms__json_u64_or(at, name, 1, SIZE_MOST, fallback, out);
}

static int read_flag(const ms__json_at *at, const char *name, bool fallback, bool *out)
{
    *out = fallback;
    return ms__json_has(at, name) ? ms__json_bool(at, name, out) : MS_OK;
}

static int read_dropout(const ms__json_at *at, const char *name, double fallback, bool *drops)
{
    double share = fallback;
    int rc = ms__json_has(at, name) ? ms__json_f64(at, name, 0, 1, &share) : MS_OK;
    *drops = share > 0;
    return rc;
}

static int read_activation(const ms__json_at *at, const char *name, ms__activation fallback, ms__activation *out)
{
    static const char *const names[] = {"gelu_new", "gelu", "silu", "relu", "gelu_pytorch_tanh", "swish"};
    static const ms__activation kinds[] = {MS__GELU_NEW, MS__GELU, MS__SILU, MS__RELU, MS__GELU, MS__SILU};
    size_t index = 0;
    *out = fallback;
    if (!ms__json_has(at, name)) {
        return MS_OK;
    }
    int rc = ms__json_enum(at, name, names, sizeof names / sizeof names[0], &index);
    *out = kinds[index];
    return rc;
}

/* Refuses a member that is true, or not zero: what it asks for is not modelled. */
static int refuse(const ms__json_at *at, const char *name)
{
    const json_t *value = json_object_get(at->value, name);
    bool off = value == NULL || json_is_null(value) || json_is_false(value) ||
               (json_is_integer(value) && json_integer_value(value) == 0);
    return off ? MS_OK : ms__json_fail(at, MS_EFORMAT, "%s: not modelled", name);
}

/* Attention masks are not modelled: a window must not be reached. */
static int check_window(const ms__json_at *at, ms__model *m)
{
    const json_t *value = json_object_get(at->value, "sliding_window");
    bool used = true;
    uint64_t window = UINT64_MAX;
    int rc = m->family == MS__MISTRAL ? MS_OK : read_flag(at, "use_sliding_window", false, &used);
    if (rc == MS_OK && used && value == NULL && m->family != MS__LLAMA) {
        window = 4096;
    } else if (rc == MS_OK && used && m->family != MS__LLAMA && !json_is_null(value)) {
        rc = ms__json_u64(at, "sliding_window", 1, INT64_MAX, &window);
    }
    if (rc == MS_OK && m->seq >= window) {
        return ms__json_fail(at, MS_EFORMAT, "sliding_window: %" PRIu64 " is reached by a sequence of %" PRIu64
                             ", which is not modelled", window, m->seq);
    }
    return rc;
}

/* `key_heads`: where the configuration doesn't speak of them; 0, or null there: one for each head. */
static int read_heads(const ms__json_at *at, uint64_t key_heads, uint64_t head_width, ms__model *m)
{
    bool is_null = json_is_null(json_object_get(at->value, "num_key_value_heads"));
    int rc = read_size(at, "num_attention_heads", &m->heads);
    uint64_t otherwise = key_heads == 0 || is_null ? m->heads : key_heads;
    rc = rc != MS_OK ? rc : read_size_or(at, "num_key_value_heads", otherwise, &m->key_heads);
    if (rc != MS_OK) {
        return rc;
    }
    uint64_t natural = m->width / m->heads;
    rc = read_size_or(at, "head_dim", head_width != 0 ? head_width : natural > 0 ? natural : 1, &m->head_width);
    if (rc == MS_OK && m->heads % m->key_heads != 0) {
        return ms__json_fail(at, MS_EFORMAT, "num_attention_heads is no multiple of num_key_value_heads");
    }
    if (rc == MS_OK && m->head_width % 2 != 0) {
        return ms__json_fail(at, MS_EFORMAT, "head_dim is odd: its halves are rotated");
    }
    return rc;
}

static int read_decoder(const ms__json_at *at, ms__model *m)
{
    static const uint64_t key_heads[MS__FAMILIES] = {[MS__MISTRAL] = 8, [MS__QWEN2] = 32, [MS__QWEN3] = 32};
    bool drops = false, biased = false;
    int rc = read_size(at, "hidden_size", &m->width);
    rc = rc != MS_OK ? rc : read_size(at, "intermediate_size", &m->inner);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "num_hidden_layers", 1, LAYERS_MOST, &m->layers);
    rc = rc != MS_OK ? rc : read_heads(at, key_heads[m->family], m->family == MS__QWEN3 ? 128 : 0, m);
    rc = rc != MS_OK ? rc : read_activation(at, "hidden_act", MS__SILU, &m->activation);
    rc = rc != MS_OK ? rc : read_flag(at, "attention_bias", false, &biased);
    rc = rc != MS_OK ? rc : read_flag(at, "mlp_bias", false, &m->mlp_bias);
    rc = rc != MS_OK ? rc : read_dropout(at, "attention_dropout", 0, &drops);
    if (rc == MS_OK && drops) {
        return ms__json_fail(at, MS_EFORMAT, "attention_dropout: not modelled");
    }
    m->mlp_bias = m->mlp_bias && m->family == MS__LLAMA;
    m->output_bias = biased && (m->family == MS__LLAMA || m->family == MS__QWEN3);
    m->attention_bias = m->output_bias || m->family == MS__QWEN2;
    return rc != MS_OK ? rc : check_window(at, m);
}

static int read_gpt2(const ms__json_at *at, ms__model *m)
{
    int rc = read_size(at, "n_embd", &m->width);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "n_layer", 1, LAYERS_MOST, &m->layers);
    rc = rc != MS_OK ? rc : read_size(at, "n_head", &m->heads);
    rc = rc != MS_OK ? rc : read_size_or(at, "n_positions", 1024, &m->positions);
    rc = rc != MS_OK ? rc : read_size_or(at, "n_inner", 4 * m->width, &m->inner);
    rc = rc != MS_OK ? rc : read_activation(at, "activation_function", MS__GELU_NEW, &m->activation);
    rc = rc != MS_OK ? rc : read_dropout(at, "embd_pdrop", 0.1, &m->drops_embeddings);
    rc = rc != MS_OK ? rc : read_dropout(at, "attn_pdrop", 0.1, &m->drops_attention);
    rc = rc != MS_OK ? rc : read_dropout(at, "resid_pdrop", 0.1, &m->drops_residuals);
    return rc != MS_OK ? rc : refuse(at, "add_cross_attention");
}

static int read_bert(const ms__json_at *at, ms__model *m)
{
    int rc = read_size(at, "hidden_size", &m->width);
    rc = rc != MS_OK ? rc : read_size(at, "intermediate_size", &m->inner);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "num_hidden_layers", 1, LAYERS_MOST, &m->layers);
    rc = rc != MS_OK ? rc : read_size(at, "num_attention_heads", &m->heads);
    rc = rc != MS_OK ? rc : read_size_or(at, "max_position_embeddings", 512, &m->positions);
    rc = rc != MS_OK ? rc : read_size_or(at, "type_vocab_size", 2, &m->token_types);
    rc = rc != MS_OK ? rc : read_activation(at, "hidden_act", MS__GELU, &m->activation);
    rc = rc != MS_OK ? rc : read_dropout(at, "hidden_dropout_prob", 0.1, &m->drops_residuals);
    rc = rc != MS_OK ? rc : read_dropout(at, "attention_probs_dropout_prob", 0.1, &m->drops_attention);
    m->drops_embeddings = m->drops_residuals;
    rc = rc != MS_OK ? rc : refuse(at, "is_decoder");
    rc = rc != MS_OK ? rc : refuse(at, "add_cross_attention");
    return rc != MS_OK ? rc : refuse(at, "chunk_size_feed_forward");
}

static int read_model(const ms__json_at *at, ms__model *m)
{
    const char *types[MS__FAMILIES];
    size_t family = 0;
    for (int i = 0; i < MS__FAMILIES; i++) {
        types[i] = families[i].type;
    }
    int rc = ms__json_enum(at, "model_type", types, MS__FAMILIES, &family);
    m->family = (ms__family)family;
    rc = rc != MS_OK ? rc : read_size(at, "vocab_size", &m->vocabulary);
    rc = rc != MS_OK ? rc : read_flag(at, "tie_word_embeddings", families[family].tied, &m->tied);
    if (rc != MS_OK) {
        return rc;
    }
    rc = m->family == MS__GPT2 ? read_gpt2(at, m) : m->family == MS__BERT ? read_bert(at, m) : read_decoder(at, m);
    bool fixed = m->family == MS__GPT2 || m->family == MS__BERT;
    if (rc == MS_OK && fixed && m->width % m->heads != 0) {
        return ms__json_fail(at, MS_EFORMAT, "the hidden size is no multiple of the number of heads");
    }
    if (rc == MS_OK && fixed && m->seq > m->positions) {
        return ms_fail(at->err, MS_EINVAL, "seq: %" PRIu64 " is more than the %" PRIu64 " positions of the model", m->seq,
                       m->positions);
    }
    return rc;
}

/* ---- the graph -------------------------------------------------------------------------------- */

static int write_step(const ms__model *m, ms_graph **graph, ms_error *err)
{
    const family_row *row = &families[m->family];
    ms__tape tape = {.err = err, .differentiates = true};
    char signature[160];
    snprintf(signature, sizeof signature, "input_ids:int64[%" PRIu64 ",%" PRIu64 "],labels:int64[%" PRIu64 ",%" PRIu64 "]%s",
             m->batch, m->seq, m->batch, m->seq, row->extra);
    int rc = ms_trace_new(row->class, signature, "static", &tape.trace, err);
    if (rc == MS_OK) {
        row->write(&tape, m);
        rc = tape.rc;
    }
    if (rc == MS_OK) {
        rc = ms_trace_finish(tape.trace, graph, err);
    }
    ms__tape_clear(&tape);
    return rc;
}

int ms_predict_hf_graph(const char *config_json, uint64_t batch, uint64_t seq, ms_graph **graph, ms_error *err)
{
    json_t *tree;
    ms__json_at root;
    ms__model model = {.batch = batch, .seq = seq};
    if (batch == 0 || batch > batch_most || seq == 0 || seq > SIZE_MOST) {
        return ms_fail(err, MS_EINVAL, "batch and seq must be 1 to %d", SIZE_MOST);
    }
    int rc = ms__json_parse(config_json, strlen(config_json), "model", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = read_model(&root, &model);
    json_decref(tree);
    return rc == MS_OK ? write_step(&model, graph, err) : rc;
}
