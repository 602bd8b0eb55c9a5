/*
 * The buffers of state_slots.h. A version of a chunk is released only after the next one was
 * written, so after any failure one version is intact.
 */
#include "execute/state_slots.h"

#include "base/units.h"
#include "memscale/hostmem.h"

static int ticket_wait(ms__state_slots *s, ms_ticket ticket, ms_error *err)
{
    uint64_t began_ns = ms_now_ns();
    int rc = ms_offload_wait(s->engine, ticket, err);
    s->stall_ns += ms_now_ns() - began_ns;
    return rc;
}

static void drop_ticket(ms__state_slots *s, ms_ticket *ticket)
{
    if (*ticket != 0) {
        ms_offload_drop(s->engine, *ticket);
        *ticket = 0;
    }
}

static void state_slot_free(ms__state_slot *slot)
{
    slot->state = MS__SLOT_FREE;
    if (slot->chunk != NULL) {
        slot->chunk->slot = NULL;
        slot->chunk = NULL;
    }
}

static bool state_slot_map(ms__state_slots *s, ms__state_slot *slot)
{
    slot->memory = ms_hostmem_alloc(MS_OPTIMIZER_CHUNK_BYTES);
    if (slot->memory == NULL) {
        return false;
    }
    s->resident_bytes += MS_OPTIMIZER_CHUNK_BYTES;
    s->peak_resident_bytes = ms__max_u64(s->peak_resident_bytes, s->resident_bytes);
    return true;
}

static void state_slot_unmap(ms__state_slots *s, ms__state_slot *slot)
{
    if (slot->memory != NULL && !slot->is_pinned) {
        ms_hostmem_release(slot->memory);
        slot->memory = NULL;
        s->resident_bytes -= MS_OPTIMIZER_CHUNK_BYTES;
    }
}

static void state_slot_bind(ms__state_slot *slot, ms__state_chunk *chunk, ms__state_place state)
{
    slot->chunk = chunk;
    slot->state = state;
    chunk->slot = slot;
}

/* ---- writing ------------------------------------------------------------------ */

static int state_slot_begin_store(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    int rc =
        ms_offload_store(s->engine, slot->memory, slot->chunk->bytes, MS_OPTIMIZER_CHUNK_BYTES, &slot->stored, err);
    slot->state = rc == MS_OK ? MS__SLOT_STORING : MS__SLOT_UNSAVED;
    slot->began = ++s->clock;
    return rc;
}

/* Waits for the end of a started store. */
static int state_slot_end_store(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    int rc = ticket_wait(s, slot->stored, err);
    if (rc == MS_OK) {
        drop_ticket(s, &slot->chunk->ticket);
        slot->chunk->ticket = slot->stored;
        slot->stored = 0;
        state_slot_free(slot);
        return MS_OK;
    }
    slot->state = MS__SLOT_UNSAVED;
    if (rc == MS_ETIMEDOUT) {
        slot->is_pinned = true; /* dropping the ticket would wait again */
        slot->stored = 0;
    } else {
        drop_ticket(s, &slot->stored);
    }
    return rc;
}

/* Stores again, in the space of the outdated version. */
static int state_slot_store_again(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    drop_ticket(s, &slot->chunk->ticket);
    int rc = state_slot_begin_store(s, slot, err);
    return rc == MS_OK ? state_slot_end_store(s, slot, err) : rc;
}

static int state_slot_settle(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    int rc = state_slot_end_store(s, slot, err);
    return rc == MS_OK || rc == MS_ETIMEDOUT ? rc : state_slot_store_again(s, slot, err);
}

int ms__state_store(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    int rc = state_slot_begin_store(s, slot, err);
    return rc == MS_OK ? MS_OK : state_slot_store_again(s, slot, err);
}

int ms__state_save_rest(ms__state_slots *s, ms_error *err)
{
    int rc = MS_OK;
    for (int i = 0; rc == MS_OK && i < MS_OPTIMIZER_CHUNKS_MOST; i++) {
        if (s->slots[i].state == MS__SLOT_UNSAVED) {
            rc = state_slot_store_again(s, &s->slots[i], err);
        }
    }
    return rc;
}

/* ---- taking a buffer ------------------------------------------------------------- */

/* The slot in this state whose transfer started first. */
static ms__state_slot *state_slot_oldest(ms__state_slots *s, ms__state_place state)
{
    ms__state_slot *found = NULL;
    for (int i = 0; i < MS_OPTIMIZER_CHUNKS_MOST; i++) {
        ms__state_slot *slot = &s->slots[i];
        if (slot->state == state && (found == NULL || slot->began < found->began)) {
            found = slot;
        }
    }
    return found;
}

/* A free slot with memory: one that has it already if possible; NULL if there is none. */
static ms__state_slot *state_slot_free_one(ms__state_slots *s)
{
    ms__state_slot *bare = NULL;
    for (uint32_t i = 0; i < s->slot_count; i++) {
        ms__state_slot *slot = &s->slots[i];
        if (slot->state == MS__SLOT_FREE && slot->memory != NULL) {
            return slot;
        }
        bare = slot->state == MS__SLOT_FREE && bare == NULL ? slot : bare;
    }
    return bare != NULL && state_slot_map(s, bare) ? bare : NULL;
}

/* Waits for a read-ahead and releases it; false if it never ends. */
static bool state_slot_stop_reading(ms__state_slots *s, ms__state_slot *slot)
{
    int rc = ticket_wait(s, slot->chunk->ticket, NULL);
    s->ahead_count--;
    state_slot_free(slot);
    if (rc == MS_ETIMEDOUT) {
        slot->state = MS__SLOT_LOST;
        slot->is_pinned = true;
    }
    return rc != MS_ETIMEDOUT;
}

/* A slot with memory that is free, or will be when the oldest write has ended; NULL if there is neither. */
static ms__state_slot *state_slot_take_written(ms__state_slots *s, int *rc, ms_error *err)
{
    ms__state_slot *slot = state_slot_free_one(s);
    *rc = MS_OK;
    while (slot == NULL && *rc == MS_OK) {
        ms__state_slot *writing = state_slot_oldest(s, MS__SLOT_STORING);
        if (writing == NULL) {
            return NULL;
        }
        *rc = state_slot_settle(s, writing, err);
        slot = state_slot_free_one(s);
    }
    return slot;
}

static int state_slot_none(const ms__state_slots *s, ms_error *err)
{
    for (uint32_t i = 0; i < s->slot_count; i++) {
        if (s->slots[i].state == MS__SLOT_FREE) {
            return ms_fail(err, MS_ENOMEM, "optimizer state: no memory for a buffer of %s",
                           ms__text_bytes(MS_OPTIMIZER_CHUNK_BYTES).text);
        }
    }
    return ms_fail(err, MS_ESTATE, "optimizer state: every buffer holds what could not be moved");
}

static int state_slot_take(ms__state_slots *s, ms__state_slot **out, ms_error *err)
{
    int rc;
    ms__state_slot *slot = state_slot_take_written(s, &rc, err);
    while (rc == MS_OK && slot == NULL) {
        ms__state_slot *reading = state_slot_oldest(s, MS__SLOT_FETCHING);
        if (reading == NULL) {
            return state_slot_none(s, err);
        }
        slot = state_slot_stop_reading(s, reading) ? reading : NULL;
    }
    *out = slot;
    return rc;
}

/* ---- reading --------------------------------------------------------------------- */

bool ms__state_read_ahead(ms__state_slots *s, ms__state_chunk *chunk, int *rc, ms_error *err)
{
    *rc = MS_OK;
    if (chunk->slot != NULL || chunk->ticket == 0) {
        return true;
    }
    if (s->ahead_count >= s->slot_count / 2) {
        return false;
    }
    ms__state_slot *slot = state_slot_take_written(s, rc, err);
    if (slot == NULL || *rc != MS_OK) {
        return false;
    }
    /* If it cannot start, the update will try again and report it. */
    if (ms_offload_fetch(s->engine, chunk->ticket, slot->memory, MS_OPTIMIZER_CHUNK_BYTES, NULL) == MS_OK) {
        state_slot_bind(slot, chunk, MS__SLOT_FETCHING);
        slot->began = ++s->clock;
        s->ahead_count++;
    }
    return true;
}

/* Waits for the read of a bound slot. */
static int state_slot_end_fetch(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    int rc = ticket_wait(s, slot->chunk->ticket, err);
    if (rc == MS_OK) {
        slot->state = MS__SLOT_FILLED;
        return MS_OK;
    }
    state_slot_free(slot);
    if (rc == MS_ETIMEDOUT) {
        slot->state = MS__SLOT_LOST;
        slot->is_pinned = true;
    }
    return rc;
}

static int state_slot_fetch(ms__state_slots *s, ms__state_chunk *chunk, ms__state_slot *slot, ms_error *err)
{
    int rc = ms_offload_fetch(s->engine, chunk->ticket, slot->memory, MS_OPTIMIZER_CHUNK_BYTES, err);
    if (rc != MS_OK) {
        return rc;
    }
    state_slot_bind(slot, chunk, MS__SLOT_FETCHING);
    return state_slot_end_fetch(s, slot, err);
}

int ms__state_load(ms__state_slots *s, ms__state_chunk *chunk, ms__state_slot **out, bool *is_new, ms_error *err)
{
    ms__state_slot *slot = chunk->slot;
    int rc = MS_OK;
    *is_new = false;
    if (slot != NULL && slot->state == MS__SLOT_STORING) {
        rc = state_slot_settle(s, slot, err);
        slot = chunk->slot;
    }
    if (rc != MS_OK) {
        return rc;
    }
    if (slot != NULL && slot->state == MS__SLOT_FETCHING) {
        s->ahead_count--;
        rc = state_slot_end_fetch(s, slot, err);
    } else if (slot != NULL) {
        slot->state = MS__SLOT_FILLED;
    } else {
        rc = state_slot_take(s, &slot, err);
        if (rc == MS_OK && chunk->ticket != 0) {
            rc = state_slot_fetch(s, chunk, slot, err);
        } else if (rc == MS_OK) {
            state_slot_bind(slot, chunk, MS__SLOT_FILLED);
            *is_new = true;
        }
    }
    if (rc == MS_OK) {
        *out = slot;
    }
    return rc;
}

/* ---- releasing -------------------------------------------------------------------- */

void ms__state_release(ms__state_slot *slot)
{
    state_slot_free(slot);
}

void ms__state_forget(ms__state_slots *s, ms__state_chunk *chunk)
{
    if (chunk->slot != NULL && chunk->slot->state == MS__SLOT_FETCHING) {
        state_slot_stop_reading(s, chunk->slot);
    }
}

void ms__state_drop(ms__state_slots *s, ms__state_chunk *chunk)
{
    ms__state_slot *slot = chunk->slot;
    ms__state_forget(s, chunk);
    if (chunk->slot != NULL && slot->state == MS__SLOT_STORING) {
        (void)state_slot_end_store(s, slot, NULL);
    }
    if (chunk->slot != NULL) {
        state_slot_free(slot);
    }
    drop_ticket(s, &chunk->ticket);
}

/* Waits for the slot's write or cancels its read-ahead, and frees its memory unless it holds the only copy. */
static int state_slot_rest(ms__state_slots *s, ms__state_slot *slot, ms_error *err)
{
    int rc = MS_OK;
    if (slot->state == MS__SLOT_STORING) {
        rc = state_slot_settle(s, slot, err);
    } else if (slot->state == MS__SLOT_FETCHING) {
        state_slot_stop_reading(s, slot);
    }
    if (slot->state == MS__SLOT_FREE) {
        state_slot_unmap(s, slot);
    }
    return rc;
}

int ms__state_rest(ms__state_slots *s, ms_error *err)
{
    int rc = MS_OK;
    for (int i = 0; i < MS_OPTIMIZER_CHUNKS_MOST; i++) {
        int ended = state_slot_rest(s, &s->slots[i], rc == MS_OK ? err : NULL);
        if (rc == MS_OK) {
            rc = ended;
        }
    }
    return rc;
}

void ms__state_set_count(ms__state_slots *s, uint32_t slot_count)
{
    s->slot_count = slot_count;
    for (uint32_t i = slot_count; i < MS_OPTIMIZER_CHUNKS_MOST; i++) {
        (void)state_slot_rest(s, &s->slots[i], NULL); /* what could not be written is written again later */
    }
}

void ms__state_close(ms__state_slots *s, bool is_hung)
{
    for (int i = 0; i < MS_OPTIMIZER_CHUNKS_MOST; i++) {
        bool is_moving = s->slots[i].state == MS__SLOT_STORING || s->slots[i].state == MS__SLOT_FETCHING;
        if (!(is_hung && is_moving)) {
            state_slot_unmap(s, &s->slots[i]);
        }
    }
}
