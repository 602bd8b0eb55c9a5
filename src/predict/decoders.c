/*
 * Llama, Mistral, Qwen2 and Qwen3 for causal language modelling as transformers runs them:
 * RMS norms by single operators, rotary positions, fused attention, gated MLP. Where a
 * value is dropped is where its Python variable ends.
 */
#include "predict/models.h"

typedef struct layer_weights {
    ms__value norm, q, q_bias, k, k_bias, v, v_bias, q_norm, k_norm, o, o_bias;
    ms__value mlp_norm, gate, gate_bias, up, up_bias, down, down_bias;
} layer_weights;

/* A weight (out, in) and its bias, where there is one. */
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

/* Queries or keys as heads, normalised where the family does. */
static ms__value project(ms__tape *tape, const ms__model *m, ms__value x, ms__value w, ms__value bias, uint64_t heads,
                         ms__value norm)
{
    ms__value flat = ms__linear(tape, x, w, bias, heads * m->head_width), made;
    if (norm == 0) {
        made = ms__heads(tape, flat, heads, true);
    } else {
        /* The copy in backward comes where heads become rows again: behind the norm. */
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

static ms__value attend(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value x, ms__value cos,
                        ms__value sin)
{
    ms__value q = project(tape, m, x, w->q, w->q_bias, m->heads, w->q_norm);
    ms__value k = project(tape, m, x, w->k, w->k_bias, m->key_heads, w->k_norm);
    ms__value flat = ms__linear(tape, x, w->v, w->v_bias, m->key_heads * m->head_width);
    ms__value v = ms__heads(tape, flat, m->key_heads, false);
    ms__drop(tape, flat);
    ms__value q_turned = rotate(tape, q, cos, sin), k_turned = rotate(tape, k, cos, sin);
    ms__drop(tape, q);
    ms__drop(tape, k);
    ms__value mixed = ms__attention(tape, q_turned, k_turned, v);
    ms__value out = ms__linear(tape, mixed, w->o, w->o_bias, m->width);
    ms__drop(tape, mixed);
    ms__drop(tape, q_turned);
    ms__drop(tape, k_turned);
    ms__drop(tape, v);
    return out;
}

static ms__value feed_forward(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value x)
{
    ms__value gate = ms__linear(tape, x, w->gate, w->gate_bias, m->inner);
    ms__value open = ms__activate(tape, gate, m->activation);
    ms__drop(tape, gate);
    ms__value up = ms__linear(tape, x, w->up, w->up_bias, m->inner), both = ms__mul(tape, open, up);
    ms__drop(tape, open);
    ms__drop(tape, up);
    ms__value out = ms__linear(tape, both, w->down, w->down_bias, m->width);
    ms__drop(tape, both);
    return out;
}

static ms__value run_layer(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value x, ms__value cos,
                           ms__value sin)
{
    ms__value normal = ms__rms_norm(tape, x, w->norm);
    ms__value mixed = attend(tape, m, w, normal, cos, sin);
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
static void make_rotations(ms__tape *tape, const ms__model *m, ms__value positions, ms__value frequencies, ms__value *cos,
                           ms__value *sin)
{
    ms__shape half = MS__SHAPE(m->seq, m->head_width / 2), whole = MS__SHAPE(m->seq, m->head_width);
    ms__value as_floats = ms__constant(tape, MS__SHAPE(m->seq), 4, positions, 0);
    ms__value angles = ms__constant(tape, half, 4, as_floats, frequencies);
    ms__drop(tape, as_floats);
    ms__value twice = ms__constant(tape, whole, 4, angles, angles), bare = ms__constant(tape, whole, 4, twice, 0);
    *cos = ms__constant(tape, whole, 4, bare, 0);
    ms__drop(tape, bare);
    bare = ms__constant(tape, whole, 4, twice, 0);
    *sin = ms__constant(tape, whole, 4, bare, 0);
    ms__drop(tape, bare);
    ms__drop(tape, angles);
    ms__drop(tape, twice);
}

static ms__value run_layers(ms__tape *tape, const ms__model *m, ms__value embedded, ms__value positions, ms__value cos,
                            ms__value sin)
{
    ms__value x = embedded;
    const ms__value as_given[] = {0, cos, sin, positions}, mistral[] = {0, positions, cos, sin};
    for (uint64_t i = 0; i < m->layers && tape->rc == MS_OK; i++) {
        ms__value inputs[4];
        for (int k = 0; k < 4; k++) {
            inputs[k] = k == 0 ? x : m->family == MS__MISTRAL ? mistral[k] : as_given[k];
        }
        layer_weights w = make_weights(tape, m);
        ms__enter_layer(tape, "model.layers.", i, 4, inputs);
        ms__value next = run_layer(tape, m, &w, x, cos, sin);
        ms__leave_layer(tape, i + 1 == m->layers);
        if (x != embedded) {
            ms__drop(tape, x);
        }
        x = next;
    }
    return x;
}

void ms__write_decoder(ms__tape *tape, const ms__model *m)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq), frequencies_of = MS__SHAPE(m->head_width / 2);
    ms__value input = ms__resident(tape, ids, 8, MS_RESIDENT_BATCH), labels = ms__resident(tape, ids, 8, MS_RESIDENT_BATCH);
    ms__value embedding = ms__parameter(tape, MS__SHAPE(m->vocabulary, m->width));
    ms__value norm = ms__parameter(tape, MS__SHAPE(m->width));
    ms__value head = m->tied ? embedding : ms__parameter(tape, MS__SHAPE(m->vocabulary, m->width));
    ms__value frequencies = ms__resident(tape, frequencies_of, 4, MS_RESIDENT_BUFFER), cos = 0, sin = 0;
    ms__resident(tape, frequencies_of, 4, MS_RESIDENT_BUFFER);
    ms__value embedded = ms__embedding(tape, embedding, input);
    ms__value counted = ms__constant(tape, MS__SHAPE(m->seq), 8, 0, 0);
    ms__value positions = ms__constant(tape, MS__SHAPE(m->seq), 8, counted, 0);
    ms__drop(tape, counted);
    ms__look_for_packing(tape, m, positions);
    make_rotations(tape, m, positions, frequencies, &cos, &sin);
    ms__value x = run_layers(tape, m, embedded, positions, cos, sin);
    ms__value normal = ms__rms_norm(tape, x, norm);
    bool qwen = m->family == MS__QWEN2 || m->family == MS__QWEN3;
    const ms__value ended[] = {x, qwen ? embedded : positions, qwen ? positions : embedded, sin, cos};
    for (size_t i = 0; i < sizeof ended / sizeof ended[0]; i++) {
        ms__drop(tape, ended[i]);
    }
    ms__value logits = ms__logits(tape, normal, head, 0, m->vocabulary);
    ms__value loss = ms__loss(tape, logits, labels, true);
    ms__drop(tape, normal);
    ms__finish_step(tape, logits, loss);
}
