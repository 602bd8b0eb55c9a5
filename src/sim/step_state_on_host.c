/*
 * Optimizer state in host memory as an option of a GPU's step (optim/host.py executes it): the state leaves the
 * card, torch's operators update one buffer's parameters at a time, and the optimizer's step takes at least the time
 * to move the state up and down. If gradients are released too, buffers and time are in backward (sim_update.c).
 */
#include "base/units.h"
#include "rules/rules_internal.h"
#include "sim/step_options.h"

static uint32_t state_on_host_judge(const ms__step_case *facts)
{
    uint64_t bytes = ms__streamed_state_bytes(&facts->graph->loop);
    if (ms_hardware_host_is_device(facts->hardware)) {
        return MS_RULE_HOST_IS_DEVICE;
    }
    if (bytes == 0) {
        return MS_RULE_OTHER_OPTIMIZER;
    }
    if (facts->config->mode == MS_MODE_CONSERVATIVE) {
        return MS_RULE_MODE;
    }
    if (!facts->config->enable_offloading) {
        return MS_RULE_FLAG_OFF;
    }
    return ms_rules_host_cap(facts->hardware, facts->config) < bytes ? MS_RULE_HOST_CAP : MS__STEP_ADMITTED;
}

static uint64_t down_ns(const ms_gpu *gpu, uint64_t bytes)
{
    return ms__rate_ns(bytes, gpu->to_host_bytes_per_s);
}

static uint64_t both_ways_ns(const ms_gpu *gpu, uint64_t bytes)
{
    uint64_t up_ns = ms__rate_ns(bytes, gpu->from_host_bytes_per_s);
    return gpu->copy_engines < 2 ? ms__add_sat(up_ns, down_ns(gpu, bytes)) : ms__max_u64(up_ns, down_ns(gpu, bytes));
}

/* Four fp32 arrays are made to update bf16 parameters in fp32, whose state takes 10 bytes an element or more. */
enum { WIDENED_PER_STATE = 2 };

uint64_t ms__other_transient_bytes(const ms_loop *loop)
{
    uint64_t all = ms__max_u64(loop->optimizer_state_bytes, 1), transient = loop->optimizer_transient_bytes;
    uint64_t other = all - ms__min_u64(ms__streamed_state_bytes(loop), all);
    uint64_t piece = ms__min_u64(MS__HOST_CHUNK_BYTES, ms__mul_sat(other, WIDENED_PER_STATE));
    return ms__max_u64(ms__mul_div(transient, other, all), ms__min_u64(transient, piece));
}

static int state_on_host_apply(const ms_hardware *hardware, ms__step *step)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    ms_loop *loop = &step->graph->loop;
    uint64_t bytes = ms__streamed_state_bytes(loop);
    if (gpu != NULL) {
        ms__step_move_state(step, bytes, both_ways_ns(gpu, bytes), down_ns(gpu, bytes), MS__HOST_BUFFER_BYTES);
    }
    loop->optimizer_transient_bytes = ms__add_sat(ms__other_transient_bytes(loop), MS__HOST_STREAM_BYTES);
    loop->optimizer_state_bytes -= bytes;
    step->tier_bytes[MS__HOST_TIER] = ms__add_sat(step->tier_bytes[MS__HOST_TIER], bytes);
    return MS_OK;
}

const ms__step_option ms__step_state_on_host = {
    .goes_first = true, .judge = state_on_host_judge, .apply = state_on_host_apply};
