/*
 * Values and storages of the tape, and their reports to ms_trace. Called by the operators; knows nothing of models.
 */
#include <string.h>

#include "base/units.h"
#include "predict/tape.h"

enum { OPERANDS_MOST = 11 };

void ms__fail_tape(ms__tape *tape, int rc)
{
    if (rc == MS_OK || tape->rc != MS_OK) {
        return;
    }
    tape->rc = rc;
    if (rc == MS_ENOMEM) {
        ms_fail(tape->err, rc, "predict: out of memory after %zu operators", tape->functions.count);
    }
}

void ms__tape_clear(ms__tape *tape)
{
    ms_trace_free(tape->trace);
    ms_free(tape->values.items);
    ms_free(tape->storages.items);
    ms_free(tape->leaves.items);
    ms_free(tape->functions.items);
}

/* ---- shapes ------------------------------------------------------------------------- */

ms__shape ms__shape_of(size_t rank, const uint64_t *sizes)
{
    ms__shape shape = {.rank = (uint32_t)rank};
    for (size_t i = 0; i < rank && i < MS__RANK; i++) {
        shape.size[i] = sizes[i];
    }
    return shape;
}

uint64_t ms__shape_items(const ms__shape *shape)
{
    uint64_t items = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        items = ms__mul_sat(items, shape->size[i]);
    }
    return items;
}

/* After a failure a missing value has one dimension, because callers change the last one. */
ms__shape ms__shape_at(const ms__tape *tape, ms__value value)
{
    bool there = value != 0 && value < tape->values.count;
    return there ? tape->values.items[value].shape : (ms__shape){.rank = 1};
}

uint32_t ms__item_at(const ms__tape *tape, ms__value value)
{
    bool there = value != 0 && value < tape->values.count;
    return there ? tape->values.items[value].item_bytes : tape->real_bytes;
}

/* ---- values --------------------------------------------------------------------------- */

static uint32_t push_storage(ms__tape *tape, uint64_t bytes, bool resident)
{
    if (tape->storages.count == 0 && tape->rc == MS_OK) {
        ms__fail_tape(tape, MS__PUSH(&tape->storages, ((ms__held){0})));
    }
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, MS__PUSH(&tape->storages, ((ms__held){.bytes = bytes, .resident = resident})));
    }
    return tape->rc == MS_OK ? (uint32_t)tape->storages.count - 1 : 0;
}

static ms__value push_value(ms__tape *tape, ms__tensor tensor)
{
    if (tape->values.count == 0 && tape->rc == MS_OK) {
        ms__fail_tape(tape, MS__PUSH(&tape->values, ((ms__tensor){.function = MS__NO_FUNCTION})));
    }
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, MS__PUSH(&tape->values, tensor));
    }
    if (tape->rc != MS_OK) {
        return 0;
    }
    tape->storages.items[tensor.storage].holders++;
    return (ms__value)(tape->values.count - 1);
}

ms__value ms__fresh(ms__tape *tape, ms__shape shape, uint32_t item_bytes)
{
    uint64_t bytes = ms__mul_sat(ms__shape_items(&shape), item_bytes);
    uint32_t storage = push_storage(tape, bytes, false);
    ms__value made = push_value(tape, (ms__tensor){shape, item_bytes, storage, MS__NO_FUNCTION, false});
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_born(tape->trace, storage, bytes, tape->err));
    }
    return made;
}

ms__value ms__resident(ms__tape *tape, ms__shape shape, uint32_t item_bytes, ms_resident_role role)
{
    uint64_t bytes = ms__mul_sat(ms__shape_items(&shape), item_bytes);
    uint32_t storage = push_storage(tape, bytes, true);
    ms__value made = push_value(tape, (ms__tensor){shape, item_bytes, storage, MS__NO_FUNCTION, false});
    if (tape->rc == MS_OK) {
        bool trains = role == MS_RESIDENT_PARAMETER;
        ms__fail_tape(tape, ms_trace_resident(tape->trace, storage, bytes, item_bytes, role, trains, tape->err));
    }
    return made;
}

ms__value ms__parameter(ms__tape *tape, ms__shape shape)
{
    ms__value made = ms__resident(tape, shape, tape->real_bytes, MS_RESIDENT_PARAMETER);
    if (tape->rc == MS_OK) {
        ms__leaf leaf = {.shape = shape, .storage = tape->values.items[made].storage};
        ms__fail_tape(tape, MS__PUSH(&tape->leaves, leaf));
    }
    if (tape->rc == MS_OK) {
        tape->values.items[made].function = -1 - (int32_t)tape->leaves.count;
    }
    return made;
}

ms__value ms__received(ms__tape *tape, ms__shape shape, uint64_t buffers, bool is_leaf)
{
    ms__shape all = MS__SHAPE(buffers, ms__shape_items(&shape));
    ms__value made = ms__resident(tape, all, tape->real_bytes, MS_RESIDENT_BUFFER);
    if (tape->rc == MS_OK && is_leaf) {
        ms__leaf leaf = {.shape = shape, .storage = tape->values.items[made].storage, .is_input = true};
        ms__fail_tape(tape, MS__PUSH(&tape->leaves, leaf));
    }
    if (tape->rc == MS_OK) {
        tape->values.items[made].shape = shape;
        tape->values.items[made].function = is_leaf ? -1 - (int32_t)tape->leaves.count : MS__NO_FUNCTION;
    }
    return made;
}

ms__value ms__alias(ms__tape *tape, ms__value of, ms__shape shape)
{
    if (tape->rc != MS_OK || of == 0) {
        return 0;
    }
    ms__tensor tensor = tape->values.items[of];
    tensor.shape = shape;
    return push_value(tape, tensor);
}

void ms__drop(ms__tape *tape, ms__value value)
{
    if (tape->rc != MS_OK || value == 0) {
        return;
    }
    uint32_t storage = tape->values.items[value].storage;
    ms__held *held = &tape->storages.items[storage];
    if (--held->holders == 0 && !held->resident) {
        ms__fail_tape(tape, ms_trace_died(tape->trace, storage, tape->err));
    }
}

uint64_t ms__key_of(const ms__tape *tape, ms__value value)
{
    return value < tape->values.count ? tape->values.items[value].storage : 0;
}

/* ---- operators -------------------------------------------------------------------------- */

/* The element-wise operators used here, as torch tags them. */
static bool is_pointwise(const char *name)
{
    static const char *const names[] = {"aten.add.",  "aten.gelu.",  "aten.gelu_tanh.", "aten.mul.",  "aten.pow.",
                                        "aten.relu.", "aten.rsqrt.", "aten.silu.",      "aten.tanh.", "aten.where."};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(name, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* Reports makers and writes as the profiler does. */
static void report_maker(ms__tape *tape, const char *name, size_t inputs, size_t outputs, const ms__value *operands)
{
    uint64_t keys[OPERANDS_MOST];
    size_t given = 0, taken = 0;
    if (strstr(name, "_.") != NULL) {
        uint64_t key = ms__key_of(tape, operands[0]);
        ms__fail_tape(tape, ms_trace_wrote(tape->trace, key, tape->err));
        return;
    }
    /* Tagged as random, with dropout or without. */
    bool draws = strcmp(name, "aten._scaled_dot_product_flash_attention_for_cpu.default") == 0;
    bool runs_again = !draws && ms_operator_is_maker(name, is_pointwise(name));
    for (size_t i = 0; i < inputs + outputs; i++) {
        if (operands[i] != 0) {
            keys[given++] = ms__key_of(tape, operands[i]);
            taken += i < inputs;
        }
    }
    ms__fail_tape(tape, ms_trace_made(tape->trace, keys, taken, keys + taken, given - taken, runs_again, tape->err));
}

void ms__ran(ms__tape *tape, const char *name, size_t inputs, size_t outputs, const ms__value *operands)
{
    ms_operand made[OPERANDS_MOST] = {{0}};
    size_t given = 0, taken = 0;
    if (tape->rc != MS_OK) {
        return;
    }
    for (size_t i = 0; i < inputs + outputs; i++) {
        if (operands[i] == 0) {
            continue;
        }
        const ms__tensor *tensor = &tape->values.items[operands[i]];
        ms_operand *operand = &made[given++];
        operand->rank = tensor->shape.rank;
        operand->bytes = ms__mul_sat(ms__shape_items(&tensor->shape), tensor->item_bytes);
        for (uint32_t d = 0; d < tensor->shape.rank; d++) {
            operand->size[d] = tensor->shape.size[d];
        }
        bool is_half_result = i >= inputs && tensor->item_bytes == 2;
        operand->precision = is_half_result ? MS_PRECISION_BF16 : MS_PRECISION_AS_IS;
        taken += i < inputs;
    }
    ms__fail_tape(tape, ms_trace_op(tape->trace, name, made, taken, made + taken, given - taken, tape->err));
    if (tape->rc == MS_OK) {
        report_maker(tape, name, inputs, outputs, operands);
    }
}

int32_t ms__open(ms__tape *tape, ms__derivative kind, size_t count, const ms__value *operands)
{
    ms__function made = {.kind = kind, .edges = {MS__NO_FUNCTION, MS__NO_FUNCTION, MS__NO_FUNCTION}};
    bool differentiable = false;
    if (tape->rc != MS_OK || !tape->differentiates) {
        return MS__NO_FUNCTION;
    }
    for (size_t i = 0; i < count; i++) {
        if (operands[i] != 0) {
            const ms__tensor *operand = &tape->values.items[operands[i]];
            made.edges[i] = operand->function;
            made.operands[i] = operand->shape;
            made.items[i] = operand->item_bytes;
            differentiable |= operand->function != MS__NO_FUNCTION;
        }
    }
    if (!differentiable) {
        return MS__NO_FUNCTION;
    }
    ms__fail_tape(tape, MS__PUSH(&tape->functions, made));
    return tape->rc == MS_OK ? (int32_t)tape->functions.count - 1 : MS__NO_FUNCTION;
}

void ms__save(ms__tape *tape, int32_t function, ms__value saved)
{
    if (tape->rc != MS_OK || function < 0) {
        return;
    }
    ms__function *saves = &tape->functions.items[function];
    ms__save_of *save = &saves->saves[saves->save_count++];
    uint32_t storage = tape->values.items[saved].storage;
    ms__fail_tape(tape, ms_trace_saved(tape->trace, storage, &save->trace_node, &save->serial, tape->err));
}

void ms__close(ms__tape *tape, int32_t function, ms__value out)
{
    if (tape->rc == MS_OK && function >= 0) {
        tape->values.items[out].function = function;
        tape->functions.items[function].shape = tape->values.items[out].shape;
    }
}

void ms__random(ms__tape *tape)
{
    if (tape->rc == MS_OK) {
        uint32_t node = ms_trace_current(tape->trace);
        ms__fail_tape(tape, ms_trace_flag(tape->trace, node, MS_NODE_USES_RNG, tape->err));
    }
}
