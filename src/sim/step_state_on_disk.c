/*
 * Optimizer state on disk as an option of the step (execute/optimizer_stream.c executes it): the state leaves
 * memory, a few buffers are live while the optimizer runs, and its step takes at least the time to read and
 * write the state. If gradients are released too, buffers and time are in backward (sim_update.c). The state of
 * parameters on a GPU (optim/disk.py) passes through the host's buffers to the card and back, a chunk at a time; that is
 * faster than any disk. It lies on disk only if host memory has no room for it.
 */
#include "base/units.h"
#include "rules/rules_internal.h"
#include "sim/step_options.h"

static const uint64_t buffer_bytes = MS__STREAM_BUFFER_BYTES;

static uint64_t writing_ns(uint64_t bytes, const ms_hardware *hardware)
{
    return ms__rate_ns(bytes, hardware->disk.write_bytes_per_s);
}

/* The device reads one chunk and writes another by turns. */
uint64_t ms__state_moving_ns(uint64_t bytes, const ms_hardware *hardware)
{
    uint64_t reading_ns = ms__rate_ns(bytes, hardware->disk.read_bytes_per_s);
    return ms__add_sat(reading_ns, writing_ns(bytes, hardware));
}

static uint32_t state_on_disk_judge(const ms__step_case *facts)
{
    const ms_disk *disk = &facts->hardware->disk;
    uint64_t bytes = ms__streamed_state_bytes(&facts->graph->loop);
    if (!ms_hardware_host_is_device(facts->hardware)) {
        uint32_t rule = ms__step_state_on_host.judge(facts);
        if (rule != MS_RULE_HOST_CAP) {
            return rule == MS__STEP_ADMITTED ? MS_RULE_HOST_HAS_ROOM : rule;
        }
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
    if (!ms__disk_is_usable(disk)) {
        return MS_RULE_NO_DISK;
    }
    uint64_t cap_bytes = ms_rules_disk_cap(facts->hardware, facts->config);
    return cap_bytes < ms__add_sat(bytes, buffer_bytes) ? MS_RULE_DISK_CAP : MS__STEP_ADMITTED;
}

static int state_on_disk_apply(const ms_hardware *hardware, ms__step *step)
{
    ms_loop *loop = &step->graph->loop;
    uint64_t bytes = ms__streamed_state_bytes(loop);
    ms__step_move_state(step, bytes, ms__state_moving_ns(bytes, hardware), writing_ns(bytes, hardware), buffer_bytes);
    if (ms_hardware_host_is_device(hardware)) {
        loop->optimizer_transient_bytes = ms__add_sat(loop->optimizer_transient_bytes, buffer_bytes);
    } else {
        loop->optimizer_transient_bytes = ms__add_sat(ms__other_transient_bytes(loop), MS__DISK_ON_GPU_BYTES);
    }
    loop->optimizer_state_bytes -= bytes;
    /* A version on disk is freed once the next one is written. */
    step->tier_bytes[MS__DISK_TIER] = ms__add_sat(step->tier_bytes[MS__DISK_TIER], ms__add_sat(bytes, buffer_bytes));
    return MS_OK;
}

const ms__step_option ms__step_state_on_disk = {.judge = state_on_disk_judge, .apply = state_on_disk_apply};
