/*
 * state_slots.h - the few buffers through which optimizer state passes, and what each
 * holds: being read ahead, being computed, being written, or kept because it could not
 * be written. Between state_tensor.h, which knows tensors, and the offload engine,
 * which knows bytes. The stream's lock is held.
 */
#ifndef MS_EXECUTE_STATE_SLOTS_H
#define MS_EXECUTE_STATE_SLOTS_H

#include "memscale/offload.h"
#include "memscale/optimizer_stream.h"

typedef enum ms__state_place {
    MS__SLOT_FREE,
    MS__SLOT_FETCHING, /* read ahead */
    MS__SLOT_FILLED,   /* the caller's */
    MS__SLOT_STORING,
    MS__SLOT_UNSAVED,  /* the only copy: the write failed */
    MS__SLOT_LOST      /* a read never ended: its memory may still be written to */
} ms__state_place;

struct ms__state_slot;

/* A chunk rests on disk (ticket), is in a slot, or neither: then it is as new. */
typedef struct ms__state_chunk {
    ms_ticket ticket; /* while the slot is STORING: the version before */
    uint64_t step;    /* number of its last update */
    uint64_t bytes;   /* of its record */
    struct ms__state_slot *slot;
} ms__state_chunk;

typedef struct ms__state_slot {
    unsigned char *memory; /* MS_OPTIMIZER_CHUNK_BYTES; NULL until needed */
    ms__state_place state;
    bool is_pinned;        /* a transfer never ended: memory is never given back */
    ms__state_chunk *chunk;
    ms_ticket stored;      /* while STORING: the new version */
    uint64_t began;        /* order in which stores and fetches began */
} ms__state_slot;

typedef struct ms__state_slots {
    ms_offload *engine;
    ms__state_slot slots[MS_OPTIMIZER_CHUNKS];
    uint32_t ahead_count; /* slots FETCHING */
    uint64_t clock;
    uint64_t stall_ns;
    uint64_t resident_bytes, peak_resident_bytes;
} ms__state_slots;

/* Starts to read a chunk ahead if there is room and it is on disk. False where there is
 * no room; *rc tells of a write that was waited for and failed. */
bool ms__state_read_ahead(ms__state_slots *slots, ms__state_chunk *chunk, int *rc, ms_error *err);

/* The chunk's bytes in a slot, FILLED; `*is_new` where it has none yet and the record has
 * to be made. */
int ms__state_load(ms__state_slots *slots, ms__state_chunk *chunk, ms__state_slot **slot, bool *is_new, ms_error *err);

/* Starts to write a FILLED slot. Where that fails it is UNSAVED. */
int ms__state_store(ms__state_slots *slots, ms__state_slot *slot, ms_error *err);

/* Gives up a FILLED slot whose contents nobody needs. */
void ms__state_release(ms__state_slot *slot);

/* The chunk is not read ahead any more. */
void ms__state_forget(ms__state_slots *slots, ms__state_chunk *chunk);

/* The chunk ceases to be, wherever it is. */
void ms__state_drop(ms__state_slots *slots, ms__state_chunk *chunk);

/* Writes again what could not be written. */
int ms__state_save_rest(ms__state_slots *slots, ms_error *err);

/* Waits for all writes, stops reading ahead, gives back the buffers that are free; the
 * first failure. */
int ms__state_rest(ms__state_slots *slots, ms_error *err);

/* After the engine was closed. `is_hung`: transfers may still be under way. */
void ms__state_close(ms__state_slots *slots, bool is_hung);

#endif
