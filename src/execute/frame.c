/*
 * Frames: the begin and end of a layer's call, and the tensors that autograd saves in a call
 * that will be replayed. Called from hooks and from autograd's pack and unpack; decides nothing
 * about transfers (extent.c).
 */
#include <string.h>

#include "execute/execute_internal.h"

/* ---- threads ------------------------------------------------------------- */

static ms__thread_state *thread_find(const ms_execute *execute, uint64_t key)
{
    for (size_t i = 0; i < execute->threads.count; i++) {
        if (execute->threads.items[i]->key == key) {
            return execute->threads.items[i];
        }
    }
    return NULL;
}

static ms__thread_state *thread_get(ms_execute *execute, uint64_t key, ms_error *err)
{
    ms__thread_state *thread = thread_find(execute, key);
    if (thread != NULL) {
        return thread;
    }
    thread = ms_calloc(1, sizeof *thread);
    ms__thread_state **place = thread != NULL ? MS__ARRAY_PUSH(&execute->threads) : NULL;
    if (place == NULL) {
        ms_free(thread);
        ms_fail(err, MS_ENOMEM, "out of memory for a thread's state");
        return NULL;
    }
    thread->key = key;
    thread->after = execute->root_start.after;
    *place = thread;
    return thread;
}

/* Frees the state of idle threads: threads come and go (data-parallel forwards). */
void ms__threads_purge(ms_execute *execute, bool all)
{
    size_t kept = 0;
    for (size_t i = 0; i < execute->threads.count; i++) {
        ms__thread_state *thread = execute->threads.items[i];
        if (!all && (thread->in_root || thread->open != NULL)) {
            execute->threads.items[kept++] = thread;
            continue;
        }
        MS__ARRAY_FREE(&thread->calls);
        ms_free(thread);
    }
    execute->threads.count = kept;
    if (all) {
        MS__ARRAY_FREE(&execute->threads);
    }
}

/* ---- frames ----------------------------------------------------------------- */

static void full_link(ms_execute *execute, ms_frame *frame)
{
    frame->previous_full = NULL;
    frame->next_full = execute->first_full;
    if (frame->next_full != NULL) {
        frame->next_full->previous_full = frame;
    }
    execute->first_full = frame;
}

static void full_unlink(ms_execute *execute, ms_frame *frame)
{
    if (frame->previous_full != NULL) {
        frame->previous_full->next_full = frame->next_full;
    } else {
        execute->first_full = frame->next_full;
    }
    if (frame->next_full != NULL) {
        frame->next_full->previous_full = frame->previous_full;
    }
}

void ms__frame_fill(ms_execute *execute, ms_frame *frame, ms__slot *slot, void *memory)
{
    slot->memory = memory;
    slot->state = MS__SLOT_FULL;
    slot->is_taken = false;
    if (frame->full_slots++ == 0) {
        full_link(execute, frame);
    }
}

/* FULL -> EMPTY. Releases last: releasing may run any code. */
static void frame_empty(ms_execute *execute, ms_frame *frame, ms__slot *slot)
{
    void *memory = slot->memory;
    slot->memory = NULL;
    slot->state = MS__SLOT_EMPTY;
    frame->taken_slots -= slot->is_taken;
    slot->is_taken = false;
    if (--frame->full_slots == 0) {
        full_unlink(execute, frame);
    }
    execute->host.release(execute->host.context, memory);
}

void ms__frame_release_full(ms_execute *execute, ms_frame *frame, bool only_taken)
{
    frame->holds++;
    for (size_t i = 0; i < frame->slots.count && frame->full_slots > 0; i++) {
        ms__slot *slot = &frame->slots.items[i];
        if (slot->state == MS__SLOT_FULL && (slot->is_taken || !only_taken)) {
            frame_empty(execute, frame, slot);
        }
    }
    ms_frame_unhold(execute, frame);
}

void ms__frame_free_if_unused(ms_execute *execute, ms_frame *frame)
{
    if (frame->is_open || frame->holds > 0 || frame->live_slots > 0) {
        return;
    }
    execute->live_frames--;
    MS__ARRAY_FREE(&frame->slots);
    MS__ARRAY_FREE(&frame->sizes);
    MS__ARRAY_FREE(&frame->marks);
    ms_free(frame);
}

static void thread_close_frame(ms_execute *execute, ms__thread_state *thread)
{
    ms_frame *frame = thread->open;
    if (frame == NULL) {
        return;
    }
    thread->open = NULL;
    frame->is_open = false;
    ms__choice_end(&frame->choice);
    execute->open_frames--;
    ms__frame_free_if_unused(execute, frame);
}

int ms_execute_enter_root(ms_execute *execute, uint64_t thread_key, bool *stale, ms_error *err)
{
    ms__thread_state *thread = thread_get(execute, thread_key, err);
    if (thread == NULL) {
        return MS_ENOMEM;
    }
    *stale = thread->in_root || thread->open != NULL;
    thread_close_frame(execute, thread);
    thread->in_root = true;
    thread->root_calls = 0;
    thread->after = execute->root_start.after;
    thread->calls.count = 0;
    execute->forward_done = false;
    if (execute->step_started_ns == 0) {
        execute->step_started_ns = ms_now_ns();
    }
    ms_execute_poll(execute);
    return MS_OK;
}

void ms_execute_leave_root(ms_execute *execute, uint64_t thread_key, bool failed)
{
    ms__thread_state *thread = thread_find(execute, thread_key);
    if (thread == NULL) {
        return;
    }
    thread_close_frame(execute, thread);
    thread->in_root = false;
    thread->calls.count = 0;
    execute->forward_done |= !failed;
    execute->forwards += !failed;
    ms_execute_poll(execute);
}

bool ms_execute_in_root(const ms_execute *execute, uint64_t thread_key)
{
    const ms__thread_state *thread = thread_find(execute, thread_key);
    return thread != NULL && thread->in_root;
}

/* Counts a call of the layer and returns its number. */
static int call_number(const ms_execute *execute, ms__thread_state *thread, uint32_t layer, uint32_t *call,
                       ms_error *err)
{
    if (layer >= execute->layers.count) {
        return ms_fail(err, MS_EINVAL, "layer number %u is unknown", layer);
    }
    while (thread->calls.count <= layer) {
        if (MS__ARRAY_PUSH(&thread->calls) == NULL) {
            return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", ms_execute_layer_name(execute, layer));
        }
    }
    *call = thread->calls.items[layer]++;
    return MS_OK;
}

/* The technique closest to `planned` that is possible now. */
static ms_technique feasible_technique(const ms_execute *execute, ms_technique planned, bool replayable)
{
    bool can_move = ms__tier_usable(execute);
    ms_technique_row row = *ms_technique_of(planned);
    if (row.replays && !replayable) {
        return can_move ? MS_TECHNIQUE_OFFLOAD_DISK : MS_TECHNIQUE_KEEP;
    }
    if (can_move || !ms_technique_moves(planned)) {
        return planned;
    }
    row.moves_input = false;
    row.rest = row.replays ? MS_REST_NONE : MS_REST_STAYS;
    ms_technique nearest = ms_technique_with(&row);
    return nearest < MS_TECHNIQUE_COUNT ? nearest : MS_TECHNIQUE_KEEP;
}

ms_technique ms_execute_peek(const ms_execute *execute, uint64_t thread_key, uint32_t layer)
{
    const ms__thread_state *thread = thread_find(execute, thread_key);
    if (layer == MS_ROOT_LAYER) {
        return (ms_technique)(thread != NULL ? thread->after : execute->root_start.after);
    }
    uint32_t call = thread != NULL && layer < thread->calls.count ? thread->calls.items[layer] : 0;
    ms_technique planned = (ms_technique)ms__table_find(execute, layer, call).technique;
    return ms__layer_is_held(execute, layer) ? feasible_technique(execute, planned, false) : planned;
}

static int frame_open(ms_execute *execute, ms__thread_state *thread, uint32_t layer, uint32_t call,
                      ms_technique technique, uint32_t selection, ms_error *err)
{
    ms_frame *frame = ms_calloc(1, sizeof *frame);
    if (frame != NULL && ms__choice_begin(execute, selection, &frame->choice) != MS_OK) {
        ms_free(frame);
        frame = NULL;
    }
    if (frame == NULL) {
        return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", ms_execute_layer_name(execute, layer));
    }
    frame->serial = ++execute->clock;
    frame->layer = layer;
    frame->call = call;
    frame->technique = (uint8_t)technique;
    frame->packs = layer != MS_ROOT_LAYER && ms__call_packs(execute, selection);
    frame->is_open = true;
    thread->open = frame;
    execute->open_frames++;
    execute->live_frames++;
    execute->hooked_in_step = true; /* its backward is observable */
    return MS_OK;
}

int ms_execute_enter(ms_execute *execute, uint64_t thread_key, uint32_t layer, const ms_call_facts *facts,
                     ms_frame **frame, ms_error *err)
{
    ms__thread_state *thread = thread_get(execute, thread_key, err);
    if (thread == NULL) {
        return MS_ENOMEM;
    }
    thread_close_frame(execute, thread);
    ms_execute_poll(execute);
    uint32_t call = 0, selection = 0;
    ms_technique planned;
    if (layer == MS_ROOT_LAYER) {
        call = thread->root_calls++;
        planned = (ms_technique)thread->after;
    } else {
        int rc = call_number(execute, thread, layer, &call, err);
        if (rc != MS_OK) {
            return rc;
        }
        ms__call_plan found = ms__table_find(execute, layer, call);
        planned = (ms_technique)found.technique;
        selection = found.selection;
        thread->after = found.after;
    }
    bool replayable = facts->replayable && !ms__layer_is_held(execute, layer);
    ms_technique technique = feasible_technique(execute, planned, replayable);
    bool packs = layer != MS_ROOT_LAYER && ms__call_packs(execute, selection);
    if (technique == MS_TECHNIQUE_KEEP && !execute->is_watched && !packs) {
        *frame = NULL;
        return MS_OK;
    }
    int rc = frame_open(execute, thread, layer, call, technique, selection, err);
    if (rc == MS_OK) {
        *frame = thread->open;
    }
    return rc;
}

void ms_execute_leave(ms_execute *execute, uint64_t thread_key)
{
    ms__thread_state *thread = thread_find(execute, thread_key);
    if (thread != NULL) {
        thread_close_frame(execute, thread);
    }
    ms_execute_poll(execute);
    ms__stores_finish(execute);
}

ms_technique ms_frame_technique(const ms_frame *frame)
{
    return (ms_technique)frame->technique;
}

ms_frame_hook ms_frame_hook_of(const ms_frame *frame)
{
    const ms_technique_row *row = ms_technique_of((ms_technique)frame->technique);
    if (row->replays || row->set > 0) {
        return row->replays ? MS_FRAME_REPLAYS : MS_FRAME_CHOOSES;
    }
    return row->rest == MS_REST_STAYS ? MS_FRAME_KEEPS : MS_FRAME_MOVES;
}

bool ms_frame_rest_stays(const ms_frame *frame)
{
    return ms_technique_of((ms_technique)frame->technique)->rest == MS_REST_STAYS;
}

uint32_t ms_frame_layer(const ms_frame *frame)
{
    return frame->layer;
}

uint32_t ms_frame_call(const ms_frame *frame)
{
    return frame->call;
}

bool ms_frame_is_open(const ms_frame *frame)
{
    return frame->is_open;
}

void ms_frame_pin(ms_frame *frame)
{
    frame->holds++;
    frame->pins++;
}

void ms_frame_unpin(ms_execute *execute, ms_frame *frame)
{
    frame->pins--;
    ms_frame_unhold(execute, frame);
}

uint32_t ms_frame_missing(const ms_frame *frame)
{
    return frame->live_slots - frame->full_slots;
}

void ms_frame_hold(ms_frame *frame)
{
    frame->holds++;
}

void ms_frame_unhold(ms_execute *execute, ms_frame *frame)
{
    frame->holds--;
    ms__frame_free_if_unused(execute, frame);
}

/* ---- slots ------------------------------------------------------------------ */

void ms_execute_kept(ms_execute *execute)
{
    ms_counter_add(&execute->counters, MS_COUNTER_KEPT_TENSORS, 1);
}

int ms_frame_save(ms_execute *execute, ms_frame *frame, const ms_record *record, bool kept, uint32_t *slot,
                  ms_error *err)
{
    const char *name = ms_execute_layer_name(execute, frame->layer);
    if (record->rank > MS_RECORD_RANK_MAX || frame->slots.count >= UINT32_MAX) {
        return ms_fail(err, MS_EOVERFLOW, "layer %s: a saved tensor of rank %u, or too many of them", name,
                       record->rank);
    }
    size_t size_at = frame->sizes.count;
    if (size_at > UINT32_MAX - MS_RECORD_RANK_MAX ||
        MS__ARRAY_RESERVE(&frame->sizes, size_at + record->rank) != MS_OK) {
        return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", name);
    }
    ms__slot *item = MS__ARRAY_PUSH(&frame->slots);
    if (item == NULL) {
        return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", name);
    }
    if (record->rank > 0) {
        memcpy(frame->sizes.items + size_at, record->size, record->rank * sizeof *record->size);
    }
    frame->sizes.count += record->rank;
    item->size_at = (uint32_t)size_at;
    item->rank = (uint8_t)record->rank;
    item->dtype = record->dtype;
    item->device = record->device;
    item->state = kept ? MS__SLOT_KEPT : MS__SLOT_EMPTY;
    if (kept) {
        ms_execute_kept(execute);
    } else {
        frame->live_slots++;
        execute->live_slots++;
    }
    *slot = (uint32_t)(frame->slots.count - 1);
    return MS_OK;
}

void ms__enter_backward_frame(ms_execute *execute, uint64_t serial)
{
    execute->backward_begun = true;
    if (execute->current_frame == serial) {
        return;
    }
    execute->current_frame = serial;
    /* A graph that is not retained has dropped these handles already. Releasing may run any code, so
     * the list is read again after each frame. */
    ms_frame *frame = execute->first_full;
    while (frame != NULL) {
        if (frame->serial == serial || frame->taken_slots == 0 || frame->pins > 0) {
            frame = frame->next_full;
            continue;
        }
        ms__frame_release_full(execute, frame, true);
        frame = execute->first_full;
    }
    ms__fetched_retire(execute, serial);
}

void *ms_frame_take(ms_execute *execute, ms_frame *frame, uint32_t slot)
{
    if (slot >= frame->slots.count) {
        return NULL;
    }
    ms__enter_backward_frame(execute, frame->serial);
    ms__slot *item = &frame->slots.items[slot];
    if (item->state != MS__SLOT_FULL) {
        return NULL;
    }
    frame->taken_slots += !item->is_taken;
    item->is_taken = true;
    return item->memory;
}

void ms_frame_drop(ms_execute *execute, ms_frame *frame, uint32_t slot)
{
    ms__slot *item = &frame->slots.items[slot];
    if (item->state == MS__SLOT_KEPT || item->state == MS__SLOT_DEAD) {
        return;
    }
    frame->holds++;
    if (item->state == MS__SLOT_FULL) {
        frame_empty(execute, frame, item);
    } else if (frame->is_replaying && slot >= frame->cursor && frame->missing > 0) {
        frame->missing--;
    }
    item->state = MS__SLOT_DEAD;
    frame->live_slots--;
    execute->live_slots--;
    ms_frame_unhold(execute, frame);
}
