/*
 * The process's memory in a step, read at its boundary: peak resident memory, and tensors in
 * maps of hostmem. Used by execute.c; the planner compares it with its prediction.
 *
 * The kernel's high-water mark is never reset here, because it belongs to the user. So it gives a
 * step's peak only if it rose in that step. For other steps the peak is the maps' peak, known for
 * every step, plus the most resident memory ever seen beside them. An evaluation splits a step into parts, whose
 * largest peak is the step's.
 *
 * A GPU's peak is the mark of torch's allocator, which is the user's too. If it changed in a step (it rose, or
 * the user reset it), it is that step's peak. Later steps of the same plan repeat that one.
 */
#include "base/os/procfs.h"
#include "base/units.h"
#include "execute/execute_internal.h"
#include "memscale/hostmem.h"

static uint64_t hostmem_held_bytes(const ms_hostmem_stats *stats)
{
    return ms__add_sat(stats->live_bytes, stats->cached_bytes);
}

void ms__step_memory_begin(ms__step_watch *watch)
{
    ms_hostmem_stats stats;
    ms_hostmem_get_stats(&stats);
    *watch = (ms__step_watch){.held_before_bytes = hostmem_held_bytes(&stats),
                              .live_before_bytes = stats.live_bytes,
                              .device_mark_bytes = UINT64_MAX,
                              .device_now_bytes = UINT64_MAX,
                              .device_peak_bytes = UINT64_MAX};
    ms__step_memory_mark(watch);
}

void ms__step_memory_forget_released(ms__step_watch *watch)
{
    ms_hostmem_stats stats;
    ms_hostmem_get_stats(&stats);
    uint64_t released = ms__sub_sat(watch->live_before_bytes, stats.live_bytes);
    watch->live_before_bytes = 0;
    watch->held_before_bytes = ms__sub_sat(watch->held_before_bytes, released);
}

void ms__step_memory_replanned(ms__step_watch *watch)
{
    watch->device_peak_bytes = UINT64_MAX;
}

void ms__step_memory_mark(ms__step_watch *watch)
{
    ms__resident resident;
    ms_error err;
    watch->mark_bytes = ms__resident_read(&resident, &err) == MS_OK ? resident.peak_bytes : 0;
    watch->device_mark_bytes = watch->device_now_bytes;
    ms_hostmem_reset_peak();
}

/* Linux keeps counts of pages for each processor and adds them up late, so a peak that nobody reset may read a little
 * lower than before: 0.25 MB, seen on two processors. Somebody's reset lowers it to what is resident then. */
static const uint64_t peak_wavers_bytes = 1 << 20;

static uint64_t step_peak_bytes(ms__step_watch *watch, const ms__resident *resident, const ms_hostmem_stats *stats)
{
    uint64_t mark = resident->peak_bytes;
    bool rose = mark > watch->mark_bytes, was_reset = ms__add_sat(mark, peak_wavers_bytes) < watch->mark_bytes;
    watch->mark_bytes = was_reset ? mark : ms__max_u64(mark, watch->mark_bytes);
    if (rose || was_reset) {
        watch->beside_bytes = ms__max_u64(watch->beside_bytes, ms__sub_sat(mark, stats->peak_held_bytes));
    }
    if (rose) {
        return mark;
    }
    uint64_t beside = ms__max_u64(watch->beside_bytes, ms__sub_sat(resident->now_bytes, hostmem_held_bytes(stats)));
    uint64_t peak = ms__add_sat(beside, stats->peak_held_bytes);
    return was_reset ? ms__max_u64(mark, peak) : ms__min_u64(mark, peak);
}

static uint64_t device_peak_bytes(ms__step_watch *watch)
{
    if (watch->device_now_bytes != watch->device_mark_bytes) {
        watch->device_peak_bytes = watch->device_now_bytes;
    }
    watch->device_mark_bytes = watch->device_now_bytes;
    return watch->device_peak_bytes;
}

/* Resident memory and maps from the last reset to now. False without the slots: the tensors' peak is unknown then. */
static bool part_ends(ms__step_watch *watch, ms_step_memory *part)
{
    ms_hostmem_stats stats;
    ms__resident resident;
    ms_error err;
    *part = (ms_step_memory){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    if (watch->device_now_bytes != UINT64_MAX) {
        return false; /* of a GPU: see device_peak_bytes() */
    }
    ms_hostmem_get_stats(&stats);
    if (stats.means != MS_HOSTMEM_SLOTS || ms__resident_read(&resident, &err) != MS_OK) {
        return false;
    }
    part->peak_bytes = ms__max_u64(step_peak_bytes(watch, &resident, &stats), resident.now_bytes);
    part->peak_held_bytes = ms__sub_sat(stats.peak_held_bytes, watch->held_before_bytes);
    part->resident_bytes = resident.now_bytes;
    part->held_bytes = ms__sub_sat(hostmem_held_bytes(&stats), watch->held_before_bytes);
    ms_hostmem_reset_peak();
    return true;
}

void ms__step_memory_end(ms__step_watch *watch, ms_step_memory *memory)
{
    if (watch->device_now_bytes != UINT64_MAX) {
        *memory = (ms_step_memory){device_peak_bytes(watch), UINT64_MAX, UINT64_MAX, UINT64_MAX};
        return;
    }
    if (part_ends(watch, memory)) {
        memory->peak_bytes = ms__max_u64(memory->peak_bytes, watch->step_peak_bytes);
        memory->peak_held_bytes = ms__max_u64(memory->peak_held_bytes, watch->step_peak_held_bytes);
    }
    watch->step_peak_bytes = watch->step_peak_held_bytes = 0;
}

void ms__step_memory_pause(ms__step_watch *watch)
{
    ms_step_memory part;
    if (watch->is_evaluating) {
        return;
    }
    watch->is_evaluating = true;
    watch->before_evaluation_bytes = UINT64_MAX;
    if (part_ends(watch, &part)) {
        watch->before_evaluation_bytes = part.resident_bytes;
        watch->step_peak_bytes = ms__max_u64(watch->step_peak_bytes, part.peak_bytes);
        watch->step_peak_held_bytes = ms__max_u64(watch->step_peak_held_bytes, part.peak_held_bytes);
    }
}

bool ms__step_memory_resume(ms__step_watch *watch, ms_evaluation_memory *memory)
{
    ms_step_memory part;
    if (!watch->is_evaluating) {
        return false;
    }
    watch->is_evaluating = false;
    (void)part_ends(watch, &part);
    *memory = (ms_evaluation_memory){watch->before_evaluation_bytes, part.peak_bytes};
    return true;
}

/* Less is not worth a new plan. */
static const uint64_t least_more_bytes = 1 << 20;

/* Bytes of live maps beside those known and those of optimizers; false if maps are not counted. */
static bool other_bytes(const ms__step_watch *watch, uint64_t known_bytes, uint64_t state_bytes, uint64_t *bytes)
{
    ms_hostmem_stats stats;
    ms_hostmem_get_stats(&stats);
    *bytes = ms__sub_sat(ms__sub_sat(stats.live_bytes, known_bytes), state_bytes);
    return watch->device_now_bytes == UINT64_MAX && stats.means == MS_HOSTMEM_SLOTS;
}

uint64_t ms__step_memory_pending(ms__step_watch *watch, uint64_t known_bytes, uint64_t state_bytes)
{
    uint64_t others;
    if (!other_bytes(watch, known_bytes, state_bytes, &others)) {
        return 0;
    }
    uint64_t pending = ms__sub_sat(others, watch->start_bytes);
    uint64_t more = ms__sub_sat(pending, watch->pending_bytes);
    if (more < least_more_bytes) {
        return 0;
    }
    watch->pending_bytes = pending;
    return more;
}

uint64_t ms__step_memory_more(ms__step_watch *watch, uint64_t known_bytes, uint64_t state_bytes, bool is_first)
{
    uint64_t others;
    if (!other_bytes(watch, known_bytes, state_bytes, &others)) {
        return 0;
    }
    if (state_bytes > watch->state_bytes) {
        /* An optimizer is known from its first step on: until then, state that it had counted among the others. */
        watch->start_bytes = ms__min_u64(watch->start_bytes, others);
    }
    watch->state_bytes = state_bytes;
    uint64_t more = ms__sub_sat(others, watch->start_bytes);
    if (!is_first && more < least_more_bytes) {
        return 0;
    }
    watch->start_bytes = ms__max_u64(watch->start_bytes, others);
    return is_first ? 0 : more;
}
