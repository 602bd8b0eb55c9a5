/*
 * execute_internal.h - the internals of an ms_execute, shared by the files of this room.
 *
 *   execute.c      open, close, steps, statistics
 *   table.c        the plan as a table: layer and call -> technique
 *   frame.c        threads, frames, slots
 *   choose.c       the plan's selections: saved storages to drop or to pack
 *   replay.c       compares the shapes of a replay's saved tensors with the forward's
 *   compare.c      compares their values
 *   packing.c      two-valued extents, kept as bits
 *   extent.c       extents: store, share, drop, release written storages
 *   fetch.c        fetches, prefetch
 *   step_memory.c  the process's memory in a step
 *
 * All calls are made under the host's lock. A function marked "may wait" releases the lock
 * meanwhile and reads the state again afterwards.
 *
 * Tests: tests/c/execute/.
 */
#ifndef MS_EXECUTE_INTERNAL_H
#define MS_EXECUTE_INTERNAL_H

#include "base/array.h"
#include "base/pack.h"
#include "memscale/execute.h"

/* ---- plan ---------------------------------------------------------------- */

typedef struct ms__call_plan {
    uint8_t technique; /* of the call */
    uint8_t after;     /* of the root's own work after the call */
    bool is_known;     /* the plan names this call */
    uint32_t selection; /* as in ms_plan_entry */
} ms__call_plan;

/* A saved storage of a frame and its slot in the selection. */
typedef struct ms__seen {
    uintptr_t identity;
    uint32_t slot; /* UINT32_MAX: none */
} ms__seen;

/* The storages saved in a frame whose technique is selective, or whose plan packs some of them. */
typedef struct ms__choice {
    const ms_selection *selection; /* while the frame is open; with a selective technique NULL
                                    * drops all storages */
    ms_selection own;              /* a copy, because the plan may be replaced meanwhile */
    uint32_t next_slot;
    bool by_order;                 /* the call has smaller inputs than the plan's */
    MS__ARRAY(ms__seen) seen;
} ms__choice;

typedef struct ms__layer {
    char *name;
    bool is_proven; /* a replay of it has been compared byte for byte */
    bool is_held;   /* a replay of it differed: it is never recomputed again */
    MS__ARRAY(ms__call_plan) calls;
} ms__layer;

/* ---- threads and frames ---------------------------------------------------- */

typedef struct ms__thread_state {
    uint64_t key;
    bool in_root;
    ms_frame *open;           /* the frame in force */
    uint8_t after;            /* technique of the root's next stretch of work */
    uint32_t root_calls;
    MS__ARRAY(uint32_t) calls; /* [layer] calls begun in this forward */
} ms__thread_state;

typedef enum ms__slot_state {
    MS__SLOT_KEPT,  /* the host holds the tensor: only counted */
    MS__SLOT_EMPTY, /* a handle lives; a replay must recompute the tensor */
    MS__SLOT_FULL,  /* a handle lives; `memory` holds the tensor */
    MS__SLOT_DEAD   /* the handle was dropped */
} ms__slot_state;

typedef struct ms__slot {
    const char *dtype;
    const char *device;
    void *memory;
    uint32_t size_at; /* index of its first dimension in ms_frame.sizes */
    uint32_t mark;    /* 1 + index of its mark in ms_frame.marks; 0: none */
    uint8_t rank;
    uint8_t state; /* ms__slot_state */
    bool is_taken; /* since it was filled */
} ms__slot;

enum { MS__MARK_SAMPLES = 16 };

/* A record of a saved tensor's values, for comparing a replay. */
typedef struct ms__mark {
    uint64_t sum; /* checksum of all bytes, if `is_whole` */
    uint64_t samples[MS__MARK_SAMPLES]; /* elements, evenly spaced */
    uint8_t sample_count;
    bool is_whole;
    bool is_late;
} ms__mark;

struct ms_frame {
    uint64_t serial; /* order of saving, on the same clock as ms_extent.serial */
    uint32_t layer;
    uint32_t call;
    uint8_t technique;
    bool is_open;
    bool is_replaying;
    bool is_whole;       /* the replay must not stop early */
    bool packs;          /* kept tensors may become bits */
    uint32_t holds;      /* references of the host and of running calls */
    uint32_t pins;       /* while > 0, full slots are not released */
    uint32_t live_slots; /* EMPTY or FULL */
    uint32_t full_slots;
    uint32_t taken_slots; /* full slots that were taken */
    uint32_t cursor;     /* in a replay: the next slot */
    uint32_t missing;    /* in a replay: EMPTY slots not reached */
    MS__ARRAY(ms__slot) slots;
    MS__ARRAY(int64_t) sizes;
    MS__ARRAY(ms__mark) marks;
    ms_frame *next_full, *previous_full; /* frames with full slots */
    ms__choice choice;
};

/* ---- extents ------------------------------------------------------------------ */

typedef enum ms__extent_state {
    MS__EXTENT_STORING,  /* source strong */
    MS__EXTENT_HELD,     /* the tier failed: source strong to the end */
    MS__EXTENT_STORED,   /* source weak; landing weak or NULL */
    MS__EXTENT_FETCHING, /* landing strong, being written */
    MS__EXTENT_FETCHED   /* landing strong */
} ms__extent_state;

struct ms_extent {
    uintptr_t identity;
    uint64_t version;
    uint64_t bytes;
    uint64_t serial;
    uint64_t frame_serial;
    uint64_t last_serial, last_frame_serial; /* of the newest handle, which backward takes first */
    uint64_t epoch;    /* counts fetches: a handle with another mark has not taken the current one */
    ms_ticket ticket;  /* 0 if HELD or packed */
    ms__packed *packed; /* its bytes as bits in memory; the extent is then STORED from the start */
    void *bits;         /* the same on a GPU, of the host */
    void *source;
    void *landing;     /* NULL: never fetched, or released */
    void *stream;      /* the GPU's stream on which the landing was allocated */
    void *lent;        /* strong reference of take(), until taken() */
    uint8_t state;     /* ms__extent_state */
    bool is_ahead;     /* fetched before it was requested */
    bool is_unwanted;  /* fetching, without handles */
    bool is_canceled;  /* its last handle was dropped in flight: find() skips it */
    uint32_t handles;
    uint32_t pending;  /* handles that have not taken the fetched bytes */
    uint32_t pins;     /* waiting calls that use this extent */
    ms_extent *next_same;                       /* same hash bucket */
    ms_extent *next, *previous;                 /* order of saving */
    ms_extent *next_storing, *previous_storing; /* STORING, oldest first */
    ms_extent *next_back, *previous_back;       /* FETCHING or FETCHED */
};

typedef struct ms__extent_list {
    ms_extent *first, *last;
} ms__extent_list;

/* ---- the executor ---------------------------------------------------------------- */

/* See step_memory.c. */
typedef struct ms__step_watch {
    uint64_t held_before_bytes; /* of maps, at the start */
    uint64_t live_before_bytes; /* the live ones of them */
    uint64_t mark_bytes;        /* the kernel's high-water mark at the last boundary */
    uint64_t beside_bytes;      /* most resident memory seen beside maps */
    uint64_t step_peak_bytes;   /* resident peak in this step before its evaluations */
    uint64_t step_peak_held_bytes; /* the same of maps */
    uint64_t before_evaluation_bytes;
    uint64_t start_bytes; /* most live maps that a step began with, beside known tensors */
    uint64_t state_bytes; /* of optimizers, at the last forward that began a step */
    uint64_t pending_bytes; /* most that lived beyond these when a later forward of a step began */
    bool is_evaluating;
    uint64_t device_mark_bytes; /* high-water mark of a GPU's allocator at the last boundary; UINT64_MAX: a CPU host */
    uint64_t device_now_bytes; /* the same at this boundary */
    uint64_t device_peak_bytes; /* peak of a step under the plan in force; UINT64_MAX: not known yet */
} ms__step_watch;

struct ms_execute {
    ms_execute_host host;
    ms_offload *tier;
    bool host_is_device; /* the saved storages are the CPU's */
    int device; /* the number of the GPU that has them; -1: no GPU */
    bool is_in_step; /* GPU: the ends of layers wait for transfers */
    bool tier_broken; /* after an I/O error: not used again */
    bool tier_full; /* until the next step */
    bool tier_warned;

    MS__ARRAY(ms__layer) layers;
    uint32_t selection_count;
    ms_selection *selections; /* the plan's */
    ms__call_plan root_start; /* the root's work before the first layer, in `after` */
    ms_technique fallback;
    bool is_active;
    bool is_watched;
    bool is_packing; /* storages that the plan selects may become bits */
    bool packs_found; /* so may those that a scan finds two-valued, if the plan does not list them */
    bool packing_told; /* logged */
    uint64_t packed_bytes; /* bits held now */
    uint64_t min_bytes;
    uint64_t write_window_bytes;
    uint64_t read_window_bytes;

    MS__ARRAY(ms__thread_state *) threads;
    ms_frame *first_full;
    uint64_t clock; /* serials given out */
    uint64_t live_frames;
    uint64_t open_frames;
    uint64_t live_slots;
    uint64_t current_frame; /* serial of the frame that backward is in; 0: none */

    ms_extent **buckets;
    size_t bucket_count; /* a power of two, or 0 */
    uint64_t live_extents;
    ms__extent_list saved;
    ms__extent_list storing;
    ms__extent_list back;
    uint64_t storing_bytes;
    uint64_t back_bytes;
    uint64_t ahead_bytes;

    bool forward_done;
    uint32_t forwards; /* of the step, that have returned */
    bool hooked_in_step;
    bool backward_begun;
    bool inner_ended, outer_ended; /* since the last step a backward ended that reached no (inner), or some (outer),
                                    * parameters */
    uint32_t inner_forwards; /* forwards in a row that followed only inner backwards */
    bool optimizer_seen;
    uint64_t steps;
    uint64_t steps_before_plan; /* steps that ended before the plan in force was set */
    uint64_t step_started_ns; /* 0: no forward since the last boundary */
    ms__step_watch watch;
    ms_step_memory step_memory;

    ms_counters counters;
};

/* step_memory.c */
void ms__step_memory_begin(ms__step_watch *watch);
/* The first forward begins. The start's maps no longer include those that were freed since, such as those of a model that
 * the wrapped one replaces. */
void ms__step_memory_forget_released(ms__step_watch *watch);
/* Called before the first step: forgets the earlier high-water mark. */
void ms__step_memory_mark(ms__step_watch *watch);
/* Forgets a GPU's peak, because steps under another plan have another peak. */
void ms__step_memory_replanned(ms__step_watch *watch);
/* May be called repeatedly: each end begins the next step. */
void ms__step_memory_end(ms__step_watch *watch, ms_step_memory *memory);
/* For evaluations inside or between steps: ms_execute_evaluation_begins() and ..._ends(). */
void ms__step_memory_pause(ms__step_watch *watch);
bool ms__step_memory_resume(ms__step_watch *watch, ms_evaluation_memory *memory);
/* Live maps beyond those that earlier steps began with; a step of `is_first` sets the measure. */
uint64_t ms__step_memory_more(ms__step_watch *watch, uint64_t known_bytes, uint64_t state_bytes, bool is_first);
/* Live maps that the step's earlier forwards hold for their backward, less the most that was returned before. */
uint64_t ms__step_memory_pending(ms__step_watch *watch, uint64_t known_bytes, uint64_t state_bytes);

/* table.c */
void ms__table_clear(ms_execute *execute);
void ms__table_free(ms_execute *execute);
/* The plan's techniques for the `call`-th call of a layer. */
ms__call_plan ms__table_find(const ms_execute *execute, uint32_t layer, uint32_t call);
/* A layer is proven if a replay gave its tensors, and held (ms_execute_hold()) if a replay did not. */
bool ms__layer_is_proven(const ms_execute *execute, uint32_t layer);
void ms__layer_prove(ms_execute *execute, uint32_t layer);
bool ms__layer_is_held(const ms_execute *execute, uint32_t layer);

/* choose.c */
/* Copies the plan's selections; after MS_ENOMEM there are none. */
int ms__selections_copy(ms_execute *execute, const ms_plan *plan);
void ms__selections_drop(ms_execute *execute);
/* Makes a frame follow selection number `selection` (0: none). */
int ms__choice_begin(const ms_execute *execute, uint32_t selection, ms__choice *choice);
void ms__choice_end(ms__choice *choice);
/* Whether selection number `selection` makes any storage bits. */
bool ms__selection_packs(const ms_execute *execute, uint32_t selection);

/* The plan's decision on a two-valued storage. */
typedef enum ms__bits { MS__BITS_UNKNOWN, MS__BITS_STAYS, MS__BITS_PACKED } ms__bits;
/* For a storage that ms_frame_choose() reported. */
ms__bits ms__choice_bits(const ms__choice *choice, uintptr_t identity);

/* frame.c */
void ms__frame_fill(ms_execute *execute, ms_frame *frame, ms__slot *slot, void *memory);
void ms__frame_release_full(ms_execute *execute, ms_frame *frame, bool only_taken);
void ms__frame_free_if_unused(ms_execute *execute, ms_frame *frame);
/* Reports that backward is now in the frame with this serial: other frames release taken tensors. */
void ms__enter_backward_frame(ms_execute *execute, uint64_t serial);
void ms__threads_purge(ms_execute *execute, bool all);

/* extent.c */
bool ms__tier_usable(const ms_execute *execute);
void ms__tier_failed(ms_execute *execute, int code, const char *text);
void ms__extent_free_if_unused(ms_execute *execute, ms_extent *extent);
void ms__back_add(ms_execute *execute, ms_extent *extent);
void ms__back_remove(ms_execute *execute, ms_extent *extent);
/* If transfers do not overlap, waits until every store has ended (may wait). */
void ms__stores_finish(ms_execute *execute);
/* Waits until every transfer without handles has ended (may wait). */
void ms__extents_drain(ms_execute *execute);

/* Reserves memory for one more extent; false when out of memory. After true, enrolling cannot fail,
 * even if other extents are enrolled in between. */
bool ms__extents_have_room(ms_execute *execute);
/* Enters a new extent into the bookkeeping. */
void ms__extent_enroll(ms_execute *execute, ms_extent *extent);

/* packing.c */
/* Makes an extent of bits as ms_extent_store() does; NULL if the storage has more than two values.
 * Releases the host's lock while it scans words (may wait). */
ms_extent *ms__extent_pack(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version,
                           const void *address, uint64_t bytes, void *memory);
/* Rebuilds the bytes in a storage of obtain(); may wait, as above. */
int ms__extent_unpack(ms_execute *execute, const ms_extent *extent, void *memory, void *address, ms_error *err);
void ms__extent_forget_bits(ms_execute *execute, ms_extent *extent);
/* Whether any tensor that a call keeps may become bits. */
bool ms__call_packs(const ms_execute *execute, uint32_t selection);
void ms__packing_tell(ms_execute *execute);

/* fetch.c */
/* FETCHED -> STORED: weakens the landing, or releases it with `forget`. */
void ms__extent_release_landing(ms_execute *execute, ms_extent *extent, bool forget);
void ms__fetched_retire(ms_execute *execute, uint64_t current_frame);
void ms__fetched_release_all(ms_execute *execute);
/* Prefetches storages saved before `serial` or in the frame `frame_serial`, the last saved first,
 * within the window. */
void ms__prefetch_before(ms_execute *execute, uint64_t serial, uint64_t frame_serial);
/* Handles transfers that ended without a waiting call. */
void ms__fetches_poll(ms_execute *execute);
/* Waits for one transfer with the host's lock released. Pins the extent meanwhile; the caller must
 * check afterwards whether it is still used. */
int ms__extent_wait(ms_execute *execute, ms_extent *extent, ms_counter stall, ms_error *err);

#endif
