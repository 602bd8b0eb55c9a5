/*
 * Operators that exchange values among the ranks that divide each layer, as torch's DTensor runs them, and their
 * derivatives. A ring passes an all-reduced value around twice, a gathered or scattered one once.
 */
#include "base/units.h"
#include "predict/tape.h"

enum { FLOAT = 4, INTEGER = 8 };

static bool is_alone(const ms__tape *tape)
{
    return tape->ranks <= 1;
}

static void move(ms__tape *tape, ms__shape shape, uint32_t item_bytes, uint64_t rounds)
{
    uint64_t bytes = ms__mul_sat(ms__mul_sat(ms__shape_items(&shape), item_bytes), rounds);
    tape->moved_bytes = ms__add_sat(tape->moved_bytes, bytes);
}

/* A collective's result; copies are what moving its bytes costs. */
static ms__value copy_of(ms__tape *tape, ms__value a, ms__shape shape)
{
    ms__value out = ms__fresh(tape, shape, ms__item_at(tape, a));
    MS__RAN(tape, "aten.clone.default", 1, 1, a, out);
    return out;
}

static ms__value all_reduce(ms__tape *tape, ms__value a)
{
    ms__shape shape = ms__shape_at(tape, a);
    move(tape, shape, ms__item_at(tape, a), 2);
    return copy_of(tape, a, shape);
}

/* Ranks' tokens arrive one rank after the other, and are laid out by samples. One sample is already. */
static ms__value all_gather(ms__tape *tape, ms__value a)
{
    ms__shape shape = ms__shape_at(tape, a);
    shape.size[1] *= tape->ranks;
    move(tape, shape, ms__item_at(tape, a), 1);
    ms__value by_ranks = copy_of(tape, a, shape);
    if (shape.size[0] == 1) {
        return by_ranks;
    }
    ms__value out = copy_of(tape, by_ranks, shape);
    ms__drop(tape, by_ranks);
    return out;
}

static ms__value reduce_scatter(ms__tape *tape, ms__value a)
{
    ms__shape whole = ms__shape_at(tape, a), part = whole;
    part.size[1] /= tape->ranks;
    move(tape, whole, ms__item_at(tape, a), 1);
    ms__value by_ranks = copy_of(tape, a, whole), out = copy_of(tape, by_ranks, part);
    ms__drop(tape, by_ranks);
    return out;
}

static ms__value same(ms__tape *tape, ms__value a)
{
    return ms__alias(tape, a, ms__shape_at(tape, a));
}

ms__value ms__spread(ms__tape *tape, ms__value a)
{
    int32_t f = is_alone(tape) ? MS__NO_FUNCTION : MS__OPEN(tape, MS__D_SPREAD, a);
    ms__value out = same(tape, a);
    ms__close(tape, f, out);
    return out;
}

/* Records a collective of the ranks that share a layer. A rank that has the layer alone needs none. */
static ms__value together(ms__tape *tape, ms__value a, ms__derivative derivative,
                          ms__value (*collective)(ms__tape *tape, ms__value a))
{
    if (is_alone(tape)) {
        return same(tape, a);
    }
    int32_t f = MS__OPEN(tape, derivative, a);
    ms__value out = collective(tape, a);
    ms__close(tape, f, out);
    return out;
}

/* Every rank's gradient is that of the sum. */
ms__value ms__reduced(ms__tape *tape, ms__value a)
{
    return together(tape, a, MS__D_PASS, all_reduce);
}

ms__value ms__gathered(ms__tape *tape, ms__value a)
{
    return together(tape, a, MS__D_GATHER, all_gather);
}

ms__value ms__scattered(ms__tape *tape, ms__value a)
{
    return together(tape, a, MS__D_SCATTER, reduce_scatter);
}

/* torch makes the gradient of all words, and the rank's own part is a view of it. */
static void widen_gradient(ms__tape *tape, ms__value embedded, uint64_t words)
{
    int32_t f = tape->rc == MS_OK ? tape->values.items[embedded].function : MS__NO_FUNCTION;
    if (f >= 0) {
        tape->functions.items[f].operands[0].size[0] = words;
    }
}

ms__value ms__divided_embedding(ms__tape *tape, ms__value weight, ms__value index, uint64_t words)
{
    if (is_alone(tape)) {
        return ms__embedding(tape, weight, index);
    }
    ms__shape ids = ms__shape_at(tape, index);
    ms__value absent = ms__constant(tape, ids, 1, index, 0), shifted = ms__constant(tape, ids, INTEGER, index, absent);
    ms__value out = ms__embedding(tape, weight, shifted);
    widen_gradient(tape, out, words);
    ms__drop(tape, shifted);
    ms__drop(tape, absent);
    return out;
}

/* ---- the loss ----------------------------------------------------------------------------- */

static ms__shape rows_of(ms__shape shape)
{
    shape.size[shape.rank - 1] = 1;
    return shape;
}

/* Each rank's largest logit and sum of exponentials are reduced; its part of the result follows. */
static ms__value divided_softmax(ms__tape *tape, ms__value logits)
{
    ms__shape shape = ms__shape_at(tape, logits), rows = rows_of(shape);
    int32_t f = MS__OPEN(tape, MS__D_NONE, logits);
    ms__value largest = ms__constant(tape, rows, FLOAT, logits, 0);
    ms__value shifted = ms__constant(tape, shape, FLOAT, logits, largest);
    ms__value powers = ms__constant(tape, shape, FLOAT, shifted, 0), sums = ms__constant(tape, rows, FLOAT, powers, 0);
    ms__drop(tape, powers);
    ms__value out = ms__constant(tape, shape, FLOAT, shifted, sums);
    ms__close(tape, f, out);
    ms__save(tape, f, out);
    move(tape, rows, FLOAT, 4);
    ms__drop(tape, sums);
    ms__drop(tape, shifted);
    ms__drop(tape, largest);
    return out;
}

ms__value ms__divided_loss(ms__tape *tape, ms__value logits, ms__value labels)
{
    ms__shape number = {.rank = 0};
    ms__value longer = 0, target = ms__next_labels(tape, labels, &longer);
    ms__value wide = ms__convert(tape, logits, FLOAT), logs = divided_softmax(tape, wide);
    ms__drop(tape, wide);
    int32_t f = MS__OPEN(tape, MS__D_DIVIDED_LOSS, logs, target);
    ms__save(tape, f, logs);
    ms__save(tape, f, target);
    ms__value loss = ms__fresh(tape, number, FLOAT);
    MS__RAN(tape, "aten.nll_loss_forward.default", 2, 1, logs, target, loss);
    ms__close(tape, f, loss);
    move(tape, ms__shape_at(tape, labels), FLOAT, 2);
    ms__drop(tape, logs);
    ms__drop(tape, longer);
    ms__drop(tape, target);
    return loss;
}

/* -1 at the targets, plus the softmax, times the gradient: each a new value of the logits' size. */
static ms__value loss_back(ms__tape *tape, const ms__function *f, ms__value gradient)
{
    ms__shape shape = f->operands[0];
    ms__value targets = ms__constant(tape, shape, FLOAT, gradient, 0);
    ms__value softmax = ms__constant(tape, shape, FLOAT, targets, 0);
    ms__value sum = ms__constant(tape, shape, FLOAT, targets, softmax);
    ms__drop(tape, softmax);
    ms__value out = ms__constant(tape, shape, FLOAT, sum, gradient);
    ms__drop(tape, sum);
    ms__drop(tape, targets);
    return out;
}

ms__value ms__exchange_back(ms__tape *tape, const ms__function *f, ms__value gradient)
{
    switch ((ms__derivative)f->kind) {
    case MS__D_SPREAD:
        return all_reduce(tape, gradient);
    case MS__D_GATHER:
        return reduce_scatter(tape, gradient);
    case MS__D_SCATTER:
        return all_gather(tape, gradient);
    case MS__D_DIVIDED_LOSS:
        return loss_back(tape, f, gradient);
    default:
        return same(tape, gradient);
    }
}
