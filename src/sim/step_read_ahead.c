/*
 * Reading optimizer state ahead as an option of the step (execute/optimizer_stream.c executes it). With released
 * gradients the state of each layer is needed when its backward ends. Through the usual buffers the disk can do little
 * before, and backward waits for it. Buffers as large as a layer's state let the disk work while backward computes.
 */
#include "base/units.h"
#include "rules/rules_internal.h"
#include "sim/step_options.h"

static const uint32_t needed = 1u << MS_STEP_STATE_ON_DISK | 1u << MS_STEP_GRADIENT_RELEASE;

static uint64_t buffer_bytes_for(uint64_t layer_bytes)
{
    uint64_t rounded = ms__mul_sat(ms__div_up(layer_bytes, MS__STREAM_CHUNK_BYTES), MS__STREAM_CHUNK_BYTES);
    return ms__min_u64(rounded, MS__STREAM_BUFFER_MOST_BYTES);
}

static uint32_t read_ahead_judge(const ms__step_case *facts)
{
    uint32_t rule = ms__step_state_on_disk.judge(facts);
    if (rule == MS__STEP_ADMITTED) {
        rule = ms__step_gradient_release.judge(facts);
    }
    if (rule != MS__STEP_ADMITTED) {
        return rule;
    }
    const ms_loop *loop = &facts->graph->loop;
    uint64_t wanted = buffer_bytes_for(ms__layer_state_bytes(facts->graph));
    if (wanted <= MS__STREAM_BUFFER_BYTES) {
        return MS_RULE_TOO_SMALL;
    }
    uint64_t on_disk = ms__add_sat(ms__streamed_state_bytes(loop), wanted);
    return ms_rules_disk_cap(facts->hardware, facts->config) < on_disk ? MS_RULE_DISK_CAP : MS__STEP_ADMITTED;
}

static int read_ahead_apply(const ms_hardware *hardware, ms__step *step)
{
    (void)hardware;
    uint64_t wanted = buffer_bytes_for(step->state.layer_bytes);
    uint64_t more = ms__sub_sat(wanted, step->state.buffer_bytes);
    step->state.buffer_bytes = ms__add_sat(step->state.buffer_bytes, more);
    step->resident_bytes = ms__add_sat(step->resident_bytes, more);
    /* A version on disk is freed once the next one is written. */
    step->tier_bytes[MS__DISK_TIER] = ms__add_sat(step->tier_bytes[MS__DISK_TIER], more);
    return MS_OK;
}

const ms__step_option ms__step_state_read_ahead = {
    .needs = needed, .judge = read_ahead_judge, .apply = read_ahead_apply};
