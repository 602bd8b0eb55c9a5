/*
 * Llama, Mistral, Qwen2 and Qwen3 for causal language modelling as transformers runs them: RMS norms by single
 * operators, rotary positions, fused attention, gated MLP. A value is dropped when its Python variable ends.
 */
#include "predict/models.h"

typedef struct layer_weights {
    ms__value norm, q, q_bias, k, k_bias, v, v_bias, q_norm, k_norm, o, o_bias;
    ms__value mlp_norm, gate, gate_bias, up, up_bias, down, down_bias;
} layer_weights;

/* Values that layers share. */
typedef struct frame {
    ms__value positions, cos, sin;
    ms__value mask; /* of the window, for layers that use it; 0: not needed */
} frame;

/* A weight (out, in) and its optional bias. */
static ms__value weight(ms__tape *tape, uint64_t out, uint64_t in, bool biased, ms__value *bias)
{
    ms__value made = ms__parameter(tape, MS__SHAPE(out, in));
    *bias = biased ? ms__parameter(tape, MS__SHAPE(out)) : 0;
    return made;
}

static layer_weights make_weights(ms__tape *tape, const ms__model *m)
{
    layer_weights w = {0};
    uint64_t q_width = m->heads * m->head_width, k_width = m->key_heads * m->head_width;
    w.q = weight(tape, q_width, m->width, m->attention_bias, &w.q_bias);
    w.k = weight(tape, k_width, m->width, m->attention_bias, &w.k_bias);
    w.v = weight(tape, k_width, m->width, m->attention_bias, &w.v_bias);
    w.o = weight(tape, m->width, q_width, m->output_bias, &w.o_bias);
    if (m->family == MS__QWEN3) {
        w.q_norm = ms__parameter(tape, MS__SHAPE(m->head_width));
        w.k_norm = ms__parameter(tape, MS__SHAPE(m->head_width));
    }
    w.gate = weight(tape, m->inner, m->width, m->mlp_bias, &w.gate_bias);
    w.up = weight(tape, m->inner, m->width, m->mlp_bias, &w.up_bias);
    w.down = weight(tape, m->width, m->inner, m->mlp_bias, &w.down_bias);
    w.norm = ms__parameter(tape, MS__SHAPE(m->width));
    w.mlp_norm = ms__parameter(tape, MS__SHAPE(m->width));
    return w;
}

/* ---- the exchange of ranks that divide each layer ---------------------------------------- */

/* The stream as input of linear layers that are divided by columns. Divided by tokens, it is gathered once for all of
 * them; otherwise each of them sums its gradients. */
static ms__value enter_columns(ms__tape *tape, const ms__model *m, ms__value x)
{
    return m->by_sequence ? ms__gathered(tape, x) : ms__alias(tape, x, ms__shape_at(tape, x));
}

static ms__value by_columns(ms__tape *tape, const ms__model *m, ms__value x, ms__value w, ms__value bias,
                            uint64_t width)
{
    if (m->shares == 1 || m->by_sequence) {
        return ms__linear(tape, x, w, bias, width);
    }
    ms__value own = ms__spread(tape, x), out = ms__linear(tape, own, w, bias, width);
    ms__drop(tape, own);
    return out;
}

/* The ranks' parts of the stream become the stream. */
static ms__value leave_rows(ms__tape *tape, const ms__model *m, ms__value part)
{
    ms__value out = m->by_sequence ? ms__scattered(tape, part) : ms__reduced(tape, part);
    ms__drop(tape, part);
    return out;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Queries or keys as heads, normalized if the family does. */
static ms__value project(ms__tape *tape, const ms__model *m, ms__value x, ms__value w, ms__value bias, uint64_t heads,
                         ms__value norm)
{
    ms__value flat = by_columns(tape, m, x, w, bias, heads * m->head_width), made;
    if (norm == 0) {
        made = ms__heads(tape, flat, heads, true);
    } else {
        /* Backward copies where heads become rows again: after the norm. */
        ms__value rows = ms__split_heads(tape, flat, heads);
        ms__value normal = ms__rms_norm(tape, rows, norm);
        made = ms__heads(tape, normal, heads, false);
        ms__drop(tape, normal);
        ms__drop(tape, rows);
    }
    ms__drop(tape, flat);
    return made;
}

static ms__value rotate(ms__tape *tape, ms__value x, ms__value cos, ms__value sin)
{
    ms__value straight = ms__mul(tape, x, cos), turned = ms__rotate_half(tape, x);
    ms__value crossed = ms__mul(tape, turned, sin);
    ms__drop(tape, turned);
    ms__value out = ms__add(tape, straight, crossed);
    ms__drop(tape, straight);
    ms__drop(tape, crossed);
    return out;
}

static ms__value attend(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value stream, const frame *at)
{
    ms__value x = enter_columns(tape, m, stream);
    ms__value q = project(tape, m, x, w->q, w->q_bias, m->heads, w->q_norm);
    ms__value k = project(tape, m, x, w->k, w->k_bias, m->key_heads, w->k_norm);
    ms__value flat = by_columns(tape, m, x, w->v, w->v_bias, m->key_heads * m->head_width);
    /* If heads are repeated, the sum of their gradients is laid out by heads. */
    ms__value v = ms__heads(tape, flat, m->key_heads, at->mask != 0 && m->heads != m->key_heads);
    ms__drop(tape, flat);
    ms__value q_turned = rotate(tape, q, at->cos, at->sin), k_turned = rotate(tape, k, at->cos, at->sin);
    ms__drop(tape, q);
    ms__drop(tape, k);
    ms__value mixed = ms__attention(tape, q_turned, k_turned, v, at->mask);
    ms__value out = leave_rows(tape, m, ms__linear(tape, mixed, w->o, w->o_bias, m->width));
    ms__drop(tape, mixed);
    ms__drop(tape, q_turned);
    ms__drop(tape, k_turned);
    ms__drop(tape, v);
    ms__drop(tape, x);
    return out;
}

static ms__value feed_forward(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value stream)
{
    ms__value x = enter_columns(tape, m, stream);
    ms__value gate = by_columns(tape, m, x, w->gate, w->gate_bias, m->inner);
    ms__value open = ms__activate(tape, gate, m->activation);
    ms__drop(tape, gate);
    ms__value up = by_columns(tape, m, x, w->up, w->up_bias, m->inner), both = ms__mul(tape, open, up);
    ms__drop(tape, open);
    ms__drop(tape, up);
    ms__value out = leave_rows(tape, m, ms__linear(tape, both, w->down, w->down_bias, m->width));
    ms__drop(tape, both);
    ms__drop(tape, x);
    return out;
}

static ms__value run_layer(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value x, const frame *at)
{
    ms__value normal = ms__rms_norm(tape, x, w->norm);
    ms__value mixed = attend(tape, m, w, normal, at);
    ms__drop(tape, normal);
    ms__value middle = ms__add(tape, x, mixed);
    ms__drop(tape, mixed);
    normal = ms__rms_norm(tape, middle, w->mlp_norm);
    ms__value fed = feed_forward(tape, m, w, normal);
    ms__drop(tape, normal);
    ms__value out = ms__add(tape, middle, fed);
    ms__drop(tape, fed);
    ms__drop(tape, middle);
    return out;
}

/* Cosines and sines of all positions. */
static void make_rotations(ms__tape *tape, const ms__model *m, ms__value frequencies, frame *at)
{
    ms__shape half = MS__SHAPE(m->seq, m->head_width / 2), whole = MS__SHAPE(m->seq, m->head_width);
    ms__value as_floats = ms__constant(tape, MS__SHAPE(m->seq), 4, at->positions, 0);
    ms__value angles = ms__constant(tape, half, 4, as_floats, frequencies);
    ms__drop(tape, as_floats);
    ms__value twice = ms__constant(tape, whole, 4, angles, angles), bare = ms__constant(tape, whole, 4, twice, 0);
    ms__value cos = ms__constant(tape, whole, 4, bare, 0);
    ms__drop(tape, bare);
    bare = ms__constant(tape, whole, 4, twice, 0);
    ms__value sin = ms__constant(tape, whole, 4, bare, 0);
    ms__drop(tape, bare);
    at->cos = ms__convert(tape, cos, tape->real_bytes);
    at->sin = ms__convert(tape, sin, tape->real_bytes);
    ms__drop(tape, cos);
    ms__drop(tape, sin);
    ms__drop(tape, angles);
    ms__drop(tape, twice);
}

/* Reads the last position and compares it with the longest and the original length. */
static void look_at_length(ms__tape *tape, ms__value positions)
{
    ms__shape number = {.rank = 0};
    ms__value last = ms__constant(tape, number, 8, positions, 0), length = ms__constant(tape, number, 8, last, 0);
    ms__drop(tape, last);
    for (int i = 0; i < 2; i++) {
        ms__drop(tape, ms__constant(tape, number, 1, length, 0));
    }
    ms__drop(tape, length);
}

/* ---- windows ------------------------------------------------------------------------------ */

static bool has_windows(const ms__model *m)
{
    bool any = false;
    for (uint64_t i = 0; i < m->layers; i++) {
        any |= m->windowed[i];
    }
    return any;
}

/* 0, 1, ... with an offset added. */
static ms__value count_from(ms__tape *tape, uint64_t length)
{
    ms__value counted = ms__constant(tape, MS__SHAPE(length), 8, 0, 0);
    ms__value made = ms__constant(tape, MS__SHAPE(length), 8, counted, 0);
    ms__drop(tape, counted);
    return made;
}

/* The keys that each query sees, for one sample; all samples are alike. */
static ms__value make_mask(ms__tape *tape, const ms__model *m)
{
    ms__shape square = MS__SHAPE(m->seq, m->seq), number = {.rank = 0};
    ms__value samples = ms__constant(tape, MS__SHAPE(m->batch), 8, 0, 0);
    ms__value head = ms__constant(tape, MS__SHAPE(1), 8, 0, 0);
    ms__value queries = count_from(tape, m->seq), keys = count_from(tape, m->seq);
    ms__value all = ms__constant(tape, number, 1, queries, 0);
    ms__value first = ms__constant(tape, MS__SHAPE(m->seq), 8, queries, 0);
    ms__value near = ms__constant(tape, square, 1, keys, first);
    ms__drop(tape, first);
    ms__value inside = ms__constant(tape, square, 1, all, near);
    ms__drop(tape, near);
    ms__drop(tape, all);
    ms__value before = ms__constant(tape, square, 1, keys, queries);
    ms__value seen = ms__constant(tape, square, 1, inside, before);
    const ms__value ended[] = {before, inside, samples, head, queries, keys};
    for (size_t i = 0; i < sizeof ended / sizeof ended[0]; i++) {
        ms__drop(tape, ended[i]);
    }
    return seen;
}

/* Qwen makes each kind of mask that its layers need, Mistral its only one. */
static ms__value look_for_mask(ms__tape *tape, const ms__model *m, ms__value positions)
{
    bool windowed = has_windows(m);
    for (int i = 0; i < (windowed && m->family != MS__MISTRAL ? 2 : 1); i++) {
        ms__look_for_packing(tape, m, positions);
    }
    return windowed && m->seq >= m->window ? make_mask(tape, m) : 0;
}

/* ---- the model ------------------------------------------------------------------------------ */

/* Reports the layer's arguments in the order of its family. */
static void enter_layer(ms__tape *tape, const ms__model *m, uint64_t index, ms__value x, const frame *at)
{
    ms__value inputs[5] = {x};
    size_t count = 1;
    bool positions_first = m->family == MS__MISTRAL;
    if (at->mask != 0) {
        inputs[count++] = at->mask;
    }
    if (positions_first) {
        inputs[count++] = at->positions;
    }
    inputs[count++] = at->cos;
    inputs[count++] = at->sin;
    if (!positions_first) {
        inputs[count++] = at->positions;
    }
    ms__enter_layer(tape, "model.layers.", index, count, inputs);
}

static ms__value run_layers(ms__tape *tape, const ms__model *m, ms__value embedded, const frame *shared)
{
    ms__value x = embedded;
    for (uint64_t i = m->first_layer; i < m->end_layer && tape->rc == MS_OK; i++) {
        frame at = *shared;
        at.mask = m->windowed[i] ? shared->mask : 0;
        layer_weights w = make_weights(tape, m);
        enter_layer(tape, m, i, x, &at);
        ms__value next = run_layer(tape, m, &w, x, &at);
        ms__leave_layer(tape, i + 1 == m->end_layer);
        if (x != embedded) {
            ms__drop(tape, x);
        }
        x = next;
    }
    return x;
}

/* In the order in which the model's variables end. */
static void drop_frame(ms__tape *tape, const ms__model *m, ms__value x, ms__value embedded, const frame *at)
{
    bool qwen = m->family == MS__QWEN2 || m->family == MS__QWEN3;
    const ms__value held[] = {x, at->mask, embedded, at->positions, at->sin, at->cos};
    const ms__value given[] = {x, at->positions, embedded, at->mask, at->sin, at->cos};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        ms__drop(tape, qwen ? held[i] : given[i]);
    }
}

/* What the stage begins with: the embedded words, or the stream of the stage before it. */
static ms__value begin_stage(ms__tape *tape, const ms__model *m, ms__value embedding, ms__value input)
{
    uint64_t tokens = m->by_sequence ? m->seq / m->shares : m->seq;
    if (m->first_layer > 0) {
        return ms__received(tape, MS__SHAPE(m->batch, tokens, m->width), m->microbatches, true);
    }
    ms__value words = ms__divided_embedding(tape, embedding, input, m->vocabulary);
    return m->shares > 1 ? leave_rows(tape, m, words) : words;
}

static ms__value end_stage(ms__tape *tape, const ms__model *m, ms__value normal, ms__value head, ms__value labels,
                           ms__value *loss)
{
    ms__value x = enter_columns(tape, m, normal), logits;
    if (m->shares == 1) {
        logits = ms__logits(tape, x, head, 0, m->words);
        *loss = ms__loss(tape, logits, labels, true);
    } else {
        logits = by_columns(tape, m, x, head, 0, m->words);
        *loss = ms__divided_loss(tape, logits, labels);
    }
    ms__drop(tape, x);
    return logits;
}

void ms__write_decoder(ms__tape *tape, const ms__model *m)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq), frequencies_of = MS__SHAPE(m->head_width / 2);
    bool is_first = m->first_layer == 0, is_last = m->end_layer == m->layers;
    ms__value input = is_first ? ms__resident(tape, ids, 8, MS_RESIDENT_BATCH) : 0;
    ms__value labels = is_last ? ms__resident(tape, ids, 8, MS_RESIDENT_BATCH) : 0;
    ms__value embedding = is_first ? ms__parameter(tape, MS__SHAPE(m->words, m->width)) : 0;
    ms__value norm = is_last ? ms__parameter(tape, MS__SHAPE(m->width)) : 0;
    ms__value head = m->tied ? embedding : is_last ? ms__parameter(tape, MS__SHAPE(m->words, m->width)) : 0;
    ms__value frequencies = ms__resident(tape, frequencies_of, 4, MS_RESIDENT_BUFFER);
    ms__resident(tape, frequencies_of, 4, MS_RESIDENT_BUFFER);
    ms__value embedded = begin_stage(tape, m, embedding, input), loss;
    frame shared = {.positions = count_from(tape, m->seq)};
    shared.mask = look_for_mask(tape, m, shared.positions);
    if (m->dynamic_rope) {
        look_at_length(tape, shared.positions);
    }
    make_rotations(tape, m, frequencies, &shared);
    ms__value x = run_layers(tape, m, embedded, &shared);
    if (!is_last) {
        ms__value out = ms__alias(tape, x, ms__shape_at(tape, x));
        drop_frame(tape, m, x, embedded, &shared);
        ms__finish_stage(tape, m, out);
        return;
    }
    ms__value normal = ms__rms_norm(tape, x, norm);
    drop_frame(tape, m, x, embedded, &shared);
    ms__value logits = end_stage(tape, m, normal, head, labels, &loss);
    ms__drop(tape, normal);
    ms__finish_step(tape, logits, loss);
}
