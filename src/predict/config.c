/*
 * A Hugging Face configuration read: sizes checked, what it leaves out as transformers has it,
 * and what is not modelled refused by name. Called by predict.c.
 */
#include <inttypes.h>
#include <string.h>

#include "predict/models.h"

enum { SIZE_MOST = 1 << 24 };

static const struct {
    const char *type; /* "model_type" */
    bool tied;        /* where the configuration doesn't say */
} families[MS__FAMILIES] = {
    [MS__LLAMA] = {"llama", false}, [MS__MISTRAL] = {"mistral", false}, [MS__QWEN2] = {"qwen2", false},
    [MS__QWEN3] = {"qwen3", false}, [MS__GPT2] = {"gpt2", true},        [MS__BERT] = {"bert", true},
};

/* ---- members ------------------------------------------------------------------------------ */

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
    static const ms__activation kinds[] = {MS__GELU_NEW, MS__GELU, MS__SILU, MS__RELU, MS__GELU_TANH, MS__SILU};
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

/* ---- windows ---------------------------------------------------------------------------- */

/* Qwen's layers see all or through the window, each as its list says, or those from one on. */
static int read_layer_types(const ms__json_at *at, ms__model *m)
{
    static const char *const kinds[] = {"full_attention", "sliding_attention"};
    uint64_t first = 0;
    ms__json_at types;
    if (!ms__json_has(at, "layer_types")) {
        int rc = ms__json_u64_or(at, "max_window_layers", 0, INT64_MAX, 28, &first);
        for (uint64_t i = first; i < m->layers; i++) {
            m->windowed[i] = m->window != 0;
        }
        return rc;
    }
    int rc = ms__json_array(at, "layer_types", &types);
    if (rc == MS_OK && ms__json_count(&types) != m->layers) {
        return ms__json_fail(&types, MS_EFORMAT, "expected as many as num_hidden_layers");
    }
    for (uint64_t i = 0; rc == MS_OK && i < m->layers; i++) {
        const char *kind;
        rc = ms__json_item_string(&types, i, &kind);
        m->windowed[i] = rc == MS_OK && strcmp(kind, kinds[1]) == 0;
        if (rc == MS_OK && !m->windowed[i] && strcmp(kind, kinds[0]) != 0) {
            return ms__json_fail(&types, MS_EFORMAT, "\"%.64s\": not modelled (known: %s, %s)", kind, kinds[0],
                                 kinds[1]);
        }
        if (rc == MS_OK && m->windowed[i] && m->window == 0) {
            return ms__json_fail(&types, MS_EFORMAT, "%s without a window in use", kinds[1]);
        }
    }
    return rc;
}

/* What is not named is transformers' 4096, null is none. */
static int read_window(const ms__json_at *at, ms__model *m)
{
    bool used = m->family == MS__MISTRAL;
    int rc = used || m->family == MS__LLAMA ? MS_OK : read_flag(at, "use_sliding_window", false, &used);
    if (rc == MS_OK && used && !json_is_null(json_object_get(at->value, "sliding_window"))) {
        rc = ms__json_u64_or(at, "sliding_window", 1, INT64_MAX, 4096, &m->window);
    }
    if (rc != MS_OK || m->family == MS__LLAMA) {
        return rc;
    }
    if (m->window == 1 && m->seq == 1) {
        return ms__json_fail(at, MS_EFORMAT, "sliding_window: 1 is not modelled for a single token");
    }
    if (m->family == MS__MISTRAL) {
        memset(m->windowed, m->window != 0, m->layers * sizeof *m->windowed);
        return MS_OK;
    }
    return read_layer_types(at, m);
}

/* ---- positions -------------------------------------------------------------------------- */

/* Frequencies depend on the sequence in two kinds: while it is as long as the model was made for, "dynamic"
 * only looks at its length. */
static int read_rope(const ms__json_at *at, ms__model *m)
{
    static const uint64_t positions[MS__FAMILIES] = {
        [MS__LLAMA] = 2048, [MS__MISTRAL] = 131072, [MS__QWEN2] = 32768, [MS__QWEN3] = 32768};
    const char *name = ms__json_has(at, "rope_scaling") ? "rope_scaling" : "rope_parameters", *kind = "default";
    ms__json_at rope;
    int rc = ms__json_u64_or(at, "max_position_embeddings", 1, INT64_MAX, positions[m->family], &m->positions);
    if (rc != MS_OK || !ms__json_has(at, name)) {
        return rc;
    }
    rc = ms__json_object(at, name, &rope);
    const char *type = rc == MS_OK && ms__json_has(&rope, "rope_type") ? "rope_type" : "type";
    if (rc == MS_OK && ms__json_has(&rope, type)) {
        rc = ms__json_string(&rope, type, &kind);
    }
    m->dynamic_rope = strcmp(kind, "dynamic") == 0;
    if (rc == MS_OK && (strcmp(kind, "longrope") == 0 || (m->dynamic_rope && m->seq > m->positions))) {
        return ms__json_fail(at, MS_EFORMAT, "%s: \"%s\" %s", name, kind,
                             m->dynamic_rope ? "beyond max_position_embeddings is not modelled" : "is not modelled");
    }
    return rc;
}

/* ---- the families ------------------------------------------------------------------------ */

/* `key_heads`: where the configuration doesn't speak of them; 0, or null there: one for each head. */
static int read_heads(const ms__json_at *at, uint64_t key_heads, uint64_t head_width, ms__model *m)
{
    bool is_null = json_is_null(json_object_get(at->value, "num_key_value_heads"));
    int rc = read_size(at, "num_attention_heads", &m->heads);
    uint64_t otherwise = key_heads == 0 || is_null ? m->heads : key_heads;
    if (rc == MS_OK) {
        rc = read_size_or(at, "num_key_value_heads", otherwise, &m->key_heads);
    }
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
    if (rc == MS_OK) {
        rc = read_size(at, "intermediate_size", &m->inner);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "num_hidden_layers", 1, MS__LAYERS_MOST, &m->layers);
    }
    if (rc == MS_OK) {
        rc = read_heads(at, key_heads[m->family], m->family == MS__QWEN3 ? 128 : 0, m);
    }
    if (rc == MS_OK) {
        rc = read_activation(at, "hidden_act", MS__SILU, &m->activation);
    }
    if (rc == MS_OK) {
        rc = read_flag(at, "attention_bias", false, &biased);
    }
    if (rc == MS_OK) {
        rc = read_flag(at, "mlp_bias", false, &m->mlp_bias);
    }
    if (rc == MS_OK) {
        rc = read_dropout(at, "attention_dropout", 0, &drops);
    }
    if (rc == MS_OK && drops) {
        return ms__json_fail(at, MS_EFORMAT, "attention_dropout: not modelled");
    }
    m->mlp_bias = m->mlp_bias && m->family == MS__LLAMA;
    m->output_bias = biased && (m->family == MS__LLAMA || m->family == MS__QWEN3);
    m->attention_bias = m->output_bias || m->family == MS__QWEN2;
    if (rc == MS_OK) {
        rc = read_rope(at, m);
    }
    return rc != MS_OK ? rc : read_window(at, m);
}

static int read_gpt2(const ms__json_at *at, ms__model *m)
{
    int rc = read_size(at, "n_embd", &m->width);
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "n_layer", 1, MS__LAYERS_MOST, &m->layers);
    }
    if (rc == MS_OK) {
        rc = read_size(at, "n_head", &m->heads);
    }
    if (rc == MS_OK) {
        rc = read_size_or(at, "n_positions", 1024, &m->positions);
    }
    if (rc == MS_OK) {
        rc = read_size_or(at, "n_inner", 4 * m->width, &m->inner);
    }
    if (rc == MS_OK) {
        rc = read_activation(at, "activation_function", MS__GELU_NEW, &m->activation);
    }
    if (rc == MS_OK) {
        rc = read_dropout(at, "embd_pdrop", 0.1, &m->drops_embeddings);
    }
    if (rc == MS_OK) {
        rc = read_dropout(at, "attn_pdrop", 0.1, &m->drops_attention);
    }
    if (rc == MS_OK) {
        rc = read_dropout(at, "resid_pdrop", 0.1, &m->drops_residuals);
    }
    return rc != MS_OK ? rc : refuse(at, "add_cross_attention");
}

static int read_bert(const ms__json_at *at, ms__model *m)
{
    int rc = read_size(at, "hidden_size", &m->width);
    if (rc == MS_OK) {
        rc = read_size(at, "intermediate_size", &m->inner);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "num_hidden_layers", 1, MS__LAYERS_MOST, &m->layers);
    }
    if (rc == MS_OK) {
        rc = read_size(at, "num_attention_heads", &m->heads);
    }
    if (rc == MS_OK) {
        rc = read_size_or(at, "max_position_embeddings", 512, &m->positions);
    }
    if (rc == MS_OK) {
        rc = read_size_or(at, "type_vocab_size", 2, &m->token_types);
    }
    if (rc == MS_OK) {
        rc = read_activation(at, "hidden_act", MS__GELU, &m->activation);
    }
    if (rc == MS_OK) {
        rc = read_dropout(at, "hidden_dropout_prob", 0.1, &m->drops_residuals);
    }
    if (rc == MS_OK) {
        rc = read_dropout(at, "attention_probs_dropout_prob", 0.1, &m->drops_attention);
    }
    m->drops_embeddings = m->drops_residuals;
    if (rc == MS_OK) {
        rc = refuse(at, "is_decoder");
    }
    if (rc == MS_OK) {
        rc = refuse(at, "add_cross_attention");
    }
    return rc != MS_OK ? rc : refuse(at, "chunk_size_feed_forward");
}

int ms__read_model(const ms__json_at *at, ms__model *m)
{
    const char *types[MS__FAMILIES];
    size_t family = 0;
    for (int i = 0; i < MS__FAMILIES; i++) {
        types[i] = families[i].type;
    }
    int rc = ms__json_enum(at, "model_type", types, MS__FAMILIES, &family);
    m->family = (ms__family)family;
    if (rc == MS_OK) {
        rc = read_size(at, "vocab_size", &m->vocabulary);
    }
    if (rc == MS_OK) {
        rc = read_flag(at, "tie_word_embeddings", families[family].tied, &m->tied);
    }
    if (rc == MS_OK) {
        rc = read_flag(at, "use_cache", m->family != MS__BERT, &m->uses_cache);
    }
    if (rc != MS_OK) {
        return rc;
    }
    m->uses_cache = m->uses_cache && m->family != MS__BERT;
    rc = m->family == MS__GPT2 ? read_gpt2(at, m) : m->family == MS__BERT ? read_bert(at, m) : read_decoder(at, m);
    bool fixed = m->family == MS__GPT2 || m->family == MS__BERT;
    if (rc == MS_OK && fixed && m->width % m->heads != 0) {
        return ms__json_fail(at, MS_EFORMAT, "the hidden size is no multiple of the number of heads");
    }
    if (rc == MS_OK && fixed && m->seq > m->positions) {
        return ms_fail(at->err, MS_EINVAL, "seq: %" PRIu64 " is more than the %" PRIu64 " positions of the model",
                       m->seq, m->positions);
    }
    return rc;
}
