/*
 * The tracer's account of sums of gradients. Autograd writes the sum over the first of two gradients if that has no
 * other holder, but never under a dispatch mode, as in a trace. So if the first operand dies right after the sum is
 * born, the trace treats the sum as that operand, overwritten.
 */
#include "base/units.h"
#include "trace/trace_internal.h"

int ms_trace_adds(ms_trace *trace, uint64_t key, uint64_t other_key, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    uint32_t first;
    bool found = rc == MS_OK && trace->phase == MS_TRACE_BACKWARD && key != other_key &&
                 ms__trace_find_life(trace, key, &first) && trace->lives.items[first].role != MS_STORAGE_BATCH;
    trace->sum = (trace_sum){.state = SUM_NONE};
    if (found) {
        trace->sum = (trace_sum){.state = SUM_EXPECTED, .first = first};
    }
    return rc;
}

void ms__trace_sum_born(ms_trace *trace, uint64_t key, uint32_t life, uint64_t peak_before)
{
    trace_sum *sum = &trace->sum;
    bool alike = trace->lives.items[sum->first].bytes == trace->lives.items[life].bytes;
    if (sum->state != SUM_EXPECTED || !alike) {
        sum->state = SUM_NONE;
        return;
    }
    const trace_program *program = &trace->nodes.items[trace->backward_node].backward;
    *sum = (trace_sum){.state = SUM_MADE,
                       .first = sum->first,
                       .life = life,
                       .key = key,
                       .peak_bytes = peak_before,
                       .node = trace->backward_node,
                       .index = program->count - 1};
}

void ms__trace_sum_ends(ms_trace *trace)
{
    if (trace->sum.state == SUM_MADE) {
        trace->sum.state = SUM_NONE;
    }
}

int ms__trace_sum_replaces(ms_trace *trace, uint32_t dying, bool *replaced, ms_error *err)
{
    const trace_sum sum = trace->sum;
    trace_life *first = &trace->lives.items[dying];
    *replaced = sum.state == SUM_MADE && sum.first == dying && first->holds == 0;
    if (!*replaced) {
        return MS_OK;
    }
    trace->sum.state = SUM_NONE;
    trace->nodes.items[sum.node].backward.items[sum.index].kind = TRACE_VOID_EVENT;
    trace->live_bytes = ms__sub_sat(trace->live_bytes, trace->lives.items[sum.life].bytes);
    trace->peak_bytes = ms__max_u64(sum.peak_bytes, trace->live_bytes);
    first->writes++;
    return ms__trace_put_key(trace, sum.key, KEY_LIFE | dying, err);
}
