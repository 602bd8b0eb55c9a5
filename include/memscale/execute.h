/*
 * execute.h - the state machine of a training step under a plan: which saved tensors
 * stay, move or are recomputed, where each is now, and when its bytes may be freed.
 *
 * Nothing here knows of torch or Python. Tensors are seen as *storages* (an identity, a
 * version, an address, bytes) and as *records* (shape, dtype, device). The host, which
 * holds the real tensors (the extension; a double in tests), gives a table of functions,
 * ms_execute_host, and owns every reference behind it.
 *
 *   frame   one call of a layer, or one stretch of the root's own work, in one
 *           forward; carries the technique in force
 *   slot    the n-th tensor that autograd saved in a frame that is replayed
 *   extent  one storage at one version on the lower tier, shared by any number of
 *           saved tensors (handles)
 *
 * Life of a frame: open -> closed -> (replaying -> replayed)* -> freed, when it is closed
 * and its last handle is dropped. Life of an extent: storing -> stored -> (fetching ->
 * fetched -> stored)* -> freed with its last handle; `held` instead of stored if the tier
 * failed and the bytes stay in memory. A storage whose words have only two values (a mask)
 * may be stored as bits, in memory: see ms_execute_set_packing(). The last handle frees the
 * bytes, so backward may run twice, in part or never, or fail, and no further call is needed
 * to free them.
 *
 * Locking. An object is used under one lock of the host's (Python's GIL). Calls marked
 * "may wait" may wait for a transfer and release that lock meanwhile through host->unlock
 * and host->lock.
 *
 * Tests: tests/c/execute/ (test_frames.c, test_compare.c, test_extents.c, test_packing.c, test_device.c).
 */
#ifndef MEMSCALE_EXECUTE_H
#define MEMSCALE_EXECUTE_H

#include "memscale/offload.h"
#include "memscale/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The executor; one call of a layer; one storage's bytes on a lower tier. All are opaque. */
typedef struct ms_execute ms_execute;
typedef struct ms_frame ms_frame;
typedef struct ms_extent ms_extent;

/* The root module's own work, as a layer number. */
#define MS_ROOT_LAYER UINT32_MAX

/* ---- the other side -------------------------------------------------------- */

/*
 * `memory` is the host's reference to one storage. It is strong (the bytes live) or
 * weak (they live as long as another reference is strong).
 */
typedef struct ms_execute_host {
    void *context;
    /* strong -> weak. */
    void (*weaken)(void *context, void *memory);
    /* weak -> strong; false if the bytes were freed or have changed. */
    bool (*strengthen)(void *context, void *memory);
    /* Drops the reference itself, strong or weak. */
    void (*release)(void *context, void *memory);
    /* A new storage of `bytes` to fetch into: a strong reference, its address, and the
     * writable bytes from there. */
    int (*obtain)(void *context, uint64_t bytes, void **memory, void **address, uint64_t *capacity, ms_error *err);
    /* The calling thread's stream on the device whose memory the tier takes
     * (ms_execute_device()). Called for such a tier only; NULL: the legacy default. */
    void *(*stream)(void *context);
    /* Release and retake the host's lock around a wait; NULL if the host has none. */
    void (*unlock)(void *context);
    void (*lock)(void *context);
} ms_execute_host;

/* ---- open and close -------------------------------------------------------- */

/* `tier` NULL: no lower tier, until ms_execute_open_tier(). */
MS_API int ms_execute_open(const ms_execute_host *host, const ms_offload_options *tier, ms_execute **execute,
                           ms_error *err);

/* Waits for transfers (bounded) and closes the tier. Every frame must be closed and every
 * handle dropped before: the host counts them through its own references. */
MS_API void ms_execute_close(ms_execute *execute);

/* Sets `tier`, `cap_bytes` and `disk_cap_bytes` of `options` for a plan's caps. A GPU (`from_device`) moves to
 * host memory first and to the disk beyond it; a CPU host moves to the disk, or to capped host memory without
 * one. False if both caps are 0: there is no tier. */
MS_API bool ms_execute_first_tier(uint64_t host_cap_bytes, uint64_t disk_cap_bytes, ms_offload_options *options);

/* Opens the lower tier of an executor without one. MS_ESTATE if it has one. May wait. */
MS_API int ms_execute_open_tier(ms_execute *execute, const ms_offload_options *options, ms_error *err);
MS_API bool ms_execute_has_tier(const ms_execute *execute);
/* Whether the tier takes storages in host memory, or is not open. */
MS_API bool ms_execute_host_is_device(const ms_execute *execute);
/* The GPU whose storages the tier takes; -1 if it takes the CPU's, or is not open. */
MS_API int ms_execute_device(const ms_execute *execute);
/* For a GPU's tier: whether transfers overlap the computation (initially true). Otherwise the
 * end of a layer's call waits for its stores, and nothing is fetched ahead. */
MS_API void ms_execute_set_overlap(ms_execute *execute, bool overlaps);
/* One line on the tier, "" without one. */
MS_API const char *ms_execute_tier_description(const ms_execute *execute);

/* ---- plan -------------------------------------------------------------------- */

/* Numbers a hookable module; the same name gives the same number. */
MS_API int ms_execute_add_layer(ms_execute *execute, const char *name, uint32_t *layer, ms_error *err);
MS_API const char *ms_execute_layer_name(const ms_execute *execute, uint32_t layer);

/* Sets the plan for frames opened from now on; copied. NULL: everything is kept. A call
 * without an entry uses the entry of the layer's first call; a layer without an entry uses
 * the fallback. Frames already open or saved do not change. */
MS_API int ms_execute_set_plan(ms_execute *execute, const ms_plan *plan, ms_error *err);

/* Whether any frame of the plan in force needs hooks (false: all is kept). */
MS_API bool ms_execute_is_active(const ms_execute *execute);

/* While watched, calls that are kept get a frame too (of technique KEEP), so that the
 * host sees every saved tensor: for profiling real steps. */
MS_API void ms_execute_set_watched(ms_execute *execute, bool is_watched);

/* Whether storages whose words have only two values become bits in memory (initially true), instead
 * of staying or going to the lower tier; unpacking restores the bytes exactly. Of the two-valued
 * storages that the plan knows (ms_selection.two_valued), those it selects become bits. Others are
 * found by a scan when they are saved, under a plan that moves anything. */
MS_API void ms_execute_set_packing(ms_execute *execute, bool is_packing);

/* ---- forward ------------------------------------------------------------------- */

/*
 * `thread` is any number that names the calling thread. Begins a forward of the root: calls
 * are counted from 0 again, and frames that an aborted forward left open on this thread are
 * closed (*stale is then true).
 */
MS_API int ms_execute_enter_root(ms_execute *execute, uint64_t thread, bool *stale, ms_error *err);
MS_API void ms_execute_leave_root(ms_execute *execute, uint64_t thread, bool failed);
MS_API bool ms_execute_in_root(const ms_execute *execute, uint64_t thread);

/* Facts of one call, known only when it happens. */
typedef struct ms_call_facts {
    bool replayable; /* its arguments can be kept and passed again */
} ms_call_facts;

/* The plan's technique for the next call of a layer on this thread. */
MS_API ms_technique ms_execute_peek(const ms_execute *execute, uint64_t thread, uint32_t layer);

/*
 * Begins a layer's call (MS_ROOT_LAYER: a stretch of the root's own work). Counts the call,
 * looks up its technique, and replaces one that is impossible now: recomputation needs
 * replayable arguments, offloading needs a working tier. *frame is NULL if the technique is
 * KEEP, the executor is not watched and no tensor of the call may become bits. Closes a
 * frame still open on this thread: frames do not nest. Works without enter_root(): the call
 * opens the step.
 */
MS_API int ms_execute_enter(ms_execute *execute, uint64_t thread, uint32_t layer, const ms_call_facts *facts,
                            ms_frame **frame, ms_error *err);

/* Ends the call, also a failed one: closes the frame open on this thread, if any. The frame
 * lives while it has handles. May wait without overlap: see ms_execute_set_overlap(). */
MS_API void ms_execute_leave(ms_execute *execute, uint64_t thread);

/* The technique of the frame's layer, as planned. */
MS_API ms_technique ms_frame_technique(const ms_frame *frame);
/* The action of a frame's saved-tensor hooks. */
typedef enum ms_frame_hook {
    MS_FRAME_KEEPS,   /* it stays, or becomes bits: if the frame packs, call ms_extent_store() */
    MS_FRAME_MOVES,   /* its storage goes to a lower tier */
    MS_FRAME_CHOOSES, /* selective: single operators recompute some, the rest stays or moves */
    MS_FRAME_REPLAYS, /* a slot replaces it; the layer is recomputed */
    MS_FRAME_HOOK_COUNT
} ms_frame_hook;
MS_API ms_frame_hook ms_frame_hook_of(const ms_frame *frame);
/* Whether tensors that are not recomputed stay in place. */
MS_API bool ms_frame_rest_stays(const ms_frame *frame);
/* Whether kept tensors may become bits: the host calls ms_extent_store() for each. */
MS_API bool ms_frame_packs(const ms_frame *frame);
/* The number of the frame's layer. */
MS_API uint32_t ms_frame_layer(const ms_frame *frame);
MS_API uint32_t ms_frame_call(const ms_frame *frame);
MS_API bool ms_frame_is_open(const ms_frame *frame);
/* Slots without a tensor, for a replay to recompute. */
MS_API uint32_t ms_frame_missing(const ms_frame *frame);

/* Holds the frame beyond its handles, for a host that queries it later. */
MS_API void ms_frame_hold(ms_frame *frame);
MS_API void ms_frame_unhold(ms_execute *execute, ms_frame *frame);

/* While pinned, another thread does not release the replay's tensors. Used around a replay
 * and the ms_frame_take() after it. */
MS_API void ms_frame_pin(ms_frame *frame);
MS_API void ms_frame_unpin(ms_execute *execute, ms_frame *frame);

/* Counts a saved tensor that stays in place. */
MS_API void ms_execute_kept(ms_execute *execute);

/* ---- slots: recompute ------------------------------------------------------------ */

enum { MS_RECORD_RANK_MAX = 64 };

/* Shape, dtype and device of a saved tensor. `dtype` and `device` are names that live as long
 * as the executor. */
typedef struct ms_record {
    uint32_t rank;
    const int64_t *size; /* [rank] */
    const char *dtype;
    const char *device;
} ms_record;

/* Records a tensor that autograd saves in a replayed frame: the next slot, and one handle.
 * With `kept` the host holds the tensor (a parameter): the slot only takes a number. */
MS_API int ms_frame_save(ms_execute *execute, ms_frame *frame, const ms_record *record, bool kept, uint32_t *slot,
                         ms_error *err);

/* Where a saved tensor's values are. */
typedef struct ms_contents {
    const void *address;   /* of the first element, in host memory; NULL: not compared */
    const int64_t *stride; /* [rank], in elements */
    bool is_late;          /* read when the operator that saved it was over, not when it was saved */
} ms_contents;

/*
 * Remembers the values in a slot, after ms_frame_save() and once they are written, so that ms_frame_compare() can
 * find a layer that can't be recomputed before a gradient is made from it. Reads every byte until a replay of the layer
 * has been compared, then sixteen elements. Values of an unknown dtype are not compared.
 */
MS_API void ms_frame_mark(ms_execute *execute, ms_frame *frame, uint32_t slot, const ms_contents *contents);

/* Whether the values in a slot were remembered; *is_late tells when they were read. A replay has to read them then. */
MS_API bool ms_frame_is_marked(const ms_frame *frame, uint32_t slot, bool *is_late);

/*
 * Compares the tensor that a replay saved in a slot, after ms_frame_replay_save() and once it is written. MS_EREPLAY,
 * naming the layer, if the values differ. If they only differ as rounding does, or in few elements, that is logged. In
 * both cases the layer is held: from its next call on it is not recomputed.
 */
MS_API int ms_frame_compare(ms_execute *execute, ms_frame *frame, uint32_t slot, const ms_contents *contents,
                            ms_error *err);

/* Holds a layer: from its next call on it is not recomputed. */
MS_API void ms_execute_hold(ms_execute *execute, uint32_t layer);
/* The layers that are held, by number; `layers` has room for `capacity`. Gives how many there are. */
MS_API size_t ms_execute_held_layers(const ms_execute *execute, uint32_t *layers, size_t capacity);

/* The strong memory in a slot, or NULL: then the frame must be replayed first. Marks backward
 * as begun and the slot as taken; releases tensors of earlier frames that were taken and are
 * still held (retained graphs). */
MS_API void *ms_frame_take(ms_execute *execute, ms_frame *frame, uint32_t slot);

/*
 * Reports a tensor that autograd saves in a frame, by its storage's identity. Calls come in the
 * order of saving: ms_extent_store() uses them to find the storages that become bits. Unless the
 * technique is selective, storages below ms_execute_min_bytes() may be left out. If it is
 * selective, *is_dropped says whether the plan drops the storage when the call has ended, for
 * its operators to recompute (the host keeps those that it cannot recompute). Without a selection
 * in the plan every storage is dropped. Not called for parameters, buffers and the batch.
 */
MS_API int ms_frame_choose(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t bytes, bool *is_dropped,
                           ms_error *err);

/* Autograd dropped the handle. */
MS_API void ms_frame_drop(ms_execute *execute, ms_frame *frame, uint32_t slot);

/* The use of a tensor that a replay saves. */
typedef enum ms_capture {
    MS_CAPTURE_IGNORE, /* no handle needs it */
    MS_CAPTURE_PUT,    /* ms_frame_put() it */
    MS_CAPTURE_LAST    /* put it, then stop the replay: it is the last one needed */
} ms_capture;

/* MS_ESTATE if the frame is being replayed. It may still be open: a layer may differentiate in
 * its own forward. With `whole` the replay runs to its end, for the layer's result. */
MS_API int ms_frame_replay_begin(ms_execute *execute, ms_frame *frame, bool whole, ms_error *err);
/* Records the next tensor that the replay saves. MS_EREPLAY, naming layer and both shapes, if it
 * differs from the forward's. */
MS_API int ms_frame_replay_save(ms_execute *execute, ms_frame *frame, const ms_record *record, uint32_t *slot,
                                ms_capture *capture, ms_error *err);
/* Gives a slot its tensor; the frame owns the reference from now on. */
MS_API void ms_frame_put(ms_execute *execute, ms_frame *frame, uint32_t slot, void *memory);
/* Ends the replay. With `failed`, an error of the host's, all its tensors are released. Otherwise
 * MS_EREPLAY if a needed tensor was not saved again. */
MS_API int ms_frame_replay_end(ms_execute *execute, ms_frame *frame, bool failed, ms_error *err);

/* ---- extents: offload -------------------------------------------------------------- */

/* The plan's least bytes: smaller storages stay. */
MS_API uint64_t ms_execute_min_bytes(const ms_execute *execute);

/* The newest extent of the storage with this identity and version, or NULL. Adds a handle, of
 * `frame`. The host compares the storage itself (ms_extent_source()) and drops the handle if it
 * differs. */
MS_API ms_extent *ms_extent_find(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version);

/*
 * Starts storing a storage: a new extent with one handle. Owns the strong reference `memory`
 * if it makes one. May wait for room in the write window and then releases written storages.
 * *extent is NULL, with MS_OK, if the tier failed now or before: the host keeps the tensor
 * (counted; logged once). In a frame of technique KEEP only two-valued storages are taken:
 * NULL for all others.
 */
MS_API int ms_extent_store(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t version,
                           const void *address, uint64_t bytes, uint64_t capacity, void *memory, ms_extent **extent,
                           ms_error *err);

/* The host's reference to the storage that was saved; weak once it is stored. */
MS_API void *ms_extent_source(const ms_extent *extent);
/* Whether it is kept as bits in memory: then ms_extent_take() needs no transfer. */
MS_API bool ms_extent_is_packed(const ms_extent *extent);

/*
 * The bytes of an extent, in memory: its source if that still lives, else fetched. *memory
 * is a strong reference of the executor's, valid until ms_extent_taken(): the host takes its
 * own in between. Marks backward as begun; fetches ahead in reverse order of saving. May wait.
 * Fails with the tier's error; *memory is not set then, and taken() is not called.
 */
MS_API int ms_extent_take(ms_execute *execute, ms_extent *extent, void **memory, ms_error *err);
/* `mark` belongs to the handle, 0 at first. */
MS_API void ms_extent_taken(ms_execute *execute, ms_extent *extent, uint64_t *mark);

/* Drops the handle with this mark; the last one frees the extent. Never waits. */
MS_API void ms_extent_drop(ms_execute *execute, ms_extent *extent, uint64_t mark);

/* ---- between ------------------------------------------------------------------------ */

/* Releases storages whose store has ended, and ended transfers without handles. Cheap if
 * there are none; never waits. */
MS_API void ms_execute_poll(ms_execute *execute);

/* Ends a backward: releases tensors that were fetched or replayed and not taken; a later
 * backward fetches or recomputes them. */
MS_API void ms_execute_backward_ended(ms_execute *execute);

/* The events that may end a training step. */
typedef enum ms_boundary {
    MS_BOUNDARY_FORWARD,          /* the root is about to run again */
    MS_BOUNDARY_OPTIMIZER,        /* an optimizer of the model's parameters has stepped */
    MS_BOUNDARY_ANOTHER_OPTIMIZER /* the same; it is not the optimizer that ended the last step */
} ms_boundary;

/*
 * A point between steps. Returns true if a step ended here. The first optimizer that steps after
 * a backward ends one; others that step after the same backward do not. Before any optimizer has
 * stepped, a forward after a backward ends one. Waits (may wait)
 * for transfers without handles. *step_ns is the time since the last boundary, *step the number of
 * the step that ended, from 1.
 */
MS_API bool ms_execute_boundary(ms_execute *execute, ms_boundary boundary, uint64_t *step, uint64_t *step_ns);

/* The number of steps that ended under the plan in force. */
MS_API uint64_t ms_execute_plan_steps(const ms_execute *execute);

/* If no call has a frame, the executor cannot see a backward, and each forward counts as a step. A
 * host that can observe the backward of the forward that just ended calls this, and
 * ms_execute_backward_begins() when it begins; then forwards without a backward (a discriminator's
 * two) are one step. False: the call is not needed. */
MS_API bool ms_execute_expect_backward(ms_execute *execute);
MS_API void ms_execute_backward_begins(ms_execute *execute);

/* Called after a backward by a host that can tell whether it changed gradients or followed a change of parameters. If
 * it did neither (torch.autograd.grad in an inner step of meta-learning), the next forward ends no step; after 16 such
 * forwards in a row it does, because the loop may update its parameters unseen. */
MS_API void ms_execute_backward_reached(ms_execute *execute, bool parameters);

/* Called before each boundary of a model that trains on a GPU: `mark_bytes` is the peak of the framework's allocator
 * there since its counter was last reset. The library does not reset it; the caller's code may. UINT64_MAX: the
 * model trains on a CPU host (again). */
MS_API void ms_execute_device_peak(ms_execute *execute, uint64_t mark_bytes);

/* The memory of a step; UINT64_MAX if unknown. On a CPU host all of it is unknown if hostmem does not own the
 * allocator's slots. On a GPU only the peak is known, from the first step in which the allocator's counter moves. */
typedef struct ms_step_memory {
    uint64_t peak_bytes;      /* resident, of the whole process; on a GPU what its allocator had allocated */
    uint64_t peak_held_bytes; /* largest sum of live and cached maps, less their sum when `execute` was opened */
    uint64_t resident_bytes;  /* at the boundary */
    uint64_t held_bytes;      /* live + cached at the boundary, counted alike */
} ms_step_memory;

/* The memory of the step that the last ms_execute_boundary() ended. Several wrapped models share one
 * process: each sees the time since any of them passed a boundary. */
MS_API ms_step_memory ms_execute_step_memory(const ms_execute *execute);

/* The process's memory in an evaluation; UINT64_MAX if unknown. */
typedef struct ms_evaluation_memory {
    uint64_t before_bytes; /* resident when it began */
    uint64_t peak_bytes;   /* resident, of the whole process */
} ms_evaluation_memory;

/* Between these two calls the root runs without gradients. The peak between them counts for the evaluation and never
 * for the step around it. Beginning again inside an evaluation does nothing. Ending returns false, and leaves
 * *memory alone, if none has begun. */
MS_API void ms_execute_evaluation_begins(ms_execute *execute);
MS_API bool ms_execute_evaluation_ends(ms_execute *execute, ms_evaluation_memory *memory);

/* An executor's current objects and bytes. */
typedef struct ms_execute_stats {
    uint64_t open_frames;
    uint64_t live_frames;     /* open or with handles */
    uint64_t live_slots;      /* handles of slots */
    uint64_t live_extents;    /* with or without handles */
    uint64_t storing_bytes;   /* strong references held for stores in flight */
    uint64_t fetched_bytes;   /* strong references to fetched storages */
    uint64_t packed_bytes;    /* bits that stand for two-valued storages */
    uint64_t tier_bytes;
    bool backward_begun;      /* in this step */
    bool optimizer_seen;
} ms_execute_stats;

/* Fills `stats`. */
MS_API void ms_execute_get_stats(const ms_execute *execute, ms_execute_stats *stats);

/* The executor's counters; valid until it is closed. */
MS_API ms_counters *ms_execute_counters(ms_execute *execute);

#ifdef __cplusplus
}
#endif

#endif
