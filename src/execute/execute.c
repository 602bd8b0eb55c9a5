/*
 * The executor as an object: opening and closing it and its tier, the boundaries of steps,
 * and its queries. execute_internal.h lists the other files of the room.
 */
#include <string.h>

#include "execute/execute_internal.h"

int ms_execute_open(const ms_execute_host *host, const ms_offload_options *tier, ms_execute **execute, ms_error *err)
{
    ms_execute *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "out of memory for an executor");
    }
    made->host = *host;
    made->is_packing = true;
    made->host_is_device = true;
    made->device = -1;
    ms__table_clear(made);
    if (tier != NULL) {
        int rc = ms_execute_open_tier(made, tier, err);
        if (rc != MS_OK) {
            ms_free(made);
            return rc;
        }
    }
    ms__step_memory_begin(&made->watch);
    *execute = made;
    return MS_OK;
}

/* may wait */
static void tier_close(const ms_execute *execute, ms_offload *tier)
{
    const ms_execute_host *host = &execute->host;
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    ms_offload_close(tier);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
}

/* may wait */
static int tier_open(const ms_execute *execute, const ms_offload_options *options, ms_offload **tier, ms_error *err)
{
    const ms_execute_host *host = &execute->host;
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    int rc = ms_offload_open(options, tier, err);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
    return rc;
}

static int fail_has_tier(ms_error *err)
{
    return ms_fail(err, MS_ESTATE, "this executor already has a lower tier");
}

bool ms_execute_first_tier(uint64_t host_cap_bytes, uint64_t disk_cap_bytes, ms_offload_options *options)
{
    bool to_host = options->from_device ? host_cap_bytes > 0 : disk_cap_bytes == 0;
    options->tier = to_host ? MS_TIER_HOST : MS_TIER_DISK;
    options->cap_bytes = to_host ? host_cap_bytes : disk_cap_bytes;
    options->disk_cap_bytes = options->from_device ? disk_cap_bytes : 0;
    return host_cap_bytes > 0 || disk_cap_bytes > 0;
}

int ms_execute_open_tier(ms_execute *execute, const ms_offload_options *options, ms_error *err)
{
    ms_offload *tier = NULL;
    if (execute->tier != NULL) {
        return fail_has_tier(err);
    }
    int rc = tier_open(execute, options, &tier, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (execute->tier != NULL) {
        tier_close(execute, tier); /* another thread was faster */
        return fail_has_tier(err);
    }
    execute->tier = tier;
    ms_execute_set_device(execute, options->from_device ? options->device_kind : MS_DEVICE_CPU, options->device);
    return MS_OK;
}

void ms_execute_set_device(ms_execute *execute, ms_device_kind kind, uint32_t number)
{
    execute->host_is_device = ms_device_host_is_device(kind);
    execute->device = execute->host_is_device ? -1 : (int)number;
}

void ms_execute_close(ms_execute *execute)
{
    if (execute == NULL) {
        return;
    }
    ms__fetched_release_all(execute);
    if (execute->tier != NULL) {
        ms__extents_drain(execute);
        tier_close(execute, execute->tier);
    }
    ms__threads_purge(execute, true);
    ms__table_free(execute);
    ms_free(execute->buckets);
    ms_free(execute);
}

bool ms_execute_has_tier(const ms_execute *execute)
{
    return execute->tier != NULL;
}

bool ms_execute_host_is_device(const ms_execute *execute)
{
    return execute->host_is_device;
}

int ms_execute_device(const ms_execute *execute)
{
    return execute->device;
}

void ms_execute_set_overlap(ms_execute *execute, bool overlaps)
{
    execute->is_in_step = !overlaps;
}

const char *ms_execute_tier_description(const ms_execute *execute)
{
    return execute->tier != NULL ? ms_offload_description(execute->tier) : "";
}

/* ---- between steps ---------------------------------------------------------------- */

void ms_execute_backward_ended(ms_execute *execute)
{
    ms_frame *frame = execute->first_full;
    while (frame != NULL) {
        if (frame->pins > 0) {
            frame = frame->next_full;
            continue;
        }
        ms__frame_release_full(execute, frame, false);
        frame = execute->first_full;
    }
    execute->current_frame = 0;
    ms__fetched_release_all(execute); /* packed storages have no tier to retire them */
    ms_execute_poll(execute);
}

enum { INNER_FORWARDS_MOST = 16 };

static bool follows_inner(const ms_execute *execute)
{
    return execute->inner_ended && !execute->outer_ended && execute->inner_forwards < INNER_FORWARDS_MOST;
}

static bool step_has_ended(const ms_execute *execute, ms_boundary boundary)
{
    if (boundary == MS_BOUNDARY_OPTIMIZER) {
        return true;
    }
    if (boundary == MS_BOUNDARY_ANOTHER_OPTIMIZER) {
        return execute->step_started_ns != 0 || execute->hooked_in_step || execute->backward_begun;
    }
    if (execute->optimizer_seen || follows_inner(execute)) {
        return false;
    }
    /* If neither hooks nor the host can see a backward, a finished forward ends a step. */
    return execute->backward_begun || (execute->forward_done && !execute->hooked_in_step);
}

bool ms_execute_boundary(ms_execute *execute, ms_boundary boundary, uint64_t *step, uint64_t *step_ns)
{
    bool has_ended = step_has_ended(execute, boundary);
    execute->optimizer_seen |= boundary != MS_BOUNDARY_FORWARD;
    if (!has_ended) {
        execute->inner_forwards += follows_inner(execute);
        if (execute->steps == 0 && !execute->forward_done) {
            ms__step_memory_mark(&execute->watch);
        }
        ms_execute_poll(execute);
        return false;
    }
    uint64_t now_ns = ms_now_ns();
    *step_ns = execute->step_started_ns != 0 ? now_ns - execute->step_started_ns : 0;
    *step = ++execute->steps;
    ms_counter_add(&execute->counters, MS_COUNTER_STEPS, 1);
    ms__packing_tell(execute);
    execute->step_started_ns = 0;
    execute->forward_done = false;
    execute->forwards = 0;
    execute->hooked_in_step = false;
    execute->backward_begun = false;
    execute->inner_forwards = execute->outer_ended ? 0 : execute->inner_forwards;
    execute->inner_ended = execute->outer_ended = false;
    execute->tier_full = false;
    ms_execute_backward_ended(execute);
    if (execute->tier != NULL) {
        ms__extents_drain(execute);
    }
    ms__threads_purge(execute, false);
    ms__step_memory_end(&execute->watch, &execute->step_memory);
    return true;
}

/* The state of optimizers and what the loop holds are there from the second step on. */
enum { FIRST_STARTS = 2 };

uint64_t ms_execute_forward_begins(ms_execute *execute, uint64_t known_bytes, uint64_t state_bytes,
                                   uint32_t *waiting_forwards)
{
    *waiting_forwards = 0;
    if (execute->steps == 0 && execute->forwards == 0) {
        ms__step_memory_forget_released(&execute->watch);
    }
    if (execute->backward_begun) {
        return 0;
    }
    if (execute->forward_done) {
        *waiting_forwards = execute->forwards;
        return ms__step_memory_pending(&execute->watch, known_bytes, state_bytes);
    }
    return ms__step_memory_more(&execute->watch, known_bytes, state_bytes, execute->steps < FIRST_STARTS);
}

void ms_execute_evaluation_begins(ms_execute *execute)
{
    ms__step_memory_pause(&execute->watch);
}

bool ms_execute_evaluation_ends(ms_execute *execute, ms_evaluation_memory *memory)
{
    return ms__step_memory_resume(&execute->watch, memory);
}

uint64_t ms_execute_plan_steps(const ms_execute *execute)
{
    return execute->steps - execute->steps_before_plan;
}

bool ms_execute_expect_backward(ms_execute *execute)
{
    execute->hooked_in_step = true;
    return !execute->optimizer_seen;
}

void ms_execute_backward_begins(ms_execute *execute)
{
    execute->backward_begun = true;
}

void ms_execute_backward_reached(ms_execute *execute, bool parameters)
{
    execute->outer_ended |= parameters;
    execute->inner_ended |= !parameters;
}

void ms_execute_device_peak(ms_execute *execute, uint64_t mark_bytes)
{
    execute->watch.device_now_bytes = mark_bytes;
}

ms_step_memory ms_execute_step_memory(const ms_execute *execute)
{
    return execute->step_memory;
}

/* ---- queries ------------------------------------------------------------------------ */

void ms_execute_get_stats(const ms_execute *execute, ms_execute_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    stats->open_frames = execute->open_frames;
    stats->live_frames = execute->live_frames;
    stats->live_slots = execute->live_slots;
    stats->live_extents = execute->live_extents;
    stats->storing_bytes = execute->storing_bytes;
    stats->fetched_bytes = execute->back_bytes;
    stats->packed_bytes = execute->packed_bytes;
    stats->backward_begun = execute->backward_begun;
    stats->optimizer_seen = execute->optimizer_seen;
    if (execute->tier != NULL) {
        ms_offload_stats tier;
        ms_offload_get_stats(execute->tier, &tier);
        stats->tier_bytes = tier.tier_bytes;
    }
}

ms_counters *ms_execute_counters(ms_execute *execute)
{
    return &execute->counters;
}
