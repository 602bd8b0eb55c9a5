/*
 * execute.h - the state machine of a training step under a plan: which saved
 * tensor stays, moves or is made again, where it is now, and when its bytes may go.
 *
 * Nothing here knows of torch or Python. Tensors are seen as *storages* (an
 * identity, a version, an address, bytes) and as *records* (shape, dtype, device).
 * The side that holds the real ones (the extension; a double in tests) gives a
 * table of functions, ms_execute_host, and owns every reference behind it.
 *
 *   frame   one call of a layer, or one stretch of the root's own work, in one
 *           forward; carries the technique in force
 *   slot    the n-th tensor that autograd saved in a frame which is recomputed
 *   extent  one storage at one version on the lower tier, shared by any number of
 *           saved tensors (handles)
 *
 * Life of a frame: open -> closed -> (replaying -> replayed)* -> gone, when it is
 * closed and its last handle is dropped. Life of an extent: storing -> stored ->
 * (fetching -> fetched -> stored)* -> gone with its last handle; `held` instead of
 * stored where the tier failed and the bytes simply stay. A storage whose words have
 * only two values (a mask) is stored as bits, in memory: see ms_execute_set_packing(). So whatever autograd does
 * (backward twice, never, in part, after an exception), bytes go when the last
 * handle goes, and nothing else has to happen in time.
 *
 * Locking. An object is used under one lock of the host's (Python's GIL). Where a
 * call may wait for a transfer, it gives that lock up through host->unlock and
 * host->lock; those calls say "may wait".
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
 * weak (they live as long as somebody else holds them).
 */
typedef struct ms_execute_host {
    void *context;
    /* strong -> weak. */
    void (*weaken)(void *context, void *memory);
    /* weak -> strong; false where the bytes are gone or are no longer the same. */
    bool (*strengthen)(void *context, void *memory);
    /* Drops the reference itself, strong or weak. */
    void (*release)(void *context, void *memory);
    /* A new storage of `bytes` to fetch into: a strong reference, its address, and
     * up to where memory behind it may be written. */
    int (*obtain)(void *context, uint64_t bytes, void **memory, void **address, uint64_t *capacity, ms_error *err);
    /* The stream that the calling thread works on, on the device whose memory the tier
     * takes (ms_execute_device()). Called for such a tier only; NULL: the legacy default. */
    void *(*stream)(void *context);
    /* Give up and take back the host's lock around a wait; NULL where there is none. */
    void (*unlock)(void *context);
    void (*lock)(void *context);
} ms_execute_host;

/* ---- open and close -------------------------------------------------------- */

/* `tier` NULL: there is no lower tier (yet). */
MS_API int ms_execute_open(const ms_execute_host *host, const ms_offload_options *tier, ms_execute **execute,
                           ms_error *err);

/* Waits for transfers (bounded), closes the tier. Every frame must be closed and
 * every handle dropped before: the host counts them through its own references. */
MS_API void ms_execute_close(ms_execute *execute);

/* Opens the lower tier of an executor that has none. MS_ESTATE where it has one. May wait. */
MS_API int ms_execute_open_tier(ms_execute *execute, const ms_offload_options *options, ms_error *err);
MS_API bool ms_execute_has_tier(const ms_execute *execute);
/* Whether the tier takes storages in host memory, or is not open. */
MS_API bool ms_execute_host_is_device(const ms_execute *execute);
/* The GPU whose storages the tier takes; -1 where it takes those of the CPU, or is not open. */
MS_API int ms_execute_device(const ms_execute *execute);
/* Of a GPU's tier: whether transfers run beside the computation (true at first). Without,
 * stores are waited for where a layer's call ends, and nothing is fetched ahead. */
MS_API void ms_execute_set_overlap(ms_execute *execute, bool overlaps);
/* One line on the tier, "" without one. */
MS_API const char *ms_execute_tier_description(const ms_execute *execute);

/* ---- plan -------------------------------------------------------------------- */

/* Numbers a hookable module; the same name gives the same number. */
MS_API int ms_execute_add_layer(ms_execute *execute, const char *name, uint32_t *layer, ms_error *err);
MS_API const char *ms_execute_layer_name(const ms_execute *execute, uint32_t layer);

/* The plan that frames opened from now on follow; copied. NULL: everything is kept.
 * A call that it does not name gets what it says for the layer's first call, a layer
 * that it does not name its fallback. Frames already open or saved are not touched. */
MS_API int ms_execute_set_plan(ms_execute *execute, const ms_plan *plan, ms_error *err);

/* Whether any frame of the plan in force needs hooks (false: all is kept). */
MS_API bool ms_execute_is_active(const ms_execute *execute);

/* While watched, calls that are kept get a frame too (of technique KEEP), so that the
 * host sees every saved tensor: for profiling real steps. */
MS_API void ms_execute_set_watched(ms_execute *execute, bool is_watched);

/* Whether storages whose words have two values only become bits in memory, instead of staying as
 * they are or going to the lower tier (true at first); the bytes come back exactly. Those that the
 * plan knows (ms_selection.two_valued) do where it says so, and nowhere else. Others are found by
 * looking, when they are saved, under a plan that moves anything. */
MS_API void ms_execute_set_packing(ms_execute *execute, bool is_packing);

/* ---- forward ------------------------------------------------------------------- */

/*
 * `thread` is any number that names the calling thread. A forward of the root
 * begins: calls are counted from 0 again, whatever a broken-off forward left open
 * on this thread is closed (*stale says that there was something).
 */
MS_API int ms_execute_enter_root(ms_execute *execute, uint64_t thread, bool *stale, ms_error *err);
MS_API void ms_execute_leave_root(ms_execute *execute, uint64_t thread, bool failed);
MS_API bool ms_execute_in_root(const ms_execute *execute, uint64_t thread);

/* Facts of one call, seen only when it happens. */
typedef struct ms_call_facts {
    bool replayable; /* its arguments can be kept and given again */
} ms_call_facts;

/* The technique that the plan has for the next call of a layer on this thread. */
MS_API ms_technique ms_execute_peek(const ms_execute *execute, uint64_t thread, uint32_t layer);

/*
 * A layer's call begins (MS_ROOT_LAYER: a stretch of the root's own work begins).
 * Counts the call, looks up its technique, and turns it into one that can be done
 * now: recompute needs replayable arguments, offloading a tier that works. *frame is
 * NULL where the technique is KEEP, nothing is watched and nothing of it may become bits. A frame still open on this thread is closed:
 * frames do not nest. Works without enter_root(): a step opens by itself.
 */
MS_API int ms_execute_enter(ms_execute *execute, uint64_t thread, uint32_t layer, const ms_call_facts *facts,
                            ms_frame **frame, ms_error *err);

/* The call is over, well or not: the frame open on this thread, if any, is closed. It
 * lives on while it has handles. May wait where ms_execute_set_overlap() says so. */
MS_API void ms_execute_leave(ms_execute *execute, uint64_t thread);

/* The technique of the frame's layer, as planned. */
MS_API ms_technique ms_frame_technique(const ms_frame *frame);
/* What the saved-tensor hooks of the frame do with a tensor. */
typedef enum ms_frame_hook {
    MS_FRAME_KEEPS,   /* it stays, or becomes bits: ms_extent_store() is asked if the frame packs */
    MS_FRAME_MOVES,   /* its storage goes to a lower tier */
    MS_FRAME_CHOOSES, /* single operators recompute some, the rest stays or moves */
    MS_FRAME_REPLAYS, /* a slot stands for it; the layer runs again */
    MS_FRAME_HOOK_COUNT
} ms_frame_hook;
MS_API ms_frame_hook ms_frame_hook_of(const ms_frame *frame);
/* Whether tensors that are not recomputed stay where they are. */
MS_API bool ms_frame_rest_stays(const ms_frame *frame);
/* Whether what it keeps may become bits: ms_extent_store() is to be asked. */
MS_API bool ms_frame_packs(const ms_frame *frame);
/* The number of the frame's layer. */
MS_API uint32_t ms_frame_layer(const ms_frame *frame);
MS_API uint32_t ms_frame_call(const ms_frame *frame);
MS_API bool ms_frame_is_open(const ms_frame *frame);
/* Slots whose tensor a replay would have to make. */
MS_API uint32_t ms_frame_missing(const ms_frame *frame);

/* A reference to the frame besides that of its handles, for a host that must be able
 * to ask about it later. */
MS_API void ms_frame_hold(ms_frame *frame);
MS_API void ms_frame_unhold(ms_execute *execute, ms_frame *frame);

/* While pinned, what a replay made is not let go of on behalf of another thread. Around
 * a replay and the ms_frame_take() after it. */
MS_API void ms_frame_pin(ms_frame *frame);
MS_API void ms_frame_unpin(ms_execute *execute, ms_frame *frame);

/* A saved tensor stays where it is: counted, nothing else. */
MS_API void ms_execute_kept(ms_execute *execute);

/* ---- slots: recompute ------------------------------------------------------------ */

enum { MS_RECORD_RANK_MAX = 64 };

/* What is known of a saved tensor. `dtype` and `device` are names that live as
 * long as the executor. */
typedef struct ms_record {
    uint32_t rank;
    const int64_t *size; /* [rank] */
    const char *dtype;
    const char *device;
} ms_record;

/* Autograd saves a tensor in a recomputed frame: the next slot, and one handle.
 * With `kept` the tensor is held by the host (a parameter): the slot only counts. */
MS_API int ms_frame_save(ms_execute *execute, ms_frame *frame, const ms_record *record, bool kept, uint32_t *slot,
                         ms_error *err);

/* The strong memory in a slot, or NULL: then the frame has to be replayed first.
 * Marks backward as begun, the slot as taken, and lets go of what earlier frames
 * still hold although it was taken (retained graphs). */
MS_API void *ms_frame_take(ms_execute *execute, ms_frame *frame, uint32_t slot);

/*
 * Autograd saves a tensor in a frame, whose storage has this identity. What is told here, in the
 * order of saving, is what ms_extent_store() knows of storages that become bits; those below
 * ms_execute_min_bytes() may be left out where the technique is not selective. Where it is:
 * whether the plan has it dropped, once the call has ended, to be made again by
 * the operators that made it (what the host finds that it can't make stays). Without a
 * selection in the plan every storage is. Parameters, buffers and the batch are not asked
 * about.
 */
MS_API int ms_frame_choose(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t bytes, bool *is_dropped,
                           ms_error *err);

/* Autograd gave the handle up. */
MS_API void ms_frame_drop(ms_execute *execute, ms_frame *frame, uint32_t slot);

/* What to do with a tensor that a replay saves. */
typedef enum ms_capture {
    MS_CAPTURE_IGNORE, /* nobody asks for it */
    MS_CAPTURE_PUT,    /* ms_frame_put() it */
    MS_CAPTURE_LAST    /* put it, then stop the replay: nothing more is needed */
} ms_capture;

/* MS_ESTATE if the frame is being replayed. It may still be open: a layer may
 * differentiate in its own forward. With `whole` the replay is not to be stopped: the layer's
 * result is wanted too. */
MS_API int ms_frame_replay_begin(ms_execute *execute, ms_frame *frame, bool whole, ms_error *err);
/* The replay saves its next tensor. MS_EREPLAY, naming layer and both shapes, where
 * it is not what the forward saved there. */
MS_API int ms_frame_replay_save(ms_execute *execute, ms_frame *frame, const ms_record *record, uint32_t *slot,
                                ms_capture *capture, ms_error *err);
/* Gives a slot its tensor; the reference is the frame's from now on. */
MS_API void ms_frame_put(ms_execute *execute, ms_frame *frame, uint32_t slot, void *memory);
/* The replay ended. With `failed`, for a reason of the host's: everything it made is
 * released. Otherwise MS_EREPLAY where a needed tensor was not saved again. */
MS_API int ms_frame_replay_end(ms_execute *execute, ms_frame *frame, bool failed, ms_error *err);

/* ---- extents: offload -------------------------------------------------------------- */

/* Storages below this stay (of the plan in force). */
MS_API uint64_t ms_execute_min_bytes(const ms_execute *execute);

/* The newest extent of the storage with this identity, if its version is the same:
 * with one more handle, of `frame`. The host compares what else it knows (ms_extent_source())
 * and drops it again if that differs. NULL where there is none. */
MS_API ms_extent *ms_extent_find(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version);

/*
 * Starts storing a storage: a new extent with one handle. Takes over the strong
 * reference `memory` on success. May wait for room in the write window and then
 * lets go of what was written. *extent is NULL, with MS_OK, where the tier failed
 * now or before: the tensor is to be kept (counted; logged once). In a frame of
 * technique KEEP only storages of two values are taken: NULL for all others.
 */
MS_API int ms_extent_store(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t version,
                           const void *address, uint64_t bytes, uint64_t capacity, void *memory, ms_extent **extent,
                           ms_error *err);

/* The host's reference to the storage that was saved; weak once it is stored. */
MS_API void *ms_extent_source(const ms_extent *extent);
/* Kept as bits in memory: taking it moves nothing. */
MS_API bool ms_extent_is_packed(const ms_extent *extent);

/*
 * The bytes of an extent, in memory: its source where that still lives, else fetched.
 * *memory is a strong reference of the executor's, valid until ms_extent_taken(): the
 * host takes one of its own in between. Marks backward as begun, fetches ahead in
 * reverse order of saving. May wait. Fails with what the tier reported; nothing is
 * handed out then, and taken() is not called.
 */
MS_API int ms_extent_take(ms_execute *execute, ms_extent *extent, void **memory, ms_error *err);
/* `mark` belongs to the handle, 0 at first. */
MS_API void ms_extent_taken(ms_execute *execute, ms_extent *extent, uint64_t *mark);

/* The handle with this mark is gone; the last one frees the extent. Never waits. */
MS_API void ms_extent_drop(ms_execute *execute, ms_extent *extent, uint64_t mark);

/* ---- between ------------------------------------------------------------------------ */

/* Lets go of storages whose store has ended and of transfers nobody waits for any
 * more. Cheap when there is nothing; never waits. */
MS_API void ms_execute_poll(ms_execute *execute);

/* A backward has ended: what was fetched or replayed and not asked for is let go of;
 * a later backward can ask for it again. */
MS_API void ms_execute_backward_ended(ms_execute *execute);

/* What ends a training step. */
typedef enum ms_boundary {
    MS_BOUNDARY_FORWARD,          /* the root is about to run again */
    MS_BOUNDARY_OPTIMIZER,        /* an optimizer that holds our parameters has stepped */
    MS_BOUNDARY_ANOTHER_OPTIMIZER /* and it is not the one whose step ended the step before */
} ms_boundary;

/*
 * A point between steps. Returns true if a step ended here: at every optimizer step, but for
 * those of further optimizers after the same backward, which belong to the step that the first
 * has ended; and, until one was seen, at a forward that follows a backward. Waits (may wait) for
 * transfers nobody needs any more. *step_ns is the time since the boundary before,
 * *step the number of the step that ended, from 1.
 */
MS_API bool ms_execute_boundary(ms_execute *execute, ms_boundary boundary, uint64_t *step, uint64_t *step_ns);

/* How many steps have ended under the plan in force. */
MS_API uint64_t ms_execute_plan_steps(const ms_execute *execute);

/* Where no call has a frame, a backward shows nowhere, and a forward counts as a step. A host
 * that can tell of the backward of the forward that has just ended says so, and tells; then forwards
 * without a backward (a discriminator's two) are one step. False: nobody needs to be told. */
MS_API bool ms_execute_expect_backward(ms_execute *execute);
MS_API void ms_execute_backward_begins(ms_execute *execute);

/* What the process held in a step on a CPU host; UINT64_MAX for what can't be told, which
 * is everything where hostmem does not have the allocator's slots. */
typedef struct ms_step_memory {
    uint64_t peak_bytes;      /* resident, of the whole process */
    uint64_t peak_held_bytes; /* most of live + cached maps, beyond those when `execute` was made */
    uint64_t resident_bytes;  /* at the boundary */
    uint64_t held_bytes;      /* live + cached at the boundary, counted alike */
} ms_step_memory;

/* Of the step that the last ms_execute_boundary() ended. Several wrapped models share one
 * process: each sees what was held since any of them passed a boundary. */
MS_API ms_step_memory ms_execute_step_memory(const ms_execute *execute);

/* What an executor holds at the moment. */
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
