/*
 * state_slots.h - the buffers through which optimizer state passes, and the state of each:
 * being read ahead, computed or written, or kept because its write failed. Called by state_tensor.c,
 * which knows tensors; calls the offload engine, which knows bytes. The caller holds the stream's
 * lock.
 *
 * Tests: tests/c/execute/test_optimizer_stream.c.
 */
#ifndef MS_EXECUTE_STATE_SLOTS_H
#define MS_EXECUTE_STATE_SLOTS_H

#include "memscale/offload.h"
#include "memscale/optimizer_stream.h"

typedef enum ms__state_place {
    MS__SLOT_FREE,
    MS__SLOT_FETCHING, /* read ahead */
    MS__SLOT_FILLED,   /* the caller uses it */
    MS__SLOT_STORING,
    MS__SLOT_UNSAVED,  /* its write failed: it is the only copy */
    MS__SLOT_LOST      /* its read never ended: its memory may still be written to */
} ms__state_place;

struct ms__state_slot;

/* A chunk is on disk (ticket) or in a slot; if it is in neither, its state is new. */
typedef struct ms__state_chunk {
    ms_ticket ticket; /* while the slot is STORING: the previous version */
    uint64_t step;    /* number of its last update */
    uint64_t bytes;   /* of its record */
    struct ms__state_slot *slot;
} ms__state_chunk;

typedef struct ms__state_slot {
    unsigned char *memory; /* MS_OPTIMIZER_CHUNK_BYTES; NULL until needed */
    ms__state_place state;
    bool is_pinned;        /* a transfer never ended: memory is never freed */
    ms__state_chunk *chunk;
    ms_ticket stored;      /* while STORING: the new version */
    uint64_t began;        /* `clock` when its transfer started */
} ms__state_slot;

typedef struct ms__state_slots {
    ms_offload *engine;
    ms__state_slot slots[MS_OPTIMIZER_CHUNKS_MOST];
    uint32_t slot_count;  /* of these are in use; slots beyond may still hold what could not be written */
    uint32_t ahead_count; /* slots FETCHING */
    uint64_t clock;
    uint64_t stall_ns;
    uint64_t resident_bytes, peak_resident_bytes;
} ms__state_slots;

/* Sets how many slots are in use, at most MS_OPTIMIZER_CHUNKS_MOST. Waits for the writes of slots beyond. */
void ms__state_set_count(ms__state_slots *slots, uint32_t slot_count);

/* Starts to read a chunk ahead if it is on disk. False if there is no room; *rc is the error of a
 * write that it had to wait for. */
bool ms__state_read_ahead(ms__state_slots *slots, ms__state_chunk *chunk, int *rc, ms_error *err);

/* Gives a FILLED slot with the chunk's bytes. `*is_new`: the chunk has none yet, and the caller must
 * fill the record. */
int ms__state_load(ms__state_slots *slots, ms__state_chunk *chunk, ms__state_slot **slot, bool *is_new, ms_error *err);

/* Starts to write a FILLED slot. On failure the slot is UNSAVED. */
int ms__state_store(ms__state_slots *slots, ms__state_slot *slot, ms_error *err);

/* Frees a FILLED slot without writing it. */
void ms__state_release(ms__state_slot *slot);

/* Cancels the chunk's read-ahead. */
void ms__state_forget(ms__state_slots *slots, ms__state_chunk *chunk);

/* Frees the chunk, on disk and in its slot. */
void ms__state_drop(ms__state_slots *slots, ms__state_chunk *chunk);

/* Writes UNSAVED slots again. */
int ms__state_save_rest(ms__state_slots *slots, ms_error *err);

/* Waits for all writes, cancels read-ahead, frees the memory of free slots; returns the first
 * failure. */
int ms__state_rest(ms__state_slots *slots, ms_error *err);

/* Called after the engine was closed. `is_hung`: transfers may still run. */
void ms__state_close(ms__state_slots *slots, bool is_hung);

#endif
