/*
 * The tracer's account of storages that surely have two values at most, by the operator that made
 * them or wrote to them last: truth values, which comparisons give; constants; what adds one value to
 * a constant (masked_fill, triu); dropout masks, drawn in place; and what a function of one number
 * makes of such a storage. Anything else that is written to it ends it; only what is certain
 * counts, and packing looks at every word all the same. Called by the other files of the tracer.
 */
#include <string.h>

#include "base/units.h"
#include "trace/operand.h"
#include "trace/trace_internal.h"

enum { VALUES_MOST = 2 };

/* Whether an operator's name without its namespace, and without the "_" of its form in place, is
 * one of these; another namespace's operator is none. */
static bool is_one_of(const char *name, const char *const *list, size_t count)
{
    static const char prefix[] = "aten.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return false;
    }
    name += sizeof prefix - 1;
    size_t length = strcspn(name, ".");
    if (length > 1 && name[length - 1] == '_') {
        length--;
    }
    for (size_t i = 0; i < count; i++) {
        if (strlen(list[i]) == length && memcmp(list[i], name, length) == 0) {
            return true;
        }
    }
    return false;
}

#define IS_ONE_OF(name, list) is_one_of(name, list, sizeof list / sizeof list[0])

/* Numbers of any value: they are whatever lay there. */
static bool is_empty(const char *name)
{
    static const char *const empties[] = {"empty",     "empty_like",        "empty_permuted", "empty_strided",
                                          "new_empty", "new_empty_strided", "resize",         "set"};
    return IS_ONE_OF(name, empties);
}

/* What the operator does to the values of its first operand; `numbers` says that all others are
 * numbers, or one element. */
static int kind_of(const char *name, const ms_operand *inputs, size_t input_count, bool numbers)
{
    static const char *const constants[] = {"fill", "full",      "full_like", "new_full", "new_ones",  "new_zeros",
                                            "ones", "ones_like", "zero",      "zeros",    "zeros_like"};
    static const char *const functions[] = {"_to_copy", "add", "clone", "div", "mul", "neg", "rsub", "sub"};
    static const char *const adding[] = {"tril", "triu"};
    static const char *const masked[] = {"masked_fill"};
    static const char *const chosen[] = {"where"};
    if (strncmp(name, "aten.bernoulli_.float", sizeof "aten.bernoulli_.float" - 1) == 0) {
        return WRITE_TWO_VALUES;
    }
    if (IS_ONE_OF(name, chosen)) {
        return input_count == 3 && inputs[1].rank == 0 && inputs[2].rank == 0 ? WRITE_TWO_VALUES : WRITE_ANYTHING;
    }
    if (IS_ONE_OF(name, masked)) {
        bool one = input_count == 2 || (input_count == 3 && inputs[2].rank == 0);
        return one ? WRITE_ADDS_VALUE : WRITE_ANYTHING;
    }
    if (!numbers) {
        return WRITE_ANYTHING;
    }
    if (IS_ONE_OF(name, constants)) {
        return WRITE_ONE_VALUE;
    }
    if (IS_ONE_OF(name, adding)) {
        return WRITE_ADDS_VALUE;
    }
    return input_count > 0 && IS_ONE_OF(name, functions) ? WRITE_MAPS_VALUES : WRITE_ANYTHING;
}

/* 0: not a whole number of bytes that a packed word may have. */
static uint32_t value_bytes_of(const ms_operand *operand)
{
    uint64_t elements = ms__operand_elements(operand);
    uint64_t bytes = elements > 0 ? operand->bytes / elements : 0;
    return bytes <= 8 && bytes * elements == operand->bytes ? (uint32_t)bytes : 0;
}

trace_write ms__trace_write_of(const char *name, const ms_operand *inputs, size_t input_count,
                               const ms_operand *outputs, size_t output_count)
{
    trace_write write = {.kind = WRITE_ANYTHING};
    uint32_t value_bytes = output_count == 1 ? value_bytes_of(&outputs[0]) : 0;
    if (value_bytes == 0 || is_empty(name)) {
        return write;
    }
    bool numbers = true;
    for (size_t i = 1; i < input_count; i++) {
        numbers &= inputs[i].rank == 0;
    }
    write.kind = kind_of(name, inputs, input_count, numbers);
    write.in_place = strstr(name, "_.") != NULL;
    write.are_truths = outputs[0].are_truths;
    write.bytes = outputs[0].bytes;
    write.value_bytes = value_bytes;
    write.read_value_bytes = input_count > 0 ? value_bytes_of(&inputs[0]) : 0;
    return write;
}

/* How many values `life` has; 0: unknown, or elements of this width are not what they are of. */
static uint32_t values_of(const trace_life *life, uint32_t writes, uint32_t value_bytes)
{
    bool known = life->values_at == writes + 1 && life->value_bytes == value_bytes;
    return known ? life->values : 0;
}

/* How many there are after a write that covers all, of those that the source had; 0: unknown. */
static uint32_t values_after(const trace_write *write, uint32_t source)
{
    switch (write->kind) {
    case WRITE_ONE_VALUE:
        return 1;
    case WRITE_TWO_VALUES:
        return 2;
    case WRITE_MAPS_VALUES:
        return source;
    case WRITE_ADDS_VALUE:
        return source > 0 ? source + 1 : 0;
    default:
        return 0;
    }
}

static void note(trace_life *life, const trace_write *write, uint32_t values, bool are_truths)
{
    if (are_truths && (values == 0 || values > VALUES_MOST)) {
        values = VALUES_MOST;
    }
    if (values > 0 && values <= VALUES_MOST) {
        life->values_at = life->writes + 1;
        life->values = values;
        life->value_bytes = write->value_bytes;
        life->are_truths = are_truths;
    }
}

void ms__trace_note_write(trace_life *life, const trace_write *write)
{
    uint32_t before = values_of(life, life->writes - 1, write->value_bytes);
    bool had_truths = before > 0 && life->are_truths;
    if (!write->in_place) {
        return;
    }
    if (write->bytes == life->bytes) {
        note(life, write, values_after(write, before), write->are_truths);
    } else if (write->kind == WRITE_ONE_VALUE || write->kind == WRITE_ADDS_VALUE) {
        note(life, write, before > 0 ? before + 1 : 0, had_truths && write->are_truths);
    } else {
        note(life, write, 0, had_truths && write->are_truths);
    }
}

void ms__trace_note_result(const ms_trace *trace, const trace_life *source, trace_life *made)
{
    const trace_write *write = &trace->last_write;
    if (write->bytes == made->bytes && !write->in_place) {
        uint32_t known = source != NULL ? values_of(source, source->writes, write->read_value_bytes) : 0;
        note(made, write, values_after(write, known), write->are_truths);
    }
}

bool ms__trace_is_two_valued(const trace_life *life)
{
    return life->values_at == life->writes + 1;
}
