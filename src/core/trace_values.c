/*
 * The tracer's account of storages that surely have two values: dropout masks, drawn into
 * a fresh tensor and scaled in place. Anything else that is written to such a storage ends
 * it; only what is certain counts. Called by the other files of the tracer.
 */
#include <string.h>

#include "base/units.h"
#include "core/trace_internal.h"

static bool begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static uint64_t elements_of(const ms_operand *operand)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < operand->rank; d++) {
        count = ms__mul_sat(count, operand->size[d]);
    }
    return count;
}

trace_write ms__trace_write_of(const char *name, const ms_operand *inputs, size_t input_count,
                               const ms_operand *outputs, size_t output_count)
{
    trace_write write = {.kind = WRITE_ANYTHING};
    bool draws = begins_with(name, "aten.bernoulli_.float");
    bool scales = begins_with(name, "aten.div_.") || begins_with(name, "aten.mul_.");
    bool by_number = input_count == 1 || (input_count == 2 && inputs[1].rank == 0);
    if (output_count != 1 || (!draws && !(scales && by_number))) {
        return write;
    }
    uint64_t elements = elements_of(&outputs[0]);
    uint64_t value_bytes = elements > 0 ? outputs[0].bytes / elements : 0;
    if (value_bytes == 0 || value_bytes > 8 || value_bytes * elements != outputs[0].bytes) {
        return write;
    }
    write.kind = draws ? WRITE_TWO_VALUES : WRITE_MAPS_VALUES;
    write.bytes = outputs[0].bytes;
    write.value_bytes = (uint32_t)value_bytes;
    return write;
}

void ms__trace_note_write(trace_life *life, const trace_write *write)
{
    bool whole = write->bytes == life->bytes;
    bool had_two = life->two_valued_at == life->writes && life->two_valued_at > 0;
    bool stays = write->kind == WRITE_MAPS_VALUES && had_two && write->value_bytes == life->value_bytes;
    if (whole && (write->kind == WRITE_TWO_VALUES || stays)) {
        life->two_valued_at = life->writes + 1;
        life->value_bytes = write->value_bytes;
    }
}

bool ms__trace_is_two_valued(const trace_life *life)
{
    return life->two_valued_at == life->writes + 1;
}
