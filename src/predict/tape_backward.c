/*
 * The derivatives of tape_forward.c's operators, run like autograd: functions in reverse order of their creation.
 * Each function unpacks its saved tensors, computes its operands' gradients, releases its own gradient and its saved
 * tensors, and adds the new gradients to those already there.
 */
#include "base/units.h"
#include "predict/tape.h"

static ms__value gradient_result(ms__tape *tape, const char *name, ms__shape shape, ms__value a, ms__value b)
{
    ms__value out = ms__fresh(tape, shape, ms__item_at(tape, a));
    MS__RAN(tape, name, 2, 1, a, b, out);
    return out;
}

/* The same bytes in another shape, as an operand only. */
static ms__value seen_as(ms__tape *tape, ms__value of, ms__shape shape)
{
    ms__value seen = ms__alias(tape, of, shape);
    ms__drop(tape, seen);
    return seen;
}

/* A gradient that is another one's view. */
static ms__value view_of(ms__tape *tape, ms__value of, ms__shape shape)
{
    ms__value seen = ms__alias(tape, of, shape);
    if (seen != 0) {
        tape->values.items[seen].is_view = true;
    }
    return seen;
}

/* A saved tensor as an operand: only its bytes count. */
static ms__value saved_as(ms__tape *tape, ms__value any, const ms__function *function, int edge)
{
    return seen_as(tape, any, function->operands[edge]);
}

/* ---- gradients on their way ------------------------------------------------------------- */

static ms__value *slot_of(ms__tape *tape, int32_t edge, int part)
{
    return edge <= -2 ? &tape->leaves.items[-2 - edge].gradient : &tape->functions.items[edge].gradients[part];
}

/* The sum overwrites the first gradient if that has no other holder and is not a view: see ms_trace_adds(). */
static ms__value sum_of(ms__tape *tape, ms__value before, ms__value gradient)
{
    ms__shape shape = ms__shape_at(tape, gradient);
    if (tape->rc == MS_OK && !tape->values.items[before].is_view) {
        uint64_t first = ms__key_of(tape, before), other = ms__key_of(tape, gradient);
        ms__fail_tape(tape, ms_trace_adds(tape->trace, first, other, tape->err));
    }
    return gradient_result(tape, "aten.add.Tensor", shape, seen_as(tape, before, shape), gradient);
}

/* Passes a gradient on and takes ownership of it. */
static void add_gradient(ms__tape *tape, int32_t edge, int part, ms__value gradient)
{
    if (tape->rc != MS_OK || gradient == 0) {
        return;
    }
    if (edge == MS__NO_FUNCTION) {
        ms__drop(tape, gradient);
        return;
    }
    ms__value before = *slot_of(tape, edge, part);
    if (before != 0) {
        ms__value sum = sum_of(tape, before, gradient);
        ms__drop(tape, before);
        ms__drop(tape, gradient);
        gradient = sum;
    }
    if (tape->rc == MS_OK) {
        *slot_of(tape, edge, part) = gradient;
    }
}

static bool equal_shapes(const ms__shape *a, const ms__shape *b)
{
    bool equal = a->rank == b->rank;
    for (uint32_t i = 0; equal && i < a->rank; i++) {
        equal = a->size[i] == b->size[i];
    }
    return equal;
}

/* Autograd completes a parameter's gradient as soon as it has arrived; if more arrives later, the last mark counts. */
static void mark_final(ms__tape *tape, int32_t edge)
{
    if (tape->rc == MS_OK && edge <= -2 && *slot_of(tape, edge, 0) != 0) {
        uint64_t key = ms__key_of(tape, *slot_of(tape, edge, 0));
        ms__fail_tape(tape, ms_trace_final(tape->trace, key, tape->err));
    }
}

/* A broadcast operand, or one of fewer dimensions, gets the sum of the gradient. */
static void sum_to(ms__tape *tape, ms__value *gradient, const ms__shape *shape)
{
    ms__shape full = ms__shape_at(tape, *gradient);
    if (*gradient == 0 || equal_shapes(&full, shape)) {
        return;
    }
    ms__value sum = gradient_result(tape, "aten.sum.dim_IntList", *shape, *gradient, 0);
    ms__drop(tape, *gradient);
    *gradient = sum;
}

/* ---- derivatives: from gradient g to out[], one for each operand ----------------------------- */

typedef struct task {
    ms__tape *tape;
    ms__function *function; /* a copy */
    ms__value g;
    ms__value out[MS__EDGES];
} task;

static bool is_wanted(const task *at, int edge)
{
    return at->function->edges[edge] != MS__NO_FUNCTION;
}

static void of_mul(task *at)
{
    for (int edge = 1; edge >= 0; edge--) {
        if (is_wanted(at, edge)) {
            ms__value other = saved_as(at->tape, at->g, at->function, 1 - edge);
            at->out[edge] = gradient_result(at->tape, "aten.mul.Tensor", at->function->shape, at->g, other);
        }
    }
    for (int edge = 0; edge < 2; edge++) {
        sum_to(at->tape, &at->out[edge], &at->function->operands[edge]);
    }
}

static void of_add(task *at)
{
    for (int edge = 0; edge < 2; edge++) {
        if (is_wanted(at, edge)) {
            at->out[edge] = ms__alias(at->tape, at->g, ms__shape_at(at->tape, at->g));
            sum_to(at->tape, &at->out[edge], &at->function->operands[edge]);
        }
    }
}

static void of_power(task *at)
{
    ms__shape shape = at->function->shape;
    ms__value power = gradient_result(at->tape, "aten.pow.Tensor_Scalar", shape, at->g, 0);
    ms__value scaled = gradient_result(at->tape, "aten.mul.Scalar", shape, power, 0);
    at->out[0] = gradient_result(at->tape, "aten.mul.Tensor", shape, at->g, scaled);
    ms__drop(at->tape, scaled);
    ms__drop(at->tape, power);
}

static void of_rsqrt(task *at)
{
    ms__shape shape = at->function->shape;
    ms__value cube = gradient_result(at->tape, "aten.pow.Tensor_Scalar", shape, at->g, 0);
    ms__value scaled = gradient_result(at->tape, "aten.mul.Scalar", shape, at->g, 0);
    at->out[0] = gradient_result(at->tape, "aten.mul.Tensor", shape, scaled, cube);
    ms__drop(at->tape, scaled);
    ms__drop(at->tape, cube);
}

static void of_mean(task *at)
{
    ms__value wide = saved_as(at->tape, at->g, at->function, 0);
    at->out[0] = gradient_result(at->tape, "aten.div.Scalar", at->function->operands[0], wide, 0);
}

static void of_join(task *at)
{
    at->out[0] = ms__alias(at->tape, at->g, at->function->operands[0]);
    at->out[1] = ms__alias(at->tape, at->g, at->function->operands[1]);
}

static ms__shape rows_of(ms__shape shape)
{
    uint64_t width = shape.rank > 0 ? shape.size[shape.rank - 1] : 1;
    uint64_t items = ms__shape_items(&shape);
    return MS__SHAPE(width == 0 ? 0 : items / width, width);
}

static void of_linear(task *at)
{
    const ms__function *f = at->function;
    ms__shape x = rows_of(f->operands[0]), g = rows_of(ms__shape_at(at->tape, at->g));
    ms__shape turned = MS__SHAPE(x.size[1], x.size[0]);
    ms__value rows = seen_as(at->tape, at->g, g);
    bool biased = f->operands[2].rank > 0;
    for (int step = 0; step < 2; step++) {
        if ((step == 0) != biased) {
            ms__value left = seen_as(at->tape, at->g, turned);
            ms__value made = gradient_result(at->tape, "aten.mm.default", MS__SHAPE(x.size[1], g.size[1]), left, rows);
            at->out[1] = view_of(at->tape, made, f->operands[1]);
            ms__drop(at->tape, made);
        } else if (is_wanted(at, 0)) {
            ms__value weight = seen_as(at->tape, at->g, f->operands[1]);
            ms__value made = gradient_result(at->tape, "aten.mm.default", x, rows, weight);
            at->out[0] = view_of(at->tape, made, f->operands[0]);
            ms__drop(at->tape, made);
        }
    }
    if (biased) {
        at->out[2] = gradient_result(at->tape, "aten.sum.dim_IntList", f->operands[2], rows, 0);
    }
}

/* out = a b: the gradient of b comes first. */
static void of_product(task *at)
{
    const ms__shape *a = &at->function->operands[0];
    ms__shape turned = MS__SHAPE(a->size[0], a->size[1], a->size[3], a->size[2]);
    ms__value left = seen_as(at->tape, at->g, turned);
    ms__value right = saved_as(at->tape, at->g, at->function, 1);
    ms__shape made = MS__SHAPE(a->size[0], a->size[1], a->size[3], at->function->shape.size[3]);
    ms__value of_b = gradient_result(at->tape, "aten.bmm.default", made, left, at->g);
    at->out[1] = view_of(at->tape, of_b, at->function->operands[1]);
    ms__drop(at->tape, of_b);
    at->out[0] = gradient_result(at->tape, "aten.bmm.default", *a, at->g, right);
}

static void of_norm(task *at)
{
    const ms__function *f = at->function;
    ms__shape rows = f->shape;
    rows.size[rows.rank - 1] = 1;
    for (int i = 0; i < 3; i++) {
        at->out[i] = ms__fresh(at->tape, f->operands[i], ms__item_at(at->tape, at->g));
    }
    /* Means and scales count as one operand. */
    rows.size[rows.rank - 1] = 2;
    MS__RAN(at->tape, "aten.native_layer_norm_backward.default", 5, 3, at->g, saved_as(at->tape, at->g, f, 0),
            seen_as(at->tape, at->g, rows), saved_as(at->tape, at->g, f, 1), saved_as(at->tape, at->g, f, 2),
            at->out[0], at->out[1], at->out[2]);
}

static void of_attention(task *at)
{
    const ms__function *f = at->function;
    uint64_t length = f->shape.size[2];
    /* The sums have four bytes. */
    ms__shape sums = MS__SHAPE(f->shape.size[0], f->shape.size[1], length * 4 / ms__item_at(at->tape, at->g));
    ms__shape square = MS__SHAPE(f->shape.size[0], 1, length, length);
    bool masked = f->save_count > 5; /* keys, queries, values, sums, output */
    for (int i = 0; i < 3; i++) {
        at->out[i] = ms__fresh(at->tape, f->operands[i], ms__item_at(at->tape, at->g));
    }
    MS__RAN(at->tape, "aten._scaled_dot_product_flash_attention_for_cpu_backward.default", 7, 3, at->g,
            saved_as(at->tape, at->g, f, 0), saved_as(at->tape, at->g, f, 1), saved_as(at->tape, at->g, f, 2),
            seen_as(at->tape, at->g, f->shape), seen_as(at->tape, at->g, sums),
            masked ? seen_as(at->tape, at->g, square) : 0, at->out[0], at->out[1], at->out[2]);
}

static void of_split(task *at)
{
    const ms__value *parts = at->function->gradients;
    at->out[0] = ms__fresh(at->tape, at->function->shape, ms__item_at(at->tape, at->function->gradients[0]));
    MS__RAN(at->tape, "aten.cat.default", 3, 1, parts[0], parts[1], parts[2], at->out[0]);
}

/* An index is eight bytes. */
static ms__value integers_like(ms__tape *tape, ms__value any, ms__shape shape)
{
    shape.size[shape.rank++] = 8 / ms__item_at(tape, any);
    return seen_as(tape, any, shape);
}

static void of_loss(task *at)
{
    const ms__function *f = at->function;
    ms__shape number = {.rank = 0};
    at->out[0] = ms__fresh(at->tape, f->operands[0], ms__item_at(at->tape, at->g));
    MS__RAN(at->tape, "aten.nll_loss_backward.default", 4, 1, at->g, saved_as(at->tape, at->g, f, 0),
            integers_like(at->tape, at->g, f->operands[1]), seen_as(at->tape, at->g, number), at->out[0]);
}

/* The gradient itself, or a view in the operand's shape. */
static void pass_on(task *at)
{
    const ms__function *f = at->function;
    ms__shape shape = ms__shape_at(at->tape, at->g);
    bool turned = f->kind == MS__D_PASS && f->operands[0].rank > 0 && !equal_shapes(&f->operands[0], &shape);
    at->out[0] = turned ? view_of(at->tape, at->g, f->operands[0]) : ms__alias(at->tape, at->g, shape);
}

static void run_derivative(task *at)
{
    const ms__function *f = at->function;
    switch ((ms__derivative)f->kind) {
    case MS__D_PASS:
    case MS__D_PART:
        pass_on(at);
        return;
    case MS__D_COPY:
        at->out[0] = gradient_result(at->tape, "aten.clone.default", f->operands[0],
                                     seen_as(at->tape, at->g, f->operands[0]), 0);
        return;
    case MS__D_CONVERT:
        at->out[0] = ms__fresh(at->tape, f->operands[0], (uint32_t)f->items[0]);
        MS__RAN(at->tape, "aten._to_copy.default", 1, 1, at->g, at->out[0]);
        return;
    case MS__D_SCALE:
        at->out[0] = gradient_result(at->tape, "aten.mul.Scalar", f->shape, at->g, 0);
        return;
    case MS__D_REPEAT:
        at->out[0] = gradient_result(at->tape, "aten.sum.dim_IntList", f->operands[0], at->g, 0);
        return;
    case MS__D_HALF:
        at->out[0] = gradient_result(at->tape, "aten.slice_backward.default", f->operands[0], at->g, 0);
        return;
    case MS__D_UNARY:
        at->out[0] = gradient_result(at->tape, f->derivative, f->shape, at->g, seen_as(at->tape, at->g, f->shape));
        return;
    case MS__D_EMBEDDING:
        at->out[0] = gradient_result(at->tape, "aten.embedding_dense_backward.default", f->operands[0], at->g,
                                     integers_like(at->tape, at->g, f->operands[1]));
        return;
    case MS__D_ADD:
        of_add(at);
        return;
    case MS__D_MUL:
        of_mul(at);
        return;
    case MS__D_POWER:
        of_power(at);
        return;
    case MS__D_MEAN:
        of_mean(at);
        return;
    case MS__D_RSQRT:
        of_rsqrt(at);
        return;
    case MS__D_JOIN:
        of_join(at);
        return;
    case MS__D_LINEAR:
        of_linear(at);
        return;
    case MS__D_PRODUCT:
        of_product(at);
        return;
    case MS__D_NORM:
        of_norm(at);
        return;
    case MS__D_ATTENTION:
        of_attention(at);
        return;
    case MS__D_SPLIT:
        of_split(at);
        return;
    case MS__D_LOSS:
        of_loss(at);
        return;
    default:
        at->out[0] = ms__exchange_back(at->tape, f, at->g);
        return;
    }
}

/* ---- the order of functions ---------------------------------------------------------------- */

static void run_function(ms__tape *tape, size_t index)
{
    ms__function function = tape->functions.items[index];
    task at = {.tape = tape, .function = &function, .g = function.gradients[0]};
    if (at.g == 0) {
        return;
    }
    if (function.kind == MS__D_LOSS && tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_loss_backward(tape->trace, function.head, tape->err));
    }
    if (function.product != 0 && tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_head_backward(tape->trace, function.product, tape->err));
    }
    for (uint32_t i = 0; i < function.save_count; i++) {
        const ms__save_of *save = &function.saves[i];
        ms__fail_tape(tape, ms_trace_unpacked(tape->trace, save->trace_node, save->serial, 0, tape->err));
    }
    run_derivative(&at);
    for (int i = 0; i < MS__EDGES; i++) {
        ms__drop(tape, function.gradients[i]);
    }
    for (uint32_t i = 0; i < function.save_count && tape->rc == MS_OK; i++) {
        const ms__save_of *save = &function.saves[i];
        ms__fail_tape(tape, ms_trace_dropped(tape->trace, save->trace_node, save->serial, tape->err));
    }
    uint64_t key = at.out[0] != 0 ? ms__key_of(tape, at.out[0]) : 0;
    /* torch's product has its bias first, and its input passes a view, whose turn is after the parameters'. */
    bool biased = function.kind == MS__D_LINEAR && function.edges[MS__EDGES - 1] != MS__NO_FUNCTION;
    for (int edge = biased ? 1 : 0; edge < MS__EDGES; edge++) {
        add_gradient(tape, function.edges[edge], function.kind == MS__D_PART ? function.part : 0, at.out[edge]);
    }
    for (int i = 0; i < MS__EDGES; i++) {
        mark_final(tape, function.edges[function.kind == MS__D_LINEAR ? MS__EDGES - 1 - i : i]);
    }
    if (biased) {
        add_gradient(tape, function.edges[0], 0, at.out[0]);
    }
    if (function.kind != MS__D_LOSS && function.head != 0 && tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_loss_backward_end(tape->trace, function.head, key, tape->err));
    }
    if (function.product != 0 && tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_head_backward_end(tape->trace, function.product, key, tape->err));
    }
}

/* A parameter's gradient stays; an input's goes to another rank. */
static void end_gradient(ms__tape *tape, const ms__leaf *leaf)
{
    uint64_t bytes = ms__mul_sat(ms__shape_items(&leaf->shape), tape->real_bytes);
    if (leaf->is_input) {
        ms__drop(tape, leaf->gradient);
    } else if (leaf->gradient != 0) {
        uint64_t key = ms__key_of(tape, leaf->gradient);
        ms__fail_tape(tape, ms_trace_role(tape->trace, key, bytes, MS_STORAGE_GRADIENT, tape->err));
    }
}

void ms__backward_from(ms__tape *tape, ms__value of, ms__value seed)
{
    if (tape->rc != MS_OK) {
        return;
    }
    add_gradient(tape, tape->values.items[of].function, 0, ms__alias(tape, seed, ms__shape_at(tape, seed)));
    for (size_t i = tape->functions.count; i-- > 0 && tape->rc == MS_OK;) {
        run_function(tape, i);
    }
    ms__drop(tape, seed);
    for (size_t i = 0; i < tape->leaves.count && tape->rc == MS_OK; i++) {
        end_gradient(tape, &tape->leaves.items[i]);
    }
}

void ms__backward(ms__tape *tape, ms__value loss)
{
    ms__backward_from(tape, loss, gradient_result(tape, "aten.ones_like.default", ms__shape_at(tape, loss), loss, 0));
}
