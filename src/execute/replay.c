/*
 * Replays: a layer runs again in backward, and each tensor that it saves must have the shape of the
 * one that its forward saved in the same slot (compare.c compares the values). Called by the host's
 * pack callable of a replay; knows slots, not tensors.
 */
#include <stdio.h>
#include <string.h>

#include "execute/execute_internal.h"

int ms_frame_replay_begin(ms_execute *execute, ms_frame *frame, bool whole, ms_error *err)
{
    const char *name = ms_execute_layer_name(execute, frame->layer);
    if (frame->is_replaying) {
        return ms_fail(err, MS_ESTATE, "layer %s: it is already being replayed", name);
    }
    execute->backward_begun = true;
    frame->is_replaying = true;
    frame->is_whole = whole;
    frame->cursor = 0;
    frame->missing = ms_frame_missing(frame);
    ms_frame_pin(frame);
    ms__prefetch_before(execute, frame->serial, frame->serial);
    return MS_OK;
}

/* "torch.float32[2, 3] on cpu" */
static void record_print(char *text, size_t bytes, const ms_record *record)
{
    int used = snprintf(text, bytes, "%s[", record->dtype);
    for (uint32_t i = 0; i < record->rank && used > 0 && (size_t)used < bytes; i++) {
        used += snprintf(text + used, bytes - (size_t)used, i > 0 ? ", %lld" : "%lld", (long long)record->size[i]);
    }
    if (used > 0 && (size_t)used < bytes) {
        snprintf(text + used, bytes - (size_t)used, "] on %s", record->device);
    }
}

static bool same_name(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

static bool record_equal(const ms_record *a, const ms_record *b)
{
    return a->rank == b->rank && same_name(a->dtype, b->dtype) && same_name(a->device, b->device) &&
           (a->rank == 0 || memcmp(a->size, b->size, a->rank * sizeof *a->size) == 0);
}

static ms_record slot_record(const ms_frame *frame, const ms__slot *slot)
{
    /* A frame that has saved only scalars has no array of sizes. */
    static const int64_t no_sizes[1];
    return (ms_record){.rank = slot->rank,
                       .size = slot->rank > 0 ? &frame->sizes.items[slot->size_at] : no_sizes,
                       .dtype = slot->dtype,
                       .device = slot->device};
}

static int fail_differs(ms_execute *execute, const ms_frame *frame, uint32_t index, const ms_record *saved,
                        const ms_record *now, ms_error *err)
{
    char saved_text[160], now_text[160];
    record_print(saved_text, sizeof saved_text, saved);
    record_print(now_text, sizeof now_text, now);
    ms_execute_hold(execute, frame->layer);
    return ms_fail(err, MS_EREPLAY,
                   "layer %s (call %u): saved tensor %u is %s when the layer is recomputed and was %s in "
                   "forward; a layer whose results depend on more than its arguments, parameters, buffers "
                   "and random state can't be recomputed",
                   ms_execute_layer_name(execute, frame->layer), frame->call, index, now_text, saved_text);
}

int ms_frame_replay_save(ms_execute *execute, ms_frame *frame, const ms_record *record, uint32_t *slot,
                         ms_capture *capture, ms_error *err)
{
    uint32_t index = frame->cursor;
    if (index >= frame->slots.count) {
        /* Hooks that ran outside the frame in forward run inside the replay. */
        *slot = index;
        *capture = MS_CAPTURE_IGNORE;
        return MS_OK;
    }
    const ms__slot *item = &frame->slots.items[index];
    ms_record saved = slot_record(frame, item);
    if (!record_equal(&saved, record)) {
        return fail_differs(execute, frame, index, &saved, record, err);
    }
    frame->cursor++;
    *slot = index;
    *capture = MS_CAPTURE_IGNORE;
    if (item->state == MS__SLOT_EMPTY && frame->missing > 0) {
        frame->missing--;
        *capture = frame->missing == 0 && !frame->is_whole ? MS_CAPTURE_LAST : MS_CAPTURE_PUT;
    }
    return MS_OK;
}

void ms_frame_put(ms_execute *execute, ms_frame *frame, uint32_t slot, void *memory)
{
    ms__slot *item = slot < frame->slots.count ? &frame->slots.items[slot] : NULL;
    if (item == NULL || item->state != MS__SLOT_EMPTY) {
        execute->host.release(execute->host.context, memory);
        return;
    }
    ms__frame_fill(execute, frame, item, memory);
}

int ms_frame_replay_end(ms_execute *execute, ms_frame *frame, bool failed, ms_error *err)
{
    int rc = MS_OK;
    frame->is_replaying = false;
    if (!failed && frame->missing > 0) {
        ms_execute_hold(execute, frame->layer);
        rc = ms_fail(err, MS_EREPLAY,
                     "layer %s (call %u): it saved %u tensors when it was recomputed and %zu in forward; a "
                     "layer whose results depend on more than its arguments, parameters, buffers and "
                     "random state can't be recomputed",
                     ms_execute_layer_name(execute, frame->layer), frame->call, frame->cursor, frame->slots.count);
    }
    if (failed || rc != MS_OK) {
        ms__frame_release_full(execute, frame, false);
    } else {
        ms_counter_add(&execute->counters, MS_COUNTER_RECOMPUTED_LAYERS, 1);
        ms__layer_prove(execute, frame->layer);
    }
    ms_frame_unpin(execute, frame);
    return rc;
}
