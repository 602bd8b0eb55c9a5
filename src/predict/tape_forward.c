/*
 * Operators as torch dispatches them on a CPU in forward: their allocations and autograd's saves, in torch's order.
 * tape_backward.c has the derivatives.
 */
#include "base/units.h"
#include "predict/tape.h"

enum { FLOAT = 4, INTEGER = 8 };

/* A result of a function's shape and its first operand's type, by one operator over up to three operands. */
static ms__value float_result(ms__tape *tape, const char *name, ms__shape shape, ms__value a, ms__value b, ms__value c)
{
    ms__value out = ms__fresh(tape, shape, ms__item_at(tape, a));
    MS__RAN(tape, name, 3, 1, a, b, c, out);
    return out;
}

ms__value ms__constant(ms__tape *tape, ms__shape shape, uint32_t item_bytes, ms__value a, ms__value b)
{
    ms__value out = ms__fresh(tape, shape, item_bytes);
    MS__RAN(tape, "aten.constant", 2, 1, a, b, out);
    return out;
}

/* True if transposing [b, s, h, d] to [b, h, s, d] changes the layout. */
static bool transpose_moves(uint64_t length, uint64_t heads)
{
    return length > 1 && heads > 1;
}

/* True if transposed heads must be copied to form one batch of matrices; those of a single sample already do. */
static bool heads_need_copy(const ms__shape *heads)
{
    return heads->size[0] > 1 && transpose_moves(heads->size[2], heads->size[1]);
}

/* [b, h, s, d] laid out row by row: a copy if it is not already. */
static ms__value laid_out(ms__tape *tape, ms__value a, bool copies, bool copied_back)
{
    if (!copies) {
        return ms__alias(tape, a, ms__shape_at(tape, a));
    }
    int32_t f = MS__OPEN(tape, copied_back ? MS__D_COPY : MS__D_PASS, a);
    ms__value out = float_result(tape, "aten.clone.default", ms__shape_at(tape, a), a, 0, 0);
    ms__close(tape, f, out);
    return out;
}

ms__value ms__convert(ms__tape *tape, ms__value a, uint32_t item_bytes)
{
    ms__shape shape = ms__shape_at(tape, a);
    if (ms__item_at(tape, a) == item_bytes) {
        return ms__alias(tape, a, shape);
    }
    int32_t f = MS__OPEN(tape, MS__D_CONVERT, a);
    ms__value out = ms__fresh(tape, shape, item_bytes);
    MS__RAN(tape, "aten._to_copy.default", 1, 1, a, out);
    ms__close(tape, f, out);
    return out;
}

ms__value ms__embedding(ms__tape *tape, ms__value weight, ms__value index)
{
    ms__shape shape = ms__shape_at(tape, index);
    shape.size[shape.rank++] = ms__shape_at(tape, weight).size[1];
    int32_t f = MS__OPEN(tape, MS__D_EMBEDDING, weight, index);
    ms__save(tape, f, index);
    ms__value out = float_result(tape, "aten.embedding.default", shape, weight, index, 0);
    ms__close(tape, f, out);
    return out;
}

/* The shape that two operands are broadcast to: that of more elements, then of more dimensions. */
static ms__shape larger_of(const ms__tape *tape, ms__value a, ms__value b)
{
    ms__shape left = ms__shape_at(tape, a), right = ms__shape_at(tape, b);
    uint64_t items = ms__shape_items(&left), others = ms__shape_items(&right);
    return others > items || (others == items && right.rank > left.rank) ? right : left;
}

ms__value ms__add(ms__tape *tape, ms__value a, ms__value b)
{
    int32_t f = MS__OPEN(tape, MS__D_ADD, a, b);
    ms__value out = float_result(tape, "aten.add.Tensor", larger_of(tape, a, b), a, b, 0);
    ms__close(tape, f, out);
    return out;
}

static bool differentiable(const ms__tape *tape, ms__value a)
{
    return a < tape->values.count && tape->values.items[a].function != MS__NO_FUNCTION;
}

ms__value ms__mul(ms__tape *tape, ms__value a, ms__value b)
{
    int32_t f = MS__OPEN(tape, MS__D_MUL, a, b);
    if (differentiable(tape, a)) {
        ms__save(tape, f, b);
    }
    if (differentiable(tape, b)) {
        ms__save(tape, f, a);
    }
    ms__value out = float_result(tape, "aten.mul.Tensor", larger_of(tape, a, b), a, b, 0);
    ms__close(tape, f, out);
    return out;
}

static ms__value by_number(ms__tape *tape, ms__value a, ms__derivative kind)
{
    int32_t f = MS__OPEN(tape, kind, a);
    ms__value out = float_result(tape, "aten.mul.Scalar", ms__shape_at(tape, a), a, 0, 0);
    ms__close(tape, f, out);
    return out;
}

ms__value ms__scale(ms__tape *tape, ms__value a)
{
    return by_number(tape, a, MS__D_SCALE);
}

ms__value ms__shift(ms__tape *tape, ms__value a)
{
    return by_number(tape, a, MS__D_PASS);
}

ms__value ms__power(ms__tape *tape, ms__value a)
{
    int32_t f = MS__OPEN(tape, MS__D_POWER, a);
    ms__save(tape, f, a);
    ms__value out = float_result(tape, "aten.pow.Tensor_Scalar", ms__shape_at(tape, a), a, 0, 0);
    ms__close(tape, f, out);
    return out;
}

/* Over the last dimension, which stays with size 1. */
static ms__value mean_of_rows(ms__tape *tape, ms__value a)
{
    ms__shape shape = ms__shape_at(tape, a);
    shape.size[shape.rank - 1] = 1;
    int32_t f = MS__OPEN(tape, MS__D_MEAN, a);
    ms__value out = float_result(tape, "aten.mean.dim", shape, a, 0, 0);
    ms__close(tape, f, out);
    return out;
}

static ms__value run_rsqrt(ms__tape *tape, ms__value a)
{
    int32_t f = MS__OPEN(tape, MS__D_RSQRT, a);
    ms__value out = float_result(tape, "aten.rsqrt.default", ms__shape_at(tape, a), a, 0, 0);
    ms__close(tape, f, out);
    ms__save(tape, f, out);
    return out;
}

ms__value ms__rms_norm(ms__tape *tape, ms__value a, ms__value weight)
{
    ms__value wide = ms__convert(tape, a, FLOAT), squares = ms__power(tape, wide);
    ms__value variance = mean_of_rows(tape, squares);
    ms__drop(tape, squares);
    ms__value shifted = ms__shift(tape, variance);
    ms__value scale = run_rsqrt(tape, shifted);
    ms__drop(tape, shifted);
    ms__value normal = ms__mul(tape, wide, scale);
    ms__drop(tape, scale);
    ms__drop(tape, wide);
    ms__value narrow = ms__convert(tape, normal, ms__item_at(tape, a)), out = ms__mul(tape, weight, narrow);
    ms__drop(tape, narrow);
    ms__drop(tape, normal);
    ms__drop(tape, variance);
    return out;
}

ms__value ms__layer_norm(ms__tape *tape, ms__value a, ms__value weight, ms__value bias)
{
    ms__shape shape = ms__shape_at(tape, a), rows = shape;
    rows.size[rows.rank - 1] = 1;
    int32_t f = MS__OPEN(tape, MS__D_NORM, a, weight, bias);
    ms__save(tape, f, a);
    ms__value out = ms__fresh(tape, shape, FLOAT), means = ms__fresh(tape, rows, FLOAT),
              scales = ms__fresh(tape, rows, FLOAT);
    MS__RAN(tape, "aten.native_layer_norm.default", 3, 3, a, weight, bias, out, means, scales);
    ms__close(tape, f, out);
    ms__save(tape, f, means);
    ms__save(tape, f, scales);
    ms__drop(tape, means);
    ms__drop(tape, scales);
    return out;
}

static ms__value half_of_rows(ms__tape *tape, ms__value a)
{
    ms__shape shape = ms__shape_at(tape, a);
    shape.size[shape.rank - 1] /= 2;
    int32_t f = MS__OPEN(tape, MS__D_HALF, a);
    ms__value out = ms__alias(tape, a, shape);
    ms__close(tape, f, out);
    return out;
}

ms__value ms__rotate_half(ms__tape *tape, ms__value a)
{
    ms__value left = half_of_rows(tape, a), right = half_of_rows(tape, a);
    ms__value minus = ms__scale(tape, right);
    int32_t f = MS__OPEN(tape, MS__D_JOIN, minus, left);
    ms__value out = float_result(tape, "aten.cat.default", ms__shape_at(tape, a), minus, left, 0);
    ms__close(tape, f, out);
    ms__drop(tape, minus);
    ms__drop(tape, left);
    ms__drop(tape, right);
    return out;
}

/* One operator whose derivative reads its input or its result. */
/* The operator that torch runs in backward. The time of the others follows from their bytes, so their names do not
 * matter. */
static const char *derivative_of(const char *name)
{
    if (strcmp(name, "aten.gelu.default") == 0) {
        return "aten.gelu_backward.default";
    }
    if (strcmp(name, "aten.gelu_tanh.default") == 0) {
        return "aten.gelu_tanh_backward.default";
    }
    if (strcmp(name, "aten._log_softmax.default") == 0) {
        return "aten._log_softmax_backward_data.default";
    }
    return "aten.unary_backward.default";
}

static ms__value run_unary(ms__tape *tape, ms__value a, const char *name, bool saves_result)
{
    int32_t f = MS__OPEN(tape, MS__D_UNARY, a);
    if (f >= 0) {
        tape->functions.items[f].derivative = derivative_of(name);
    }
    if (!saves_result) {
        ms__save(tape, f, a);
    }
    ms__value out = float_result(tape, name, ms__shape_at(tape, a), a, 0, 0);
    ms__close(tape, f, out);
    if (saves_result) {
        ms__save(tape, f, out);
    }
    return out;
}

/* Hugging Face's "gelu_new": the tanh form by single operators. */
static ms__value gelu_new(ms__tape *tape, ms__value a)
{
    ms__value halved = ms__scale(tape, a), cube = ms__power(tape, a), scaled = ms__scale(tape, cube);
    ms__drop(tape, cube);
    ms__value sum = ms__add(tape, a, scaled);
    ms__drop(tape, scaled);
    ms__value inner = ms__scale(tape, sum);
    ms__drop(tape, sum);
    ms__value tanh = run_unary(tape, inner, "aten.tanh.default", true);
    ms__drop(tape, inner);
    ms__value one_more = ms__shift(tape, tanh);
    ms__drop(tape, tanh);
    ms__value out = ms__mul(tape, halved, one_more);
    ms__drop(tape, halved);
    ms__drop(tape, one_more);
    return out;
}

ms__value ms__activate(ms__tape *tape, ms__value a, ms__activation kind)
{
    switch (kind) {
    case MS__GELU_NEW:
        return gelu_new(tape, a);
    case MS__RELU:
        return run_unary(tape, a, "aten.relu.default", true);
    case MS__GELU_TANH:
        return run_unary(tape, a, "aten.gelu_tanh.default", false);
    default:
        return run_unary(tape, a, kind == MS__SILU ? "aten.silu.default" : "aten.gelu.default", false);
    }
}

static ms__shape rows_of(ms__shape shape)
{
    uint64_t width = shape.rank > 0 ? shape.size[shape.rank - 1] : 1;
    uint64_t items = ms__shape_items(&shape);
    return MS__SHAPE(width == 0 ? 0 : items / width, width);
}

ms__value ms__linear(ms__tape *tape, ms__value a, ms__value weight, ms__value bias, uint64_t out_width)
{
    ms__shape shape = ms__shape_at(tape, a), matrix = rows_of(shape);
    shape.size[shape.rank - 1] = matrix.size[1] = out_width;
    int32_t f = MS__OPEN(tape, MS__D_LINEAR, a, weight, bias);
    ms__save(tape, f, a);
    ms__value rows = ms__alias(tape, a, rows_of(ms__shape_at(tape, a))),
              product = ms__fresh(tape, matrix, ms__item_at(tape, a));
    if (bias != 0) {
        MS__RAN(tape, "aten.addmm.default", 3, 1, bias, rows, weight, product);
    } else {
        MS__RAN(tape, "aten.mm.default", 2, 1, rows, weight, product);
    }
    ms__value out = ms__alias(tape, product, shape);
    ms__close(tape, f, out);
    ms__drop(tape, rows);
    ms__drop(tape, product);
    return out;
}

ms__value ms__logits(ms__tape *tape, ms__value a, ms__value weight, ms__value bias, uint64_t vocabulary)
{
    uint64_t product = 0, width = ms__shape_at(tape, weight).size[1];
    ms__value out = ms__linear(tape, a, weight, bias, vocabulary);
    if (tape->rc == MS_OK && vocabulary > width) {
        ms__fail_tape(tape, ms_trace_head(tape->trace, ms__key_of(tape, out), &product, tape->err));
    }
    if (tape->rc == MS_OK && tape->functions.count > 0) {
        tape->functions.items[tape->functions.count - 1].product = product;
    }
    return out;
}

static ms__value view_of(ms__tape *tape, ms__value a, ms__shape shape, bool copied_back)
{
    int32_t f = MS__OPEN(tape, copied_back ? MS__D_COPY : MS__D_PASS, a);
    ms__value out = ms__alias(tape, a, shape);
    ms__close(tape, f, out);
    return out;
}

ms__value ms__split_heads(ms__tape *tape, ms__value a, uint64_t heads)
{
    ms__shape shape = ms__shape_at(tape, a);
    ms__shape split = MS__SHAPE(shape.size[0], shape.size[1], heads, shape.size[2] / heads);
    return view_of(tape, a, split, transpose_moves(shape.size[1], heads));
}

/* [b, s, width] as [b, h, s, d]. */
static ms__value heads_of(ms__tape *tape, ms__value a, uint64_t heads, bool copied_back)
{
    ms__shape shape = ms__shape_at(tape, a);
    uint64_t width = shape.rank == 4 ? shape.size[2] * shape.size[3] : shape.size[2];
    return view_of(tape, a, MS__SHAPE(shape.size[0], heads, shape.size[1], width / heads), copied_back);
}

ms__value ms__heads(ms__tape *tape, ms__value a, uint64_t heads, bool copied_back)
{
    return heads_of(tape, a, heads, copied_back && transpose_moves(ms__shape_at(tape, a).size[1], heads));
}

ms__value ms__turned_heads(ms__tape *tape, ms__value a, uint64_t heads)
{
    ms__shape shape = ms__shape_at(tape, a);
    bool several = shape.size[0] > 1 && shape.size[1] > 1, wide = shape.size[2] > 1;
    return heads_of(tape, a, heads, several && wide);
}

int32_t ms__split(ms__tape *tape, ms__value a)
{
    int32_t f = MS__OPEN(tape, MS__D_SPLIT, a);
    if (f >= 0) {
        tape->functions.items[f].shape = ms__shape_at(tape, a);
    }
    return f;
}

ms__value ms__part(ms__tape *tape, ms__value a, int32_t split, int index)
{
    ms__shape shape = ms__shape_at(tape, a);
    shape.size[shape.rank - 1] /= 3;
    int32_t f = MS__OPEN(tape, MS__D_PART, a);
    ms__value out = ms__alias(tape, a, shape);
    ms__close(tape, f, out);
    if (f >= 0) {
        tape->functions.items[f].edges[0] = split;
        tape->functions.items[f].part = index;
    }
    return out;
}

static ms__value joined_heads(ms__tape *tape, ms__value a)
{
    ms__shape shape = ms__shape_at(tape, a);
    ms__value out = view_of(tape, a, MS__SHAPE(shape.size[0], shape.size[2], shape.size[1] * shape.size[3]), false);
    ms__drop(tape, a);
    return out;
}

/* Heads of keys or values, each shared by several heads of queries: a copy, unless there is only one head. */
static ms__value repeat_heads(ms__tape *tape, ms__value a, uint64_t heads)
{
    ms__shape shape = ms__shape_at(tape, a), wide = shape;
    if (shape.size[1] == heads) {
        return ms__alias(tape, a, shape);
    }
    wide.size[1] = heads;
    int32_t f = MS__OPEN(tape, MS__D_REPEAT, a);
    ms__value seen = ms__alias(tape, a, wide);
    ms__value out =
        shape.size[1] > 1 ? float_result(tape, "aten.clone.default", wide, seen, 0, 0) : ms__alias(tape, a, wide);
    ms__drop(tape, seen);
    ms__close(tape, f, out);
    return out;
}

/* A float mask from a mask of bytes: 0, or the value that hides a score. */
static ms__value float_mask(ms__tape *tape, ms__value mask, ms__shape shape)
{
    ms__shape number = {.rank = 0};
    uint32_t item = tape->real_bytes;
    ms__value least = ms__constant(tape, number, item, 0, 0), zero = ms__constant(tape, number, item, 0, 0);
    ms__value made = ms__fresh(tape, shape, item);
    MS__RAN(tape, "aten.where.self", 3, 1, mask, zero, least, made);
    ms__drop(tape, zero);
    ms__drop(tape, least);
    return made;
}

static ms__value fused_attention(ms__tape *tape, ms__value q, ms__value k, ms__value v, ms__value mask)
{
    ms__shape shape = ms__shape_at(tape, q);
    int32_t f = MS__OPEN(tape, MS__D_ATTENTION, q, k, v);
    if (mask != 0) {
        ms__save(tape, f, mask);
    }
    ms__save(tape, f, k);
    ms__save(tape, f, q);
    ms__save(tape, f, v);
    ms__value out = ms__fresh(tape, shape, ms__item_at(tape, q));
    ms__value sums = ms__fresh(tape, MS__SHAPE(shape.size[0], shape.size[2], shape.size[1]), FLOAT);
    MS__RAN(tape, "aten._scaled_dot_product_flash_attention_for_cpu.default", 4, 2, q, k, v, mask, out, sums);
    ms__random(tape);
    ms__close(tape, f, out);
    ms__save(tape, f, sums);
    ms__save(tape, f, out);
    ms__drop(tape, sums);
    return joined_heads(tape, out);
}

ms__value ms__attention(ms__tape *tape, ms__value q, ms__value k, ms__value v, ms__value mask)
{
    ms__shape shape = ms__shape_at(tape, q);
    if (mask == 0) {
        return fused_attention(tape, q, k, v, 0);
    }
    ms__value keys = repeat_heads(tape, k, shape.size[1]), values = repeat_heads(tape, v, shape.size[1]);
    ms__shape square = MS__SHAPE(shape.size[0], 1, shape.size[2], shape.size[2]);
    ms__value of_all = ms__alias(tape, mask, square), added = float_mask(tape, of_all, square);
    ms__value out = fused_attention(tape, q, keys, values, added);
    ms__drop(tape, of_all);
    ms__drop(tape, added);
    ms__drop(tape, keys);
    ms__drop(tape, values);
    return out;
}

static ms__value batched_product(ms__tape *tape, ms__value a, ms__value b, uint64_t width)
{
    ms__shape shape = ms__shape_at(tape, a);
    shape.size[3] = width;
    int32_t f = MS__OPEN(tape, MS__D_PRODUCT, a, b);
    ms__save(tape, f, b);
    ms__save(tape, f, a);
    ms__value out = float_result(tape, "aten.bmm.default", shape, a, b, 0);
    ms__close(tape, f, out);
    return out;
}

/* The float mask of a causal model. */
static ms__value causal_mask(ms__tape *tape, uint64_t length)
{
    ms__shape square = MS__SHAPE(length, length);
    ms__value ones = ms__constant(tape, square, 1, 0, 0), lower = ms__constant(tape, square, 1, ones, 0);
    ms__drop(tape, ones);
    ms__value mask = float_mask(tape, lower, square);
    ms__drop(tape, lower);
    return mask;
}

static ms__value scores_of(ms__tape *tape, ms__value scaled, ms__value k)
{
    ms__shape shape = ms__shape_at(tape, k);
    bool copies = heads_need_copy(&shape);
    ms__value keys = ms__scale(tape, k);
    ms__value left = laid_out(tape, scaled, copies, false), right = laid_out(tape, keys, copies, false);
    ms__value scores = batched_product(tape, left, right, shape.size[2]);
    ms__drop(tape, right);
    ms__drop(tape, left);
    ms__drop(tape, keys);
    return scores;
}

ms__value ms__attention_with_dropout(ms__tape *tape, ms__value q, ms__value k, ms__value v, bool causal)
{
    uint64_t length = ms__shape_at(tape, q).size[2];
    bool copies = transpose_moves(length, ms__shape_at(tape, q).size[1]);
    ms__value scaled = ms__scale(tape, q), mask = causal && length > 1 ? causal_mask(tape, length) : 0;
    ms__value scores = scores_of(tape, scaled, k);
    if (mask != 0) {
        ms__value masked = ms__add(tape, scores, mask);
        ms__drop(tape, scores);
        scores = masked;
    }
    ms__value shares = run_unary(tape, scores, "aten._safe_softmax.default", true);
    ms__drop(tape, scores);
    ms__value kept = ms__dropout(tape, shares, true);
    ms__drop(tape, shares);
    ms__shape shape = ms__shape_at(tape, q);
    /* In a causal model, values are a third of wider rows, so they are not contiguous even for one token. */
    bool apart = causal && shape.size[0] > 1 && shape.size[1] > 1;
    ms__value values = laid_out(tape, v, apart || heads_need_copy(&shape), false);
    ms__value out = batched_product(tape, kept, values, ms__shape_at(tape, v).size[3]);
    ms__drop(tape, values);
    ms__drop(tape, scaled);
    ms__drop(tape, mask);
    ms__drop(tape, kept);
    ms__value lying = laid_out(tape, out, copies, heads_need_copy(&shape));
    ms__drop(tape, out);
    return joined_heads(tape, lying);
}

ms__value ms__dropout(ms__tape *tape, ms__value a, bool drops)
{
    ms__shape shape = ms__shape_at(tape, a);
    if (!drops) {
        return ms__alias(tape, a, shape);
    }
    ms__value noise = ms__fresh(tape, shape, FLOAT);
    MS__RAN(tape, "aten.empty_like.default", 1, 1, a, noise);
    MS__RAN(tape, "aten.bernoulli_.float", 1, 1, noise, noise);
    MS__RAN(tape, "aten.div_.Scalar", 1, 1, noise, noise);
    ms__random(tape);
    ms__value out = ms__mul(tape, a, noise);
    ms__drop(tape, noise);
    return out;
}

/* The marks of a cross entropy, for which the planner may substitute a loss head. The last function made the
 * logits. */
static uint64_t begin_head(ms__tape *tape, ms__value logits, uint64_t product)
{
    uint64_t head = 0;
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_loss(tape->trace, ms__key_of(tape, logits), &head, tape->err));
    }
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_head_used(tape->trace, product, head, tape->err));
    }
    return head;
}

static void end_head(ms__tape *tape, uint64_t head)
{
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_loss_end(tape->trace, head, tape->err));
    }
}

/* The last function is one end of the loss in backward. */
static void mark_head(ms__tape *tape, uint64_t head)
{
    if (tape->rc == MS_OK && tape->functions.count > 0) {
        tape->functions.items[tape->functions.count - 1].head = head;
    }
}

ms__value ms__next_labels(ms__tape *tape, ms__value labels, ms__value *longer)
{
    ms__shape ids = ms__shape_at(tape, labels), padded = ids;
    padded.size[1]++;
    *longer = ms__constant(tape, padded, INTEGER, labels, 0);
    ms__value next = ms__alias(tape, *longer, ids);
    /* One row is contiguous. */
    ms__value target = ids.size[0] > 1 ? ms__constant(tape, ids, INTEGER, next, 0) : ms__alias(tape, next, ids);
    ms__drop(tape, next);
    return target;
}

ms__value ms__loss(ms__tape *tape, ms__value logits, ms__value labels, bool shifted)
{
    ms__shape number = {.rank = 0};
    ms__value longer = 0;
    size_t made = tape->functions.count;
    bool converted = ms__item_at(tape, logits) != FLOAT;
    uint64_t product = made > 0 && !converted ? tape->functions.items[made - 1].product : 0;
    ms__value wide = ms__convert(tape, logits, FLOAT);
    ms__value target = shifted ? ms__next_labels(tape, labels, &longer) : labels;
    uint64_t head = begin_head(tape, wide, product);
    ms__value logs = run_unary(tape, wide, "aten._log_softmax.default", true);
    mark_head(tape, head);
    int32_t f = MS__OPEN(tape, MS__D_LOSS, logs, target);
    ms__save(tape, f, logs);
    ms__save(tape, f, target);
    ms__value loss = ms__fresh(tape, number, FLOAT), weight = ms__fresh(tape, number, FLOAT);
    MS__RAN(tape, "aten.nll_loss_forward.default", 2, 2, logs, target, loss, weight);
    ms__close(tape, f, loss);
    mark_head(tape, head);
    ms__save(tape, f, weight);
    ms__drop(tape, weight);
    ms__drop(tape, logs);
    end_head(tape, head);
    ms__drop(tape, wide);
    if (shifted) {
        ms__drop(tape, longer);
        ms__drop(tape, target);
    }
    return loss;
}
