/*
 * The internals of the simulator: replays one training step event by event, in whole bytes and nanoseconds,
 * under one technique per node. Called by ms_simulate(), the search and the explanations; decides nothing. A
 * replay allocates nothing, so thousands of replays cost little.
 *
 * The model. Each storage of each node is an *instance*. It occupies the device while its hold count is above
 * zero. These count: its natural life (ALLOC to FREE), each node that keeps it for backward (SAVE to DROP), a
 * store that reads it, each fetch (from its start to DROP), and each node that will be recomputed with it as
 * an argument. Two queues share the lower tier; see sim_io.c. Freed maps may stay cached under a ceiling; see
 * sim_cache.c.
 *
 * Two clocks. All times are the device's. A GPU's host allocates and frees, and runs ahead of the GPU by an
 * unknown time. It frees a storage that is being stored once it has observed the end of the copy. Replays that
 * must fit assume the longest lead: the host observes the end only when it waits for room in the write window.
 * Expected replays assume no lead. Fetches begin in the host's order, so its lead does not matter.
 *
 * One pass gives both steps: the second differs from the first only by bytes that are constant over a phase
 * (optimizer state, the outputs and gradients that the caller still holds). Only the cache needs a second
 * pass.
 *
 * Tests: tests/c/sim/test_simulate.c (replays), test_sim_cache.c, test_stretch.c;
 * tests/c/search/test_selective.c, test_packing.c and test_segment.c (techniques).
 */
#ifndef MS_SIM_SIM_H
#define MS_SIM_SIM_H

#include "device/device.h"
#include "memscale/simulate.h"

/* Whether a plan moves storages that share a map with others. The others are hostmem's own maps, which move without the
 * offload engine's slab. */
static inline bool ms__moves_small(uint64_t offload_min_bytes)
{
    return offload_min_bytes < MS__MAP_MIN_BYTES;
}
/* The engine's slab, present if anything is offloaded: of its default size, or on a host that moves only maps the least
 * that opens. That has a slot of 4 MiB for each of three threads, where pieces are compressed, and one for copies of
 * storages that someone else allocated. */
static inline uint64_t ms__slab_bytes(bool on_host, uint64_t offload_min_bytes)
{
    return (uint64_t)(on_host && !ms__moves_small(offload_min_bytes) ? 16 : 32) << 20;
}
/* The part of a slab that a run is expected to touch. */
static inline uint64_t ms__slab_expected(uint64_t slab_bytes, uint64_t offload_min_bytes)
{
    return ms__moves_small(offload_min_bytes) ? slab_bytes : 0;
}
/* Both windows of a plan without a graph. */
#define MS__BLIND_WINDOW_BYTES ((uint64_t)256 << 20)

/* The values of ms_tier, which this room can't include. */
enum { MS__DEVICE_TIER, MS__HOST_TIER, MS__DISK_TIER, MS__TIER_COUNT };

enum {
    MS__OP_STRETCH = MS_EVENT_COUNT, /* kind of an ms__op: see ms__stretch */
    MS__OP_NS = 2000,        /* dispatch of one operator */
    MS__DRAW_PS = 5800,      /* one random number on a CPU: torch draws them on one thread */
    MS__HANDLING_NS = 15000, /* bookkeeping of one transfer: pack, queue, reap */
    MS__NOTE_NS = 50000,     /* recording one operator of a selective layer's forward, its views included */
    MS__MAKER_NS = 40000,    /* running one such operator again, beside its work */
    MS__BITS_MOST = UINT8_MAX, /* most two-valued storages that a node distinguishes */
    MS__NO_CLASS = UINT32_MAX
};

/* ---- the graph, compiled ---------------------------------------------------- */

/* One event. `value`: a WORK's nanoseconds; the slot of a SAVE, NEED or DROP; a stretch's number. */
typedef struct ms__op {
    uint32_t kind;
    uint32_t storage; /* local number */
    uint64_t value;
} ms__op;

/* WORK events and the lives of private storages, merged into one event. Bytes and counts are relative to the
 * start of the stretch: `most` within it, `after` at its end. */
typedef struct ms__stretch {
    uint64_t ns, fault_ns;
    int64_t most_bytes, after_bytes;
    int64_t small_most_bytes, small_after_bytes;
    uint32_t first_change, change_count;
} ms__stretch;

typedef struct ms__class_change {
    uint32_t class_id;
    int32_t most, after;
} ms__class_change;

/* An operator that can run again; operands as in ms_maker. */
typedef struct ms__sim_maker {
    uint64_t ns;
    uint32_t first, input_count, output_count;
} ms__sim_maker;

/* A two-valued saved storage, bit-packed. */
typedef struct ms__sim_bits {
    uint64_t bytes;      /* of the bits, fewer than the storage's */
    uint64_t pack_ns;    /* spent when it is saved */
    uint64_t unpack_ns;  /* spent when backward asks for it */
    uint64_t saved_bytes;
    uint32_t rank;       /* cheapest per byte first, from 1; 0: the slot is not two-valued */
} ms__sim_bits;

typedef struct ms__sim_profile {
    uint32_t storage_count;
    uint32_t external_count;
    uint32_t input_count;
    uint32_t save_count;   /* slots: one for each distinct saved storage */
    uint32_t replay_count; /* forward events up to the last SAVE, included */
    uint32_t forward_count;
    uint32_t backward_count;
    const uint32_t *inputs;
    uint8_t *made;      /* [storage_count] allocated by the forward program */
    uint32_t *saved;    /* [save_count] local number of each slot */
    uint32_t bits_count; /* two-valued saved storages; on a GPU only truth values */
    ms__sim_bits *bits;  /* [save_count]; sim_bits.c */
    ms__op *forward;
    ms__op *backward;
    /* sim_stretch.c: the same programs in fewer events, for replays without a cache */
    uint32_t short_forward_count, short_backward_count, short_replay_count;
    ms__op *short_forward;
    ms__op *short_backward;
    ms__stretch *stretches;
    ms__class_change *changes;
    /* selective.c; the arrays are NULL if the profile has no makers */
    uint32_t maker_count;
    ms__sim_maker *makers;
    const uint32_t *operands;
    uint32_t *maker_of;  /* [storage_count]; UINT32_MAX: none */
    uint32_t *slot_of;   /* [storage_count]; UINT32_MAX: not saved */
    uint32_t set_count;
    uint8_t *sets;       /* [set_count][save_count] 1: in the set */
    uint64_t noting_ns;  /* a forward's extra time to record its operators */
} ms__sim_profile;

typedef struct ms__sim_node {
    const ms__sim_profile *profile;
    const uint32_t *externals;
    uint32_t first_local; /* instance of local number external_count */
    uint32_t first_slot;  /* slots of SAVEs, then of arguments */
    uint32_t first_replay; /* instance of storage 0 in a recomputation */
    bool is_root;
    const struct ms__sim_node *before; /* the layer that makes argument 0, else NULL */
    uint32_t link;                     /* argument 0's local number there */
} ms__sim_node;

/* The instance of a local storage. */
static inline uint32_t ms__sim_instance_of(const ms__sim_node *node, uint32_t storage)
{
    uint32_t externals = node->profile->external_count;
    return storage < externals ? node->externals[storage] : node->first_local + (storage - externals);
}

/* ---- the state of a pass ---------------------------------------------------- */

typedef struct ms__instance {
    uint32_t holds;
    uint32_t tier_users; /* nodes that will use the copy on the lower tier */
    uint8_t natural;     /* between ALLOC and FREE */
    uint8_t fetching;    /* a read into it is in flight */
    uint8_t landed;      /* fetched, and held for all users of the tier's copy */
    uint8_t pageable;    /* on the host tier, in memory that is not pinned */
    uint8_t counted;     /* by ms__sim_owners() */
} ms__instance;

typedef enum ms__slot_state {
    MS__SLOT_NONE,
    MS__SLOT_HELD,    /* in memory until DROP */
    MS__SLOT_AWAY,    /* on the lower tier: see `entry` */
    MS__SLOT_LOST,    /* to be recomputed */
    MS__SLOT_REBUILT, /* recomputed, held until DROP */
    MS__SLOT_BITS,    /* two-valued: bit-packed in memory until DROP */
    MS__SLOT_UNPACKED /* the bits, and since NEED also the storage */
} ms__slot_state;

typedef struct ms__slot {
    uint32_t state;
    uint32_t entry; /* AWAY: index into fetches */
} ms__slot;

typedef enum ms__fetch_state { MS__FETCH_WAITING, MS__FETCH_ISSUED, MS__FETCH_USED, MS__FETCH_DROPPED } ms__fetch_state;

typedef struct ms__fetch {
    uint32_t instance;
    uint32_t state;
    uint32_t tier;      /* MS__HOST_TIER or MS__DISK_TIER */
    bool moved;         /* bytes came from the tier */
    bool counted_ahead; /* counted in io.ahead_bytes */
} ms__fetch;

/* One direction of the lower tier: transfers in order of issue. */
typedef struct ms__queue {
    struct ms__transfer {
        uint32_t instance;
        uint64_t ns;     /* with the link to itself */
    } *transfers;        /* [slot_count] */
    uint32_t count, next;
    uint64_t left;       /* half nanoseconds that transfer `next` still needs */
} ms__queue;

typedef struct ms__io {
    ms__queue writes, reads;
    bool shared;               /* both directions at once move at half speed each */
    uint64_t at_ns;            /* the queues were played up to here */
    uint32_t released;         /* writes whose storage the executor has released */
    uint64_t in_flight_bytes;  /* of the other writes */
    uint64_t ahead_bytes;      /* fetched or in flight, not yet requested */
    uint64_t tier_bytes[MS__TIER_COUNT], tier_peak_bytes[MS__TIER_COUNT];
    uint64_t moved_bytes;
} ms__io;

typedef struct ms__cache_entry {
    uint32_t class_id;
    uint32_t older, newer;       /* in order of freeing, oldest first */
    uint32_t below;              /* the entry of its class that was freed before it */
    uint32_t above;
    uint64_t absent_bytes;       /* returned to the system, at its end */
} ms__cache_entry;

typedef struct ms__cache {
    bool on;
    uint64_t ceiling_bytes;
    uint64_t cached_bytes;
    uint64_t held_peak_bytes;  /* most live + cached bytes */
    uint32_t oldest, newest;
    uint32_t free_entry;
    uint32_t *top;             /* [class_count] newest entry of each class */
    ms__cache_entry *entries;  /* [instance_count] */
} ms__cache;

typedef enum ms__phase { MS__FORWARD, MS__BACKWARD, MS__OPTIMIZER, MS__PHASE_COUNT } ms__phase;

/* `tick` counts the calls of ms__sim_note_live(), from 1, up to the one that found the peak; 0 if nothing was
 * live in the phase. */
typedef struct ms__peak {
    uint64_t bytes;
    uint64_t tick;
    uint32_t node;
} ms__peak;

/*
 * Optimizer state off the device, on disk or in host memory. If gradients are released, each update in backward takes its
 * share of these times; see sim_update.c. Without release all of it comes in the optimizer's phase.
 */
typedef struct ms__state_stream {
    uint64_t update_ns;    /* of the processor, for all parameters */
    uint64_t moving_ns;    /* of the disk or link, both ways; 0: all state is on the device */
    uint64_t writing_ns;   /* the way down alone */
    uint64_t state_bytes;  /* off the device */
    uint64_t gradient_bytes; /* of all gradients */
    uint64_t buffer_bytes; /* half of them hold what is written, half what was read ahead */
    uint64_t layer_bytes;  /* of the layer that has most */
    /* the running pass */
    bool is_alone;         /* no activations move */
    uint64_t updated_bytes; /* of the gradients used so far */
    uint64_t ahead_ns;     /* see sim_update.c */
    uint64_t at_ns;        /* the end of the last update */
    uint64_t last_writing_ns; /* of what that changed */
    uint64_t owed_ns;      /* the disk's, to streamed parameters */
} ms__state_stream;

struct ms__sim;

/* For explanations: every pass calls `look` at this `tick` (0: never), and between forward and backward if
 * `at_boundary`. `look` may read the simulator. */
typedef struct ms__watch {
    uint64_t tick;
    bool at_boundary;
    void (*look)(const struct ms__sim *sim, void *context);
    void *context;
    uint64_t *again_ns; /* [node_count] or NULL: total recompute time at the end of each node's backward */
} ms__watch;

typedef struct ms__sim {
    /* fixed by graph and hardware */
    const ms_graph *graph;
    ms_graph *owned_graph;     /* the same if step options changed a copy, else NULL */
    uint64_t held_tier_bytes[MS__TIER_COUNT]; /* always held by step options */
    const ms_hardware *hardware;
    const ms__device_kind *device_kind;
    bool on_host;
    uint64_t resident_bytes;   /* baseline (a stated one without a process), scratch, batch, and: */
    uint64_t option_bytes;     /* buffers and temporaries of step options, which hostmem manages */
    uint64_t reserve_bytes;    /* the part of the scratch that is not expected to be used */
    uint64_t parameter_bytes;  /* buffers too; part of peak_live_bytes */
    uint64_t gradient_bytes, output_bytes;
    uint64_t small_state_bytes; /* optimizer state of tensors below MS__MAP_MIN_BYTES */
    uint64_t loss_bytes;
    uint32_t step_copies;      /* parameter copies that the optimizer's step allocates beside its state; 0: its step
                                * does not go parameter by parameter */
    uint64_t optimizer_ns;
    ms__state_stream state;
    uint8_t *released;         /* [graph->storage_count] 1: a gradient that its FREE releases; NULL: none */
    uint32_t profile_count, node_count, instance_count, slot_count, class_count;
    uint32_t replay_base;      /* first instance of recomputations: each node has its own if layers may be recomputed
                                * as one, else all share them */
    uint64_t *class_bytes;     /* [class_count] */
    uint64_t *class_fault_ns;
    ms__sim_profile *profiles;
    ms__sim_node *nodes;
    uint64_t *instance_bytes;  /* [instance_count] */
    uint64_t *instance_untouched; /* the part that never becomes resident */
    uint32_t *instance_class;
    uint64_t event_count;      /* of a replay that keeps all: the cost of a replay */
    bool has_bits;             /* some saved storage is two-valued */
    bool host_leads;           /* assumes that the host runs as far ahead of the device as it can */
    bool expects;              /* replays the expected step; see ms__sim_run_expected() */
    bool skips_untouched;      /* does not count untouched bytes; see ms__sim_run_unmodified() */
    bool in_full;              /* for a watch, whose ticks are those of the full programs: runs no shorter ones */

    /* the running pass */
    const ms_choices *choices;
    ms__instance *instances;
    ms__slot *slots;
    ms__fetch *fetches;
    uint32_t fetch_count;
    uint32_t prefetch_next;    /* this and later entries are issued */
    ms__io io;
    ms__cache cache;
    uint32_t *class_live, *class_peak; /* [class_count] */
    uint64_t class_peak_bytes; /* sum of class_peak x bytes: held by an unbounded cache */
    uint64_t now_ns;
    bool loss_held;            /* live_bytes include loss_bytes */
    uint64_t live_bytes;       /* on a CPU host, only maps */
    uint64_t small_bytes;      /* on a CPU host: live storages below MS__MAP_MIN_BYTES */
    uint64_t small_peak_bytes; /* since the run began: libc keeps this memory */
    uint64_t extra_bytes;      /* constant over the phase */
    ms__phase phase;
    uint32_t current_node;
    uint32_t current_event;    /* in the node's program; if `again`, in its forward program */
    bool again;                /* the node is being recomputed */
    uint64_t tick;             /* calls of ms__sim_note_live() so far */
    ms__watch watch;
    ms__peak peaks[MS__PHASE_COUNT];
    uint64_t boundary_bytes;   /* live between forward and backward */
    uint64_t pending_bytes;    /* held by the step's earlier forwards until their backward */
    uint64_t recompute_ns, fault_ns, stall_forward_ns, stall_backward_ns;
    uint64_t packing_ns, packed_bytes;
    uint32_t adding_gradient;  /* under accumulation: the gradient that is being added */
    uint8_t *maker_marks;      /* [most makers of a profile] for one recomputed storage */
    uint32_t *last_reader;     /* [most storages of a profile] the same: 1 + maker; otherwise zeros */
} ms__sim;

/* Bytes that are live through a whole phase, beside the residents. */
typedef struct ms__carried {
    uint64_t state_bytes, transient_bytes, output_bytes, gradient_bytes;
    uint64_t pending_bytes; /* held by the step's earlier forwards until their backward */
} ms__carried;

/* A run's result beyond ms_replay; see ms__sim_run(). */
typedef struct ms__outcome {
    ms_replay replay;
    uint64_t fixed_bytes;      /* resident + slab: not managed by hostmem */
    uint64_t held_most_bytes;  /* live + cached with an unbounded cache, with state */
    uint64_t live_peak_bytes;  /* managed by hostmem: peak - fixed, no cache */
    uint64_t activation_peak_bytes; /* in forward and backward, without state */
    uint64_t boundary_bytes;   /* live between forward and backward */
    ms__phase peak_phase;      /* of replay.peak_node */
    uint64_t peak_tick;        /* for ms__watch; valid in a full run without a cache */
} ms__outcome;

/* Compiles a graph. The simulator keeps pointers into both documents. One thread at a time. */
int ms__sim_new(const ms_graph *graph, const ms_hardware *hardware, ms__sim **sim, ms_error *err);
void ms__sim_free(ms__sim *sim);

/* Divides the bytes on the device now among their owners ([MS_OWNER_COUNT]), which sum to `device_bytes`. Changes
 * nothing but its own marks. */
void ms__sim_owners(ms__sim *sim, uint64_t fixed_bytes, uint64_t device_bytes, uint64_t *owners);

/* The optimizer's time at the device's rate. */
uint64_t ms__sim_optimizer_ns(const ms_graph *graph, const ms_hardware *hardware);

/*
 * Replays. With choices->ceiling_bytes 0 nothing is cached and every map is faulted in again; with UINT64_MAX
 * the cache is unbounded. Cannot fail. `samples` may be NULL.
 */
void ms__sim_run(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome, ms_sample *samples);

/* Events that this thread has replayed so far: the work of planning, the same on every machine. */
uint64_t ms__sim_events_replayed(void);

/*
 * Replays the expected run. A loss outside the model is a cross entropy: it holds its log-softmax, and in
 * backward also the gradient, until the model's first gradient exists. The slab is touched only if something
 * moves through it. The scratch reserve still counts.
 */
void ms__sim_run_expected(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome);

/* Replays the expected run of an unmodified step: its maps are fresh, so bytes that operators leave untouched
 * are not resident. Needs choices->ceiling_bytes 0. */
void ms__sim_run_unmodified(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome);

/* `first`: before optimizer state exists. */
ms__carried ms__sim_carried(const ms__sim *sim, ms__phase phase, bool first);
uint64_t ms__sim_carried_bytes(const ms__sim *sim, ms__phase phase, bool first);
/* Whether gradients add up over steps. */
bool ms__sim_accumulates(const ms_loop *loop);
/* Fills in peaks and times of the finished pass. */
void ms__sim_read(const ms__sim *sim, ms__outcome *out);

/* simulate.c: replays the graph with every node kept and nothing cached. MS_ENOMEM. */
int ms__simulate_kept(const ms_graph *graph, const ms_hardware *hardware, ms_replay *replay, ms_error *err);

/* ---- between the files of the simulator ------------------------------------- */

/* sim_memory.c: allocates or frees small bytes that belong to no instance. */
void ms__sim_take_small(ms__sim *sim, uint64_t bytes);
void ms__sim_give_small(ms__sim *sim, uint64_t bytes);
/* sim_memory.c: holds. Acquiring the first and releasing the last one change live bytes. */
void ms__sim_acquire(ms__sim *sim, uint32_t instance);
void ms__sim_release(ms__sim *sim, uint32_t instance);
/* Compares live bytes with the phase's peak. */
void ms__sim_note_live(ms__sim *sim);
/* Spends compute time, and plays the queues meanwhile. */
void ms__sim_spend(ms__sim *sim, uint64_t ns);
/* Applies a stretch. Needs a run without a cache. */
void ms__sim_stretch(ms__sim *sim, const ms__sim_profile *profile, const ms__stretch *stretch);

/* sim_stretch.c: makes the shorter programs of all profiles, after the nodes got their instances. */
int ms__stretches_compile(ms__sim *sim);
void ms__stretches_clear(ms__sim_profile *profile);

/* sim_again.c, for selective.c. has(): a saved storage is held or will be fetched. fetch(): fetches it. The others
 * begin the life of a recomputed storage, hold it until DROP if the node had dropped it, and end its life. */
bool ms__sim_has(const ms__sim *sim, const ms__sim_node *node, uint32_t storage);
void ms__sim_fetch(ms__sim *sim, const ms__sim_node *node, uint32_t storage);
void ms__sim_begin_recomputed(ms__sim *sim, const ms__sim_node *node, uint32_t storage);
void ms__sim_hold_recomputed(ms__sim *sim, const ms__sim_node *node, uint32_t storage);
void ms__sim_end_recomputed(ms__sim *sim, const ms__sim_node *node, uint32_t storage);

/* sim_bits.c */
/* Finds the two-valued slots of a profile, with their bytes and times, after slots were numbered. MS_ENOMEM. */
int ms__bits_compile(const ms__sim *sim, const ms_profile *from, const uint32_t *slot_of, ms__sim_profile *to);
/* Whether a technique leaves saved storages that can be bit-packed: they stay or move. */
bool ms__bits_possible(ms_technique technique);
/* Bit-packs a saved storage if the choices select it; returns whether they do. */
bool ms__bits_made(ms__sim *sim, const ms__sim_node *node, uint32_t index, ms__slot *slot);
/* Unpacks a slot that backward asks for, if it is bit-packed. */
void ms__bits_unpack(ms__sim *sim, const ms__sim_node *node, uint32_t storage, ms__slot *slot);
/* Frees the bits of a slot at its DROP. */
void ms__bits_drop(ms__sim *sim, const ms__sim_node *node, const ms__slot *slot);

/* selective.c */
/* Makes a profile's makers and sets, after slots were numbered. MS_ENOMEM. */
int ms__selective_compile(const ms__sim *sim, const ms_profile *from, ms__sim_profile *to);
void ms__selective_clear(ms__sim_profile *profile);
/* The slots that a technique drops, [save_count]; NULL if it drops none. */
const uint8_t *ms__selective_set(const ms__sim_profile *profile, ms_technique technique);
/* Recomputes a dropped storage that the node's backward asks for. */
void ms__selective_recompute(ms__sim *sim, const ms__sim_node *node, uint32_t wanted);

/* sim_io.c */
void ms__io_reset(ms__sim *sim);
/* Plays both queues up to now. */
void ms__io_advance(ms__sim *sim);
/* The disk does something else for the next `ns`, which the caller spends. */
void ms__io_pause(ms__sim *sim, uint64_t ns);
/* Releases storages whose write has ended. The executor polls when a layer's forward begins or ends, at the
 * end of forward, and whenever it stores or takes something, but not within the root's own work. */
void ms__io_poll(ms__sim *sim);
/* The same at the end of a layer's forward; it may wait for all stores. */
void ms__io_end_layer(ms__sim *sim);
/* Stores an instance for one more node; may stall on the write window. Returns the fetch entry. */
uint32_t ms__io_store(ms__sim *sim, uint32_t instance, uint32_t tier);
/* Issues fetches in reverse order of saving, as far as the window allows. */
void ms__io_prefetch(ms__sim *sim);
/* Waits for the entry's bytes. */
void ms__io_need(ms__sim *sim, uint32_t entry);
void ms__io_drop(ms__sim *sim, uint32_t entry);

/* Device bytes of the step's tensors. Small tensors count with their peak; see sim_memory.c. */
static inline uint64_t ms__sim_resident(const ms__sim *sim)
{
    return sim->live_bytes + sim->small_peak_bytes + sim->extra_bytes;
}

/* Compares live + cached bytes with their peak. Needs a cache. */
static inline void ms__cache_note_held(ms__sim *sim)
{
    uint64_t held = ms__sim_resident(sim) + sim->cache.cached_bytes;
    sim->cache.held_peak_bytes = held > sim->cache.held_peak_bytes ? held : sim->cache.held_peak_bytes;
}

/* sim_cache.c */
void ms__cache_reset(ms__sim *sim, uint64_t ceiling_bytes);
/* Takes a map of the class, after making room for it. Returns the bytes to fault in; 0 if the cache had a map
 * that is all resident. */
uint64_t ms__cache_take(ms__sim *sim, uint32_t class_id);
/* Returns a freed map of the class to the cache. */
void ms__cache_give(ms__sim *sim, uint32_t class_id);
/* Returns maps to the system until `coming_bytes` more fit under the ceiling. */
void ms__cache_squeeze(ms__sim *sim, uint64_t coming_bytes);

/* sim_compile.c: the time for `amount`; 0 if the rate is 0. */
uint64_t ms__rate_ns(uint64_t amount, uint64_t per_second);
/* The time of an operator, and of an overhead, scaled by the factor from measured steps. */
uint64_t ms__work_ns(const ms__sim *sim, const ms_event *event);
uint64_t ms__scaled_ns(const ms__sim *sim, uint64_t ns);

#endif
