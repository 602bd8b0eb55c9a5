/*
 * Reads a Hugging Face configuration: checks sizes, applies transformers' defaults, and refuses features that are not
 * modelled by name. Called by predict.c.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "predict/models.h"

enum { SIZE_MOST = 1 << 24 };

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

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

static int read_dropout(const ms__json_at *at, const char *name, bool fallback, bool *drops)
{
    double share = fallback ? 1 : 0;
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
    int rc = ms__json_enum(at, name, names, COUNT_OF(names), &index);
    *out = kinds[index];
    return rc;
}

/* Refuses a member that asks for a feature that is not modelled: true, or not 0. */
static int refuse_feature(const ms__json_at *at, const char *name)
{
    const json_t *value = json_object_get(at->value, name);
    bool off = value == NULL || json_is_null(value) || json_is_false(value) ||
               (json_is_integer(value) && json_integer_value(value) == 0);
    return off ? MS_OK : ms__json_fail(at, MS_ENOTSUP, "%s: not modelled", name);
}

/* A member of a configuration and its field of ms__model. */
typedef struct model_member {
    const char *name;
    enum { MEMBER_SIZE, MEMBER_LAYERS, MEMBER_FLAG, MEMBER_DROPOUT, MEMBER_ACTIVATION, MEMBER_REFUSED } kind;
    size_t offset;     /* unused for REFUSED */
    uint64_t fallback; /* if the member is missing; of a SIZE 0: it is required; of a DROPOUT: whether it drops */
} model_member;

#define MEMBER(name, kind, field, fallback) {name, MEMBER_##kind, offsetof(ms__model, field), (fallback)}
#define REFUSED(name) {name, MEMBER_REFUSED, 0, 0}

static int read_member(const ms__json_at *at, const model_member *member, ms__model *m)
{
    void *field = (char *)m + member->offset;
    switch (member->kind) {
    case MEMBER_SIZE:
        return member->fallback == 0 ? read_size(at, member->name, field)
                                     : read_size_or(at, member->name, member->fallback, field);
    case MEMBER_LAYERS:
        return ms__json_u64(at, member->name, 1, MS__LAYERS_MOST, field);
    case MEMBER_FLAG:
        return read_flag(at, member->name, member->fallback != 0, field);
    case MEMBER_DROPOUT:
        return read_dropout(at, member->name, member->fallback != 0, field);
    case MEMBER_ACTIVATION:
        return read_activation(at, member->name, (ms__activation)member->fallback, field);
    default:
        return refuse_feature(at, member->name);
    }
}

static int read_members(const ms__json_at *at, const model_member *members, size_t count, ms__model *m)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = read_member(at, &members[i], m);
    }
    return rc;
}

/* ---- windows ---------------------------------------------------------------------------- */

/* Qwen's layers attend to everything or through the window: a list gives each layer's kind, or a number the first
 * layer with the window. */
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
            return ms__json_fail(&types, MS_ENOTSUP, "\"%.64s\": not modelled (known: %s, %s)", kind, kinds[0],
                                 kinds[1]);
        }
        if (rc == MS_OK && m->windowed[i] && m->window == 0) {
            return ms__json_fail(&types, MS_EFORMAT, "%s without a window in use", kinds[1]);
        }
    }
    return rc;
}

/* A missing window is transformers' 4096; null is no window. */
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
        return ms__json_fail(at, MS_ENOTSUP, "sliding_window: 1 is not modelled for a single token");
    }
    if (m->family == MS__MISTRAL) {
        memset(m->windowed, m->window != 0, m->layers * sizeof *m->windowed);
        return MS_OK;
    }
    return read_layer_types(at, m);
}

/* ---- positions -------------------------------------------------------------------------- */

/* In the kinds "longrope" and "dynamic", frequencies depend on the sequence's length. Up to the model's own
 * length, "dynamic" only reads it. */
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
        return ms__json_fail(at, MS_ENOTSUP, "%s: \"%s\" %s", name, kind,
                             m->dynamic_rope ? "beyond max_position_embeddings is not modelled" : "is not modelled");
    }
    return rc;
}

/* ---- the families ------------------------------------------------------------------------ */

/* `key_heads`: the default; 0, or null in the configuration: one for each head. */
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
        return ms__json_fail(at, MS_EFORMAT, "num_attention_heads is not a multiple of num_key_value_heads");
    }
    if (rc == MS_OK && m->head_width % 2 != 0) {
        return ms__json_fail(at, MS_EFORMAT, "head_dim is odd: its halves are rotated");
    }
    return rc;
}

static int read_decoder(const ms__json_at *at, ms__model *m)
{
    static const uint64_t key_heads[MS__FAMILIES] = {[MS__MISTRAL] = 8, [MS__QWEN2] = 32, [MS__QWEN3] = 32};
    static const model_member members[] = {
        MEMBER("hidden_size", SIZE, width, 0),
        MEMBER("intermediate_size", SIZE, inner, 0),
        MEMBER("num_hidden_layers", LAYERS, layers, 0),
        MEMBER("hidden_act", ACTIVATION, activation, MS__SILU),
        MEMBER("attention_bias", FLAG, output_bias, false),
        MEMBER("mlp_bias", FLAG, mlp_bias, false),
        MEMBER("attention_dropout", DROPOUT, drops_attention, false),
    };
    int rc = read_members(at, members, COUNT_OF(members), m);
    if (rc == MS_OK && m->drops_attention) {
        return ms__json_fail(at, MS_ENOTSUP, "attention_dropout: not modelled");
    }
    m->mlp_bias = m->mlp_bias && m->family == MS__LLAMA;
    m->output_bias = m->output_bias && (m->family == MS__LLAMA || m->family == MS__QWEN3);
    m->attention_bias = m->output_bias || m->family == MS__QWEN2;
    if (rc == MS_OK) {
        rc = read_heads(at, key_heads[m->family], m->family == MS__QWEN3 ? 128 : 0, m);
    }
    if (rc == MS_OK) {
        rc = read_rope(at, m);
    }
    return rc != MS_OK ? rc : read_window(at, m);
}

/* The families of fixed positions: heads share the width, and a sequence is at most as long as the positions. */
static int check_fixed(const ms__json_at *at, const ms__model *m)
{
    if (m->width % m->heads != 0) {
        return ms__json_fail(at, MS_EFORMAT, "the hidden size is not a multiple of the number of heads");
    }
    if (m->seq > m->positions) {
        return ms_fail(at->err, MS_EINVAL, "seq: %" PRIu64 " is more than the %" PRIu64 " positions of the model",
                       m->seq, m->positions);
    }
    return MS_OK;
}

static int read_gpt2(const ms__json_at *at, ms__model *m)
{
    static const model_member members[] = {
        MEMBER("n_embd", SIZE, width, 0),
        MEMBER("n_layer", LAYERS, layers, 0),
        MEMBER("n_head", SIZE, heads, 0),
        MEMBER("n_positions", SIZE, positions, 1024),
        MEMBER("activation_function", ACTIVATION, activation, MS__GELU_NEW),
        MEMBER("embd_pdrop", DROPOUT, drops_embeddings, true),
        MEMBER("attn_pdrop", DROPOUT, drops_attention, true),
        MEMBER("resid_pdrop", DROPOUT, drops_residuals, true),
        REFUSED("add_cross_attention"),
    };
    int rc = read_members(at, members, COUNT_OF(members), m);
    if (rc == MS_OK) {
        rc = read_size_or(at, "n_inner", 4 * m->width, &m->inner);
    }
    return rc != MS_OK ? rc : check_fixed(at, m);
}

static int read_bert(const ms__json_at *at, ms__model *m)
{
    static const model_member members[] = {
        MEMBER("hidden_size", SIZE, width, 0),
        MEMBER("intermediate_size", SIZE, inner, 0),
        MEMBER("num_hidden_layers", LAYERS, layers, 0),
        MEMBER("num_attention_heads", SIZE, heads, 0),
        MEMBER("max_position_embeddings", SIZE, positions, 512),
        MEMBER("type_vocab_size", SIZE, token_types, 2),
        MEMBER("hidden_act", ACTIVATION, activation, MS__GELU),
        MEMBER("hidden_dropout_prob", DROPOUT, drops_residuals, true),
        MEMBER("attention_probs_dropout_prob", DROPOUT, drops_attention, true),
        REFUSED("is_decoder"),
        REFUSED("add_cross_attention"),
        REFUSED("chunk_size_feed_forward"),
    };
    int rc = read_members(at, members, COUNT_OF(members), m);
    m->drops_embeddings = m->drops_residuals;
    return rc != MS_OK ? rc : check_fixed(at, m);
}

static const struct {
    const char *type; /* "model_type" */
    bool tied;        /* if the configuration does not say */
    bool caches;
    int (*read)(const ms__json_at *at, ms__model *m);
} families[MS__FAMILIES] = {
    [MS__LLAMA] = {"llama", false, true, read_decoder}, [MS__MISTRAL] = {"mistral", false, true, read_decoder},
    [MS__QWEN2] = {"qwen2", false, true, read_decoder}, [MS__QWEN3] = {"qwen3", false, true, read_decoder},
    [MS__GPT2] = {"gpt2", true, true, read_gpt2},       [MS__BERT] = {"bert", true, false, read_bert},
};

static int read_family(const ms__json_at *at, ms__family *family)
{
    const char *type;
    int rc = ms__json_string(at, "model_type", &type);
    for (int i = 0; rc == MS_OK && i < MS__FAMILIES; i++) {
        if (strcmp(families[i].type, type) == 0) {
            *family = (ms__family)i;
            return MS_OK;
        }
    }
    return rc != MS_OK ? rc
                       : ms__json_fail(at, MS_ENOTSUP, "model_type: \"%.64s\" is not modelled without torch", type);
}

int ms__read_model(const ms__json_at *at, ms__model *m)
{
    int rc = read_family(at, &m->family);
    if (rc != MS_OK) {
        return rc;
    }
    ms__family family = m->family;
    const model_member members[] = {
        MEMBER("vocab_size", SIZE, vocabulary, 0),
        MEMBER("tie_word_embeddings", FLAG, tied, families[family].tied),
        MEMBER("use_cache", FLAG, uses_cache, families[family].caches),
    };
    rc = read_members(at, members, COUNT_OF(members), m);
    m->uses_cache = m->uses_cache && families[family].caches;
    return rc != MS_OK ? rc : families[family].read(at, m);
}
