/*
 * BERT for masked language modelling as transformers runs it: post-norm layers, bidirectional attention, a separate
 * head before the tied decoder.
 */
#include "predict/models.h"

typedef struct affine {
    ms__value weight, bias;
} affine;

typedef struct layer_weights {
    affine q, k, v, out, norm, wide, narrow, last_norm;
} layer_weights;

static affine make_linear(ms__tape *tape, uint64_t out, uint64_t in)
{
    affine made = {.weight = ms__parameter(tape, MS__SHAPE(out, in))};
    made.bias = ms__parameter(tape, MS__SHAPE(out));
    return made;
}

static affine make_norm(ms__tape *tape, uint64_t width)
{
    affine made = {.weight = ms__parameter(tape, MS__SHAPE(width))};
    made.bias = ms__parameter(tape, MS__SHAPE(width));
    return made;
}

static layer_weights make_weights(ms__tape *tape, const ms__model *m)
{
    layer_weights w;
    w.q = make_linear(tape, m->width, m->width);
    w.k = make_linear(tape, m->width, m->width);
    w.v = make_linear(tape, m->width, m->width);
    w.out = make_linear(tape, m->width, m->width);
    w.norm = make_norm(tape, m->width);
    w.wide = make_linear(tape, m->inner, m->width);
    w.narrow = make_linear(tape, m->width, m->inner);
    w.last_norm = make_norm(tape, m->width);
    return w;
}

static ms__value project(ms__tape *tape, const ms__model *m, affine with, ms__value x, bool is_key)
{
    ms__value flat = ms__linear(tape, x, with.weight, with.bias, m->width);
    ms__value heads = is_key && m->drops_attention ? ms__turned_heads(tape, flat, m->heads)
                                                   : ms__heads(tape, flat, m->heads, m->drops_attention);
    ms__drop(tape, flat);
    return heads;
}

/* A product, dropout, residual sum and norm. */
static ms__value finish_part(ms__tape *tape, const ms__model *m, affine with, affine norm, ms__value x,
                             ms__value residual)
{
    ms__value product = ms__linear(tape, x, with.weight, with.bias, m->width);
    ms__value dropped = ms__dropout(tape, product, m->drops_residuals);
    ms__drop(tape, product);
    ms__value sum = ms__add(tape, dropped, residual), out = ms__layer_norm(tape, sum, norm.weight, norm.bias);
    ms__drop(tape, sum);
    ms__drop(tape, dropped);
    return out;
}

static ms__value run_layer(ms__tape *tape, const ms__model *m, const layer_weights *w, ms__value x)
{
    ms__value q = project(tape, m, w->q, x, false), k = project(tape, m, w->k, x, true);
    ms__value v = project(tape, m, w->v, x, false);
    ms__value mixed =
        m->drops_attention ? ms__attention_with_dropout(tape, q, k, v, false) : ms__attention(tape, q, k, v, 0);
    ms__drop(tape, q);
    ms__drop(tape, k);
    ms__drop(tape, v);
    ms__value middle = finish_part(tape, m, w->out, w->norm, mixed, x);
    ms__drop(tape, mixed);
    ms__value wide = ms__linear(tape, middle, w->wide.weight, w->wide.bias, m->inner);
    ms__value active = ms__activate(tape, wide, m->activation);
    ms__drop(tape, wide);
    ms__value out = finish_part(tape, m, w->narrow, w->last_norm, active, middle);
    ms__drop(tape, active);
    ms__drop(tape, middle);
    return out;
}

static ms__value embed(ms__tape *tape, const ms__model *m, ms__value input, ms__value words)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq), buffer = MS__SHAPE(1, m->positions);
    ms__value places = ms__parameter(tape, MS__SHAPE(m->positions, m->width));
    ms__value types = ms__parameter(tape, MS__SHAPE(m->token_types, m->width));
    affine norm = make_norm(tape, m->width);
    ms__value positions = ms__resident(tape, buffer, 8, MS_RESIDENT_BUFFER);
    ms__value type_buffer = ms__resident(tape, buffer, 8, MS_RESIDENT_BUFFER);
    ms__value used = ms__alias(tape, positions, MS__SHAPE(1, m->seq));
    ms__value row = ms__constant(tape, MS__SHAPE(1, m->seq), 8, type_buffer, used), kinds = ms__alias(tape, row, ids);
    ms__drop(tape, row);
    ms__value of_words = ms__embedding(tape, words, input), of_types = ms__embedding(tape, types, kinds);
    ms__value two = ms__add(tape, of_words, of_types);
    ms__value of_places = ms__embedding(tape, places, used), sum = ms__add(tape, two, of_places);
    ms__drop(tape, two);
    ms__value normal = ms__layer_norm(tape, sum, norm.weight, norm.bias);
    ms__drop(tape, sum);
    ms__value out = ms__dropout(tape, normal, m->drops_embeddings);
    ms__drop(tape, normal);
    ms__drop(tape, of_words);
    ms__drop(tape, kinds);
    ms__drop(tape, of_types);
    ms__drop(tape, of_places);
    ms__drop(tape, used);
    return out;
}

static ms__value predict_words(ms__tape *tape, const ms__model *m, ms__value x, ms__value words)
{
    affine transform = make_linear(tape, m->width, m->width), norm = make_norm(tape, m->width);
    ms__value decoder = m->tied ? words : ms__parameter(tape, MS__SHAPE(m->vocabulary, m->width));
    ms__value bias = ms__parameter(tape, MS__SHAPE(m->vocabulary));
    if (!m->tied) {
        ms__parameter(tape, MS__SHAPE(m->vocabulary)); /* the head's own weight, unused if tied */
    }
    ms__value made = ms__linear(tape, x, transform.weight, transform.bias, m->width);
    ms__value active = ms__activate(tape, made, m->activation);
    ms__drop(tape, made);
    ms__value normal = ms__layer_norm(tape, active, norm.weight, norm.bias);
    ms__drop(tape, active);
    ms__value logits = ms__logits(tape, normal, decoder, bias, m->vocabulary);
    ms__drop(tape, normal);
    return logits;
}

void ms__write_bert(ms__tape *tape, const ms__model *m)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq);
    ms__value input = ms__resident(tape, ids, 8, MS_RESIDENT_BATCH),
              labels = ms__resident(tape, ids, 8, MS_RESIDENT_BATCH);
    ms__value words = ms__parameter(tape, MS__SHAPE(m->vocabulary, m->width));
    ms__value embedded = embed(tape, m, input, words), x = embedded;
    for (uint64_t i = 0; i < m->layers && tape->rc == MS_OK; i++) {
        layer_weights w = make_weights(tape, m);
        ms__enter_layer(tape, "bert.encoder.layer.", i, 1, &x);
        ms__value next = run_layer(tape, m, &w, x);
        ms__leave_layer(tape, i + 1 == m->layers);
        if (x != embedded) {
            ms__drop(tape, x);
        }
        x = next;
    }
    ms__drop(tape, embedded);
    ms__value logits = predict_words(tape, m, x, words), loss = ms__loss(tape, logits, labels, false);
    ms__drop(tape, x);
    ms__finish_step(tape, logits, loss);
}
