/*
 * GPT-2 with its language-model head as transformers runs it: learned positions, layer
 * norms, one product for queries, keys and values, dropout if configured.
 */
#include "predict/models.h"

typedef struct block_weights {
    ms__value norm, norm_bias, qkv, qkv_bias, out, out_bias, mlp_norm, mlp_norm_bias, fc, fc_bias, proj, proj_bias;
} block_weights;

static block_weights make_weights(ms__tape *tape, const ms__model *m)
{
    ms__shape wide = MS__SHAPE(m->width);
    return (block_weights){
        .norm = ms__parameter(tape, wide),
        .norm_bias = ms__parameter(tape, wide),
        .qkv = ms__parameter(tape, MS__SHAPE(m->width, 3 * m->width)),
        .qkv_bias = ms__parameter(tape, MS__SHAPE(3 * m->width)),
        .out = ms__parameter(tape, MS__SHAPE(m->width, m->width)),
        .out_bias = ms__parameter(tape, wide),
        .mlp_norm = ms__parameter(tape, wide),
        .mlp_norm_bias = ms__parameter(tape, wide),
        .fc = ms__parameter(tape, MS__SHAPE(m->width, m->inner)),
        .fc_bias = ms__parameter(tape, MS__SHAPE(m->inner)),
        .proj = ms__parameter(tape, MS__SHAPE(m->inner, m->width)),
        .proj_bias = ms__parameter(tape, wide),
    };
}

static ms__value attend(ms__tape *tape, const ms__model *m, const block_weights *w, ms__value x)
{
    ms__value all = ms__linear(tape, x, w->qkv, w->qkv_bias, 3 * m->width), parts[3], q, k, v;
    int32_t split = ms__split(tape, all);
    for (int i = 0; i < 3; i++) {
        parts[i] = ms__part(tape, all, split, i);
    }
    ms__drop(tape, all);
    k = ms__heads(tape, parts[1], m->heads, false);
    v = ms__heads(tape, parts[2], m->heads, m->drops_attention);
    q = ms__heads(tape, parts[0], m->heads, m->drops_attention);
    for (int i = 0; i < 3; i++) {
        ms__drop(tape, parts[i]);
    }
    ms__value mixed =
        m->drops_attention ? ms__attention_with_dropout(tape, q, k, v, true) : ms__attention(tape, q, k, v, 0);
    ms__value projected = ms__linear(tape, mixed, w->out, w->out_bias, m->width);
    ms__drop(tape, mixed);
    ms__value out = ms__dropout(tape, projected, m->drops_residuals);
    ms__drop(tape, projected);
    ms__drop(tape, q);
    ms__drop(tape, k);
    ms__drop(tape, v);
    return out;
}

static ms__value feed_forward(ms__tape *tape, const ms__model *m, const block_weights *w, ms__value x)
{
    ms__value wide = ms__linear(tape, x, w->fc, w->fc_bias, m->inner), active = ms__activate(tape, wide, m->activation);
    ms__drop(tape, wide);
    ms__value narrow = ms__linear(tape, active, w->proj, w->proj_bias, m->width);
    ms__drop(tape, active);
    ms__value out = ms__dropout(tape, narrow, m->drops_residuals);
    ms__drop(tape, narrow);
    return out;
}

static ms__value run_block(ms__tape *tape, const ms__model *m, const block_weights *w, ms__value x)
{
    ms__value normal = ms__layer_norm(tape, x, w->norm, w->norm_bias), mixed = attend(tape, m, w, normal);
    ms__value middle = ms__add(tape, mixed, x);
    ms__drop(tape, normal);
    normal = ms__layer_norm(tape, middle, w->mlp_norm, w->mlp_norm_bias);
    ms__value fed = feed_forward(tape, m, w, normal), out = ms__add(tape, middle, fed);
    ms__drop(tape, normal);
    ms__drop(tape, middle);
    ms__drop(tape, mixed);
    ms__drop(tape, fed);
    return out;
}

static ms__value run_blocks(ms__tape *tape, const ms__model *m, ms__value x, ms__value positions)
{
    for (uint64_t i = 0; i < m->layers && tape->rc == MS_OK; i++) {
        const ms__value inputs[] = {x, positions};
        block_weights w = make_weights(tape, m);
        ms__enter_layer(tape, "transformer.h.", i, 2, inputs);
        ms__value next = run_block(tape, m, &w, x);
        ms__leave_layer(tape, i + 1 == m->layers);
        ms__drop(tape, x);
        x = next;
    }
    return x;
}

void ms__write_gpt2(ms__tape *tape, const ms__model *m)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq), wide = MS__SHAPE(m->width);
    ms__value input = ms__resident(tape, ids, 8, MS_RESIDENT_BATCH),
              labels = ms__resident(tape, ids, 8, MS_RESIDENT_BATCH);
    ms__value words = ms__parameter(tape, MS__SHAPE(m->vocabulary, m->width));
    ms__value places = ms__parameter(tape, MS__SHAPE(m->positions, m->width));
    ms__value norm = ms__parameter(tape, wide), norm_bias = ms__parameter(tape, wide);
    ms__value head = m->tied ? words : ms__parameter(tape, MS__SHAPE(m->vocabulary, m->width));
    ms__value embedded = ms__embedding(tape, words, input);
    ms__value counted = ms__constant(tape, MS__SHAPE(1, m->seq), 8, 0, 0);
    ms__value positions = ms__constant(tape, MS__SHAPE(1, m->seq), 8, counted, 0);
    ms__drop(tape, counted);
    ms__value placed = ms__embedding(tape, places, positions), sum = ms__add(tape, embedded, placed);
    ms__look_for_packing(tape, m, positions);
    ms__value x = ms__dropout(tape, sum, m->drops_embeddings);
    ms__drop(tape, sum);
    x = run_blocks(tape, m, x, positions);
    ms__value normal = ms__layer_norm(tape, x, norm, norm_bias);
    const ms__value ended[] = {x, positions, embedded, placed};
    for (size_t i = 0; i < sizeof ended / sizeof ended[0]; i++) {
        ms__drop(tape, ended[i]);
    }
    ms__value logits = ms__logits(tape, normal, head, 0, m->vocabulary), loss = ms__loss(tape, logits, labels, true);
    ms__drop(tape, normal);
    ms__finish_step(tape, logits, loss);
}
