/*
 * The tracer's account of storages that certainly have at most two values, by the operator that made them or wrote to
 * them last: comparisons (truth values); constants; operators that add one value to a constant (masked_fill, triu);
 * dropout masks, drawn in place or a second result; functions of one number of such a storage. Any other write ends the
 * property. Bit packing on a CPU still scans every word.
 */
#include <string.h>

#include "base/units.h"
#include "trace/operand.h"
#include "trace/trace_internal.h"

enum { VALUES_MOST = 2 };

/* True if the operator is in namespace aten and its bare name, without the "_" of its in-place form, is listed. */
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

/* Operators whose result is uninitialized memory. */
static bool is_empty(const char *name)
{
    static const char *const empties[] = {"empty",     "empty_like",        "empty_permuted", "empty_strided",
                                          "new_empty", "new_empty_strided", "resize",         "set"};
    return IS_ONE_OF(name, empties);
}

/* The operator's effect on the values of its first operand; `numbers`: all others are numbers or have one element. */
static int write_kind_of(const char *name, const ms_operand *inputs, size_t input_count, bool numbers)
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

/* 0: not a word size of bit packing. */
static uint32_t value_bytes_of(const ms_operand *operand)
{
    uint64_t elements = ms__operand_elements(operand);
    uint64_t bytes = elements > 0 ? operand->bytes / elements : 0;
    return bytes <= 8 && bytes * elements == operand->bytes ? (uint32_t)bytes : 0;
}

/* The only result that holds truth values, and that its bytes tell from the others; NULL if there is none. GPUs give
 * dropout's mask as such a second result. */
static const ms_operand *result_of_truths(const ms_operand *outputs, size_t count)
{
    const ms_operand *found = NULL;
    for (size_t i = 0; i < count; i++) {
        found = outputs[i].are_truths ? &outputs[i] : found;
    }
    for (size_t i = 0; found != NULL && i < count; i++) {
        if (&outputs[i] != found && outputs[i].bytes == found->bytes) {
            return NULL;
        }
    }
    return found;
}

trace_write ms__trace_write_of(const char *name, const ms_operand *inputs, size_t input_count,
                               const ms_operand *outputs, size_t output_count)
{
    trace_write write = {.kind = WRITE_ANYTHING};
    const ms_operand *output = output_count == 1 ? &outputs[0] : result_of_truths(outputs, output_count);
    uint32_t value_bytes = output != NULL ? value_bytes_of(output) : 0;
    if (value_bytes == 0 || is_empty(name)) {
        return write;
    }
    bool numbers = true;
    for (size_t i = 1; i < input_count; i++) {
        numbers &= inputs[i].rank == 0;
    }
    write.kind = output_count == 1 ? write_kind_of(name, inputs, input_count, numbers) : WRITE_ANYTHING;
    write.in_place = strstr(name, "_.") != NULL;
    write.are_truths = output->are_truths;
    write.bytes = output->bytes;
    write.value_bytes = value_bytes;
    write.read_value_bytes = input_count > 0 ? value_bytes_of(&inputs[0]) : 0;
    return write;
}

/* The number of values of `life`; 0: unknown, or known for elements of another width. */
static uint32_t values_of(const trace_life *life, uint32_t writes, uint32_t value_bytes)
{
    bool known = life->values_at == writes + 1 && life->value_bytes == value_bytes;
    return known ? life->values : 0;
}

/* The number of values after a write to the whole storage, given that of its source; 0: unknown. */
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

static void life_set_values(trace_life *life, const trace_write *write, uint32_t values, bool are_truths)
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
        life_set_values(life, write, values_after(write, before), write->are_truths);
    } else if (write->kind == WRITE_ONE_VALUE || write->kind == WRITE_ADDS_VALUE) {
        life_set_values(life, write, before > 0 ? before + 1 : 0, had_truths && write->are_truths);
    } else {
        life_set_values(life, write, 0, had_truths && write->are_truths);
    }
}

void ms__trace_note_result(const ms_trace *trace, const trace_life *source, trace_life *made)
{
    const trace_write *write = &trace->last_write;
    if (write->bytes == made->bytes && !write->in_place) {
        uint32_t known = source != NULL ? values_of(source, source->writes, write->read_value_bytes) : 0;
        life_set_values(made, write, values_after(write, known), write->are_truths);
    }
}

bool ms__trace_is_two_valued(const trace_life *life)
{
    return life->values_at == life->writes + 1;
}
