/*
 * The tracer's account of makers: recorded while the step runs, thinned out and numbered when its graph is built
 * (trace_finish.c). A write after a maker ran changes its operand, so writes are counted.
 */
#include <string.h>

#include "base/units.h"
#include "trace/trace_internal.h"

/* ---- recording ------------------------------------------------------------ */

int ms_trace_wrote(ms_trace *trace, uint64_t key, ms_error *err)
{
    uint32_t life;
    if (trace->finished) {
        return ms_fail(err, MS_ESTATE, "trace: it is finished");
    }
    if (ms__trace_find_life(trace, key, &life)) {
        trace->lives.items[life].writes++;
        ms__trace_note_write(&trace->lives.items[life], &trace->last_write);
        return MS_OK;
    }
    bool written;
    bool unseen = ms__trace_is_resident(trace, key, &written) && !written;
    return unseen ? ms__trace_resident_written(trace, key, err) : MS_OK;
}

/* True if a maker may use the operand; *life is TRACE_NO_LIFE for residents and the batch. A buffer that the step
 * writes to may change again before backward, so it is refused. */
static bool account_for_operand(const ms_trace *trace, uint64_t key, uint32_t *life)
{
    bool written;
    *life = TRACE_NO_LIFE;
    if (ms__trace_is_resident(trace, key, &written)) {
        return !written;
    }
    if (!ms__trace_find_life(trace, key, life)) {
        return false;
    }
    if (trace->lives.items[*life].role == MS_STORAGE_BATCH) {
        *life = TRACE_NO_LIFE;
    }
    return true;
}

static int push_operand(ms_trace *trace, trace_node *node, uint32_t life, ms_error *err)
{
    trace_operand *slot = MS__ARRAY_PUSH(&node->operands);
    if (slot == NULL) {
        return ms__trace_no_memory(err);
    }
    slot->life = life;
    slot->writes = trace->lives.items[life].writes;
    return MS_OK;
}

/* Pushes the inputs or the outputs; *known becomes false if an operand can't be used. */
static int push_operands(ms_trace *trace, trace_node *node, const uint64_t *keys, size_t count, bool are_outputs,
                         bool *known, ms_error *err)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && *known && i < count; i++) {
        uint32_t life;
        *known = account_for_operand(trace, keys[i], &life) && !(are_outputs && life == TRACE_NO_LIFE);
        if (*known && life != TRACE_NO_LIFE) {
            rc = push_operand(trace, node, life, err);
        }
    }
    return rc;
}

static int file_maker(ms_trace *trace, const uint64_t *inputs, size_t input_count, const uint64_t *outputs,
                      size_t output_count, ms_error *err)
{
    trace_node *node = &trace->nodes.items[trace->nodes.count - 1];
    size_t first = node->operands.count;
    bool known = true;
    if (first + input_count + output_count >= UINT32_MAX) {
        return ms_fail(err, MS_EOVERFLOW, "trace: too many operands");
    }
    int rc = push_operands(trace, node, inputs, input_count, false, &known, err);
    size_t middle = node->operands.count;
    if (rc == MS_OK) {
        rc = push_operands(trace, node, outputs, output_count, true, &known, err);
    }
    if (rc != MS_OK || !known) {
        node->operands.count = first;
        return rc;
    }
    ms_maker *maker = MS__ARRAY_PUSH(&node->makers);
    if (maker == NULL) {
        return ms__trace_no_memory(err);
    }
    maker->flops = trace->last_work.flops;
    maker->bytes = trace->last_work.bytes;
    maker->evaluations = trace->last_work.evaluations;
    maker->precision = trace->last_work.precision;
    maker->first = (uint32_t)first;
    maker->input_count = (uint32_t)(middle - first);
    maker->output_count = (uint32_t)(node->operands.count - middle);
    return MS_OK;
}

static void note_values(ms_trace *trace, const uint64_t *inputs, size_t input_count, const uint64_t *outputs,
                        size_t output_count)
{
    uint32_t made, source;
    bool known = input_count > 0 && ms__trace_find_life(trace, inputs[0], &source);
    for (size_t i = 0; i < output_count; i++) {
        if (ms__trace_find_life(trace, outputs[i], &made)) {
            ms__trace_note_result(trace, known ? &trace->lives.items[source] : NULL, &trace->lives.items[made]);
        }
    }
}

int ms_trace_made(ms_trace *trace, const uint64_t *inputs, size_t input_count, const uint64_t *outputs,
                  size_t output_count, bool runs_again, ms_error *err)
{
    if (trace->finished) {
        return ms_fail(err, MS_ESTATE, "trace: it is finished");
    }
    if (!trace->layer_open || output_count == 0 || trace->phase > MS_TRACE_LOSS) {
        return MS_OK;
    }
    note_values(trace, inputs, input_count, outputs, output_count);
    return runs_again ? file_maker(trace, inputs, input_count, outputs, output_count, err) : MS_OK;
}

/* ---- thinning out --------------------------------------------------------- */

static bool operands_unwritten(const ms_trace *trace, const trace_node *node, const ms_maker *maker)
{
    for (uint32_t i = 0; i < maker->input_count + maker->output_count; i++) {
        const trace_operand *operand = &node->operands.items[maker->first + i];
        bool is_output = i >= maker->input_count;
        const trace_life *life = &trace->lives.items[operand->life];
        if (life->writes != operand->writes || (is_output && (operand->writes != 0 || life->makers != 1))) {
            return false;
        }
    }
    return true;
}

/* Marks in `needed`, by life: a kept maker reads it, or this node saved it. */
static bool is_needed(const trace_node *node, const ms_maker *maker, const uint8_t *needed)
{
    for (uint32_t i = 0; i < maker->output_count; i++) {
        if (needed[node->operands.items[maker->first + maker->input_count + i].life]) {
            return true;
        }
    }
    return false;
}

void ms__trace_thin_makers(ms_trace *trace, trace_node *node, uint8_t *needed)
{
    for (size_t i = 0; i < node->makers.count; i++) {
        const ms_maker *maker = &node->makers.items[i];
        for (uint32_t k = 0; k < maker->output_count; k++) {
            trace->lives.items[node->operands.items[maker->first + maker->input_count + k].life].makers++;
        }
    }
    for (size_t i = 0; i < node->forward.count; i++) {
        if (node->forward.items[i].kind == MS_EVENT_SAVE) {
            needed[node->forward.items[i].storage] = 1;
        }
    }
    size_t kept = node->makers.count;
    for (size_t i = node->makers.count; i-- > 0;) {
        ms_maker maker = node->makers.items[i];
        if (!operands_unwritten(trace, node, &maker) || !is_needed(node, &maker, needed)) {
            continue;
        }
        for (uint32_t k = 0; k < maker.input_count; k++) {
            needed[node->operands.items[maker.first + k].life] = 1;
        }
        node->makers.items[--kept] = maker;
    }
    node->makers.count -= kept;
    if (node->makers.count > 0) {
        memmove(node->makers.items, node->makers.items + kept, node->makers.count * sizeof *node->makers.items);
    }
}
