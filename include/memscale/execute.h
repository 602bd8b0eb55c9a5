/*
 * execute.h - the state machine of a training step under a plan: which saved tensors
 * stay, move or are recomputed, where each is now, and when its bytes may be freed.
 *
 * Nothing here knows torch or Python. A tensor is a *storage* (identity, version,
 * address, bytes) and a *record* (shape, dtype, device). The host (the extension; a
 * double in tests) holds the real tensors. It passes a table of functions,
 * ms_execute_host, and owns the references behind it.
 *
 *   frame   one call of a layer, or one stretch of the root's own work, in one
 *           forward; carries the technique in force
 *   slot    the n-th tensor that autograd saved in a frame that is replayed
 *   extent  one storage at one version on the lower tier, shared by any number of
 *           saved tensors (handles)
 *
 * Life of a frame: open -> closed -> (replaying -> replayed)* -> freed. A closed frame is
 * freed with its last handle. Life of an extent: storing -> stored -> (fetching ->
 * fetched -> stored)* -> freed with its last handle. If the tier fails, an extent is `held`
 * instead of stored: its bytes stay in memory. A storage whose words have only two values
 * (a mask) may be stored as bits, in memory: see ms_execute_set_packing(). The last handle
 * frees the bytes. No other call is needed, even if backward runs twice, in part or never,
 * or fails.
 *
 * Locking. The host holds one lock (Python's GIL) in every call. Calls marked "may wait"
 * may wait for a transfer; they release that lock meanwhile through host->unlock and
 * host->lock.
 *
 * Tests: tests/c/execute/ (test_frames.c, test_compare.c, test_extents.c, test_extents_failing.c, test_packing.c,
 * test_step_memory.c, test_device.c).
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
 * `memory` is the host's reference to one storage: strong (it keeps the bytes alive) or
 * weak (it does not).
 */
typedef struct ms_execute_host {
    void *context;
    /* strong -> weak. */
    void (*weaken)(void *context, void *memory);
    /* weak -> strong; false if the bytes were freed or have changed. */
    bool (*strengthen)(void *context, void *memory);
    /* Drops a reference, strong or weak. */
    void (*release)(void *context, void *memory);
    /* Makes a storage of `bytes` to fetch into: gives a strong reference, the address, and the
     * writable bytes from there. */
    int (*obtain)(void *context, uint64_t bytes, void **memory, void **address, uint64_t *capacity, ms_error *err);
    /* The calling thread's stream on the tier's GPU (ms_execute_device()); NULL: the legacy
     * default stream. Called only for a GPU's memory. */
    void *(*stream)(void *context);
    /* For a GPU's storages, which only the host's operators can read; NULL: they are never packed. None of
     * these waits. pack() makes bits of a strong reference's storage, NULL if it can't. unpack() writes the
     * bytes to a storage of obtain(), on the calling thread's stream. After order() the calling thread's
     * stream may use what another one unpacked. forget() frees the bits. */
    void *(*pack)(void *context, void *memory);
    int (*unpack)(void *context, void *bits, void *memory, ms_error *err);
    int (*order)(void *context, void *bits, ms_error *err);
    void (*forget)(void *context, void *bits);
    /* Release and retake the host's lock around a wait; NULL if the host has none. */
    void (*unlock)(void *context);
    void (*lock)(void *context);
} ms_execute_host;

/* ---- open and close -------------------------------------------------------- */

/* With `tier` NULL there is no lower tier until ms_execute_open_tier(). */
MS_API int ms_execute_open(const ms_execute_host *host, const ms_offload_options *tier, ms_execute **execute,
                           ms_error *err);

/* Waits for transfers (bounded) and closes the tier. The host must first close every frame and
 * drop every handle; its own references count them. */
MS_API void ms_execute_close(ms_execute *execute);

/* Sets `tier`, `cap_bytes` and `disk_cap_bytes` of `options` for a plan's caps. A GPU (`from_device`) moves to
 * host memory first, then to disk. A CPU host moves to disk, or to host memory if the disk cap is 0. False if
 * both caps are 0: there is no tier. */
MS_API bool ms_execute_first_tier(uint64_t host_cap_bytes, uint64_t disk_cap_bytes, ms_offload_options *options);

/* Opens the lower tier of an executor without one. MS_ESTATE if it has one. May wait. */
MS_API int ms_execute_open_tier(ms_execute *execute, const ms_offload_options *options, ms_error *err);
MS_API bool ms_execute_has_tier(const ms_execute *execute);
/* Sets the device whose storages are saved; initially it is the CPU. Opening a tier sets it too. Must not be called while
 * an extent exists. */
MS_API void ms_execute_set_device(ms_execute *execute, ms_device_kind kind, uint32_t number);
MS_API bool ms_execute_host_is_device(const ms_execute *execute);
/* The GPU's number; -1 if it is the CPU. */
MS_API int ms_execute_device(const ms_execute *execute);
/* For a GPU's tier: whether transfers overlap the computation (initially true). If not, the end
 * of a layer's call waits for its stores, and nothing is fetched ahead. */
MS_API void ms_execute_set_overlap(ms_execute *execute, bool overlaps);
/* One line about the tier; "" if there is none. */
MS_API const char *ms_execute_tier_description(const ms_execute *execute);

/* ---- plan -------------------------------------------------------------------- */

/* Gives a hookable module its number; the same name gets the same number. */
MS_API int ms_execute_add_layer(ms_execute *execute, const char *name, uint32_t *layer, ms_error *err);
MS_API const char *ms_execute_layer_name(const ms_execute *execute, uint32_t layer);

/* Copies the plan, for frames opened from now on. NULL: everything is kept. A call without an
 * entry uses the entry of the layer's first call; a layer without an entry uses the
 * fallback. Earlier frames do not change. */
MS_API int ms_execute_set_plan(ms_execute *execute, const ms_plan *plan, ms_error *err);

/* Whether any frame of the plan in force needs hooks (false: everything is kept). */
MS_API bool ms_execute_is_active(const ms_execute *execute);

/* For profiling real steps: while watched, calls of technique KEEP get a frame too, so that the
 * host sees every saved tensor. */
MS_API void ms_execute_set_watched(ms_execute *execute, bool is_watched);

/* Whether storages whose words have only two values become bits in memory (initially true), instead
 * of staying or going to the lower tier; unpacking restores the bytes exactly. The plan lists the
 * two-valued storages that it knows (ms_selection.two_valued) and selects those that become bits.
 * If the plan moves anything, a scan of saved storages finds others, but not on a GPU. */
MS_API void ms_execute_set_packing(ms_execute *execute, bool is_packing);

/* ---- forward ------------------------------------------------------------------- */

/*
 * Begins a forward of the root: counts calls from 0 again, and closes frames that an aborted
 * forward left open on this thread (*stale is then true). `thread` is any number that
 * identifies the calling thread.
 */
MS_API int ms_execute_enter_root(ms_execute *execute, uint64_t thread, bool *stale, ms_error *err);
MS_API void ms_execute_leave_root(ms_execute *execute, uint64_t thread, bool failed);
MS_API bool ms_execute_in_root(const ms_execute *execute, uint64_t thread);

/* Facts about one call that are known only when it begins. */
typedef struct ms_call_facts {
    bool replayable; /* its arguments can be kept and passed again */
} ms_call_facts;

/* The plan's technique for the next call of a layer on this thread. */
MS_API ms_technique ms_execute_peek(const ms_execute *execute, uint64_t thread, uint32_t layer);

/*
 * Begins a layer's call (MS_ROOT_LAYER: a stretch of the root's own work). Counts the call,
 * looks up its technique, and replaces one that is impossible now: recomputation needs
 * replayable arguments, offloading needs a working tier. *frame is NULL if the technique is
 * KEEP, the executor is not watched and no tensor of the call may become bits. Frames do not
 * nest: closes a frame still open on this thread. Without enter_root(), this call opens the
 * step.
 */
MS_API int ms_execute_enter(ms_execute *execute, uint64_t thread, uint32_t layer, const ms_call_facts *facts,
                            ms_frame **frame, ms_error *err);

/* Ends the call, also a failed one: closes the frame open on this thread, if any. The frame
 * lives while it has handles. If transfers do not overlap (ms_execute_set_overlap()), may wait. */
MS_API void ms_execute_leave(ms_execute *execute, uint64_t thread);

/* The technique of the frame's layer, as planned. */
MS_API ms_technique ms_frame_technique(const ms_frame *frame);
/* The action of a frame's saved-tensor hooks. */
typedef enum ms_frame_hook {
    MS_FRAME_KEEPS,   /* the tensor stays, or becomes bits: if the frame packs, call ms_extent_store() */
    MS_FRAME_MOVES,   /* its storage goes to a lower tier */
    MS_FRAME_CHOOSES, /* selective: single operators recompute some tensors, the rest stays or moves */
    MS_FRAME_REPLAYS, /* a slot replaces the tensor; the layer is recomputed */
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
/* The number of slots without a tensor, which a replay recomputes. */
MS_API uint32_t ms_frame_missing(const ms_frame *frame);

/* Keeps the frame alive without handles, for a host that queries it later. */
MS_API void ms_frame_hold(ms_frame *frame);
MS_API void ms_frame_unhold(ms_execute *execute, ms_frame *frame);

/* Other threads do not release the recomputed tensors of a pinned frame. Pin it around a replay
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
 * With `kept` the host holds the tensor (a parameter), and the slot is only a number. */
MS_API int ms_frame_save(ms_execute *execute, ms_frame *frame, const ms_record *record, bool kept, uint32_t *slot,
                         ms_error *err);

/* The values of a saved tensor. */
typedef struct ms_contents {
    const void *address;   /* of the first element, in host memory; NULL: not compared */
    const int64_t *stride; /* [rank], in elements */
    bool is_late;          /* read after the operator that saved it, not at the save */
} ms_contents;

/*
 * Remembers the values in a slot, so that ms_frame_compare() finds a layer that can't be recomputed before a gradient
 * is made from it. Call it after ms_frame_save(), once the values are written. Reads every byte until a replay of the
 * layer has been compared, then sixteen elements. Values of an unknown dtype are not compared.
 */
MS_API void ms_frame_mark(ms_execute *execute, ms_frame *frame, uint32_t slot, const ms_contents *contents);

/* Whether the values in a slot were remembered. *is_late: as in ms_contents; a replay must read at the same point. */
MS_API bool ms_frame_is_marked(const ms_frame *frame, uint32_t slot, bool *is_late);

/*
 * Compares the tensor that a replay saved in a slot. Call it after ms_frame_replay_save(), once the tensor is written.
 * MS_EREPLAY, naming the layer, if the values differ. A difference that is only rounding, or in few elements, is
 * logged. After either, the layer is held: from its next call on it is not recomputed.
 */
MS_API int ms_frame_compare(ms_execute *execute, ms_frame *frame, uint32_t slot, const ms_contents *contents,
                            ms_error *err);

/* Holds a layer: from its next call on it is not recomputed. */
MS_API void ms_execute_hold(ms_execute *execute, uint32_t layer);
/* The numbers of the held layers; `layers` has room for `capacity`. Returns how many layers are held. */
MS_API size_t ms_execute_held_layers(const ms_execute *execute, uint32_t *layers, size_t capacity);

/* The strong reference in a slot; NULL if the frame must be replayed first. Marks backward
 * as begun and the slot as taken; releases tensors of earlier frames that were taken and are
 * still held (retained graphs). */
MS_API void *ms_frame_take(ms_execute *execute, ms_frame *frame, uint32_t slot);

/*
 * Reports a tensor that autograd saves in a frame, by its storage's identity. Call it in the
 * order of saving: ms_extent_store() uses the calls to find the storages that become bits. If
 * the technique is selective, *is_dropped says whether the plan drops the storage at the end of
 * the call and operators recompute it (the host keeps storages that it cannot recompute). If the
 * plan has no selection, every storage is dropped. With other techniques the host may leave out
 * storages below ms_execute_min_bytes(). Not called for parameters, buffers and the batch.
 */
MS_API int ms_frame_choose(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t bytes, bool *is_dropped,
                           ms_error *err);

/* Reports that autograd dropped a slot's handle. */
MS_API void ms_frame_drop(ms_execute *execute, ms_frame *frame, uint32_t slot);

/* The use of a tensor that a replay saves. */
typedef enum ms_capture {
    MS_CAPTURE_IGNORE, /* no handle needs it */
    MS_CAPTURE_PUT,    /* pass it to ms_frame_put() */
    MS_CAPTURE_LAST    /* the last one needed: put it, then stop the replay */
} ms_capture;

/* Begins a replay; with `whole` it runs to its end, for the layer's result. MS_ESTATE if the frame is
 * already being replayed. The frame may be open: a layer may differentiate in its own forward. */
MS_API int ms_frame_replay_begin(ms_execute *execute, ms_frame *frame, bool whole, ms_error *err);
/* Records the next tensor that the replay saves. MS_EREPLAY, naming layer and both shapes, if it
 * differs from the forward's. */
MS_API int ms_frame_replay_save(ms_execute *execute, ms_frame *frame, const ms_record *record, uint32_t *slot,
                                ms_capture *capture, ms_error *err);
/* Gives a slot its tensor; the frame then owns the reference. */
MS_API void ms_frame_put(ms_execute *execute, ms_frame *frame, uint32_t slot, void *memory);
/* Ends the replay. With `failed` (an error in the host), releases all its tensors; otherwise
 * MS_EREPLAY if a needed tensor was not saved again. */
MS_API int ms_frame_replay_end(ms_execute *execute, ms_frame *frame, bool failed, ms_error *err);

/* ---- extents: offload -------------------------------------------------------------- */

/* The plan's minimum: smaller storages stay. */
MS_API uint64_t ms_execute_min_bytes(const ms_execute *execute);

/* The newest extent of the storage with this identity and version, or NULL. Adds a handle that
 * belongs to `frame`. The host compares the storage itself (ms_extent_source()) and drops the
 * handle if it differs. */
MS_API ms_extent *ms_extent_find(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version);

/*
 * Starts storing a storage: makes an extent with one handle, which then owns the strong
 * reference `memory`. May wait for room in the write window; then releases written storages.
 * *extent is NULL, with MS_OK, if the tier failed now or before: the host keeps the tensor
 * (counted; logged once). In a frame of technique KEEP, *extent is NULL for all but
 * two-valued storages.
 */
MS_API int ms_extent_store(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t version,
                           const void *address, uint64_t bytes, uint64_t capacity, void *memory, ms_extent **extent,
                           ms_error *err);

/* The host's reference to the storage that was saved; weak once it is stored. */
MS_API void *ms_extent_source(const ms_extent *extent);
/* Whether the extent is bits in memory: then ms_extent_take() needs no transfer. */
MS_API bool ms_extent_is_packed(const ms_extent *extent);

/*
 * The bytes of an extent, in memory: its source if that still lives, else fetched. *memory
 * is the executor's strong reference, valid until ms_extent_taken(): the host takes its own
 * before that. Marks backward as begun; fetches ahead in reverse order of saving. May wait.
 * Fails with the tier's error: then *memory is not set, and the host does not call taken().
 */
MS_API int ms_extent_take(ms_execute *execute, ms_extent *extent, void **memory, ms_error *err);
/* Ends the use of *memory. `mark` belongs to the handle and is 0 at first. */
MS_API void ms_extent_taken(ms_execute *execute, ms_extent *extent, uint64_t *mark);

/* Drops the handle with this mark; the last one frees the extent. Never waits. */
MS_API void ms_extent_drop(ms_execute *execute, ms_extent *extent, uint64_t mark);

/* ---- between ------------------------------------------------------------------------ */

/* Releases storages whose store has ended, and ended transfers without handles. Cheap if
 * there are none; never waits. */
MS_API void ms_execute_poll(ms_execute *execute);

/* Ends a backward: releases tensors that were fetched or recomputed but not taken; a later
 * backward fetches or recomputes them again. */
MS_API void ms_execute_backward_ended(ms_execute *execute);

/* The events that may end a training step. */
typedef enum ms_boundary {
    MS_BOUNDARY_FORWARD,          /* the root is about to run again */
    MS_BOUNDARY_OPTIMIZER,        /* an optimizer of the model's parameters has stepped */
    MS_BOUNDARY_ANOTHER_OPTIMIZER /* the same, by another optimizer than the one that ended the last step */
} ms_boundary;

/*
 * A point between steps. Returns true if a step ended here. The first optimizer that steps after
 * a backward ends one; others that step after the same backward do not. Before any optimizer has
 * stepped, a forward after a backward ends one. May wait for transfers without handles.
 * *step_ns is the time since the last boundary, *step the number of the step that ended, from 1.
 */
MS_API bool ms_execute_boundary(ms_execute *execute, ms_boundary boundary, uint64_t *step, uint64_t *step_ns);

/* The number of steps that ended under the plan in force. */
MS_API uint64_t ms_execute_plan_steps(const ms_execute *execute);

/* If no call has a frame, the executor cannot see a backward, and each forward counts as a step. A
 * host that can observe a backward calls expect_backward() after its forward, and
 * backward_begins() when the backward begins; then forwards without a backward (a discriminator's
 * two) are one step. expect_backward() returns false if backward_begins() is not needed. */
MS_API bool ms_execute_expect_backward(ms_execute *execute);
MS_API void ms_execute_backward_begins(ms_execute *execute);

/* A host calls this after a backward if it knows whether the backward changed gradients or followed a change of
 * parameters (`parameters`: either). If neither (torch.autograd.grad in an inner step of meta-learning), the next
 * forward ends no step, except after 16 such forwards in a row: the loop may update its parameters unseen. */
MS_API void ms_execute_backward_reached(ms_execute *execute, bool parameters);

/* Called before each boundary of a model that trains on a GPU. `mark_bytes` is the peak of the framework's allocator
 * there since its counter was last reset; the library does not reset it, but the caller's code may. UINT64_MAX: the
 * model trains on a CPU host (again). */
MS_API void ms_execute_device_peak(ms_execute *execute, uint64_t mark_bytes);

/*
 * A forward is about to begin. Returns the bytes of maps that are live beyond those with which earlier steps began.
 * The plan counts two kinds of maps itself, and they are left out: `known_bytes` of the batch, outputs and gradients,
 * and `state_bytes` of the optimizers that have stepped. The first two steps set the measure, and what was returned
 * belongs to it. If the step has had forwards whose backward has not begun (a loss of two forwards), *waiting_forwards
 * is their number, and the result is what they hold beyond the most that was returned for such forwards. 0 after a
 * backward of the step, for differences below 1 MiB, and if maps are not counted.
 */
MS_API uint64_t ms_execute_forward_begins(ms_execute *execute, uint64_t known_bytes, uint64_t state_bytes,
                                          uint32_t *waiting_forwards);

/* The memory of a step; UINT64_MAX if unknown. On a CPU host all of it is unknown if hostmem does not own the
 * allocator's slots. On a GPU only the peak is known, from the first step in which the allocator's counter moves. */
typedef struct ms_step_memory {
    uint64_t peak_bytes;      /* resident, of the whole process; on a GPU: allocated by its allocator */
    uint64_t peak_held_bytes; /* largest sum of live and cached maps, less their sum when `execute` was opened */
    uint64_t resident_bytes;  /* at the boundary */
    uint64_t held_bytes;      /* live + cached at the boundary, less the same sum */
} ms_step_memory;

/* The memory of the step that the last ms_execute_boundary() ended. If several wrapped models share the
 * process, each measures from the last boundary of any of them. */
MS_API ms_step_memory ms_execute_step_memory(const ms_execute *execute);

/* The process's memory in an evaluation; UINT64_MAX if unknown. */
typedef struct ms_evaluation_memory {
    uint64_t before_bytes; /* resident when it began */
    uint64_t peak_bytes;   /* resident, of the whole process */
} ms_evaluation_memory;

/* The root runs without gradients between these two calls. The peak between them counts for the evaluation and never
 * for the step around it. Beginning again inside an evaluation does nothing. If no evaluation has begun, ending
 * returns false and does not write *memory. */
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
