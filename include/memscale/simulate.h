/*
 * simulate.h - replays a training step under given choices, in exact bytes and integer nanoseconds, without
 * running it.
 *
 * The planner calls it for every candidate; reports call it for a timeline. It changes none of its arguments,
 * owns nothing after it returns, and is thread-safe. The same arguments give the same replay.
 *
 * Tests: tests/c/sim/test_simulate.c, test_random_steps.c.
 */
#ifndef MEMSCALE_SIMULATE_H
#define MEMSCALE_SIMULATE_H

#include "memscale/rules.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- choices for the step as a whole --------------------------------------- */

/* The changes that a technique may make: none; to the order of a sum; to values, as documented. */
typedef enum ms_exactness { MS_EXACT, MS_ROUNDING, MS_LOSSY } ms_exactness;
MS_API const char *ms_exactness_name(ms_exactness exactness);

/*
 * Options that change the whole step, independently of its nodes' techniques. The value is a bit number in
 * masks; documents hold the name. Each option is one file of src/sim (see step_options.h there).
 */
#define MS_STEP_OPTION_TABLE(X) \
    X(EXACT_LOSS_HEAD, exact_loss_head, EXACT, "the cross entropy keeps one tokens x vocabulary buffer, row by row") \
    X(STATE_ON_DISK, state_on_disk, EXACT, "optimizer state lies on disk and streams through memory in its step") \
    X(GRADIENT_RELEASE, gradient_release, EXACT, "parameters are updated in backward and their gradients freed") \
    X(CHUNKED_LOSS_HEAD, chunked_loss_head, ROUNDING, \
      "logits of some tokens at a time become loss and gradients, and are dropped") \
    X(TILED_MLP, tiled_mlp, ROUNDING, \
      "position-wise modules of layers run some rows at a time, and again in backward") \
    X(STATE_ON_HOST, state_on_host, EXACT, \
      "optimizer state lies in host memory and streams through the card in its step") \
    X(STATE_READ_AHEAD, state_read_ahead, EXACT, \
      "optimizer state moves during backward too, through buffers as large as a layer's state")
typedef enum ms_step_option {
#define MS_STEP_OPTION_ENUM(id, name, exactness, text) MS_STEP_##id,
    MS_STEP_OPTION_TABLE(MS_STEP_OPTION_ENUM)
#undef MS_STEP_OPTION_ENUM
        MS_STEP_OPTION_COUNT
} ms_step_option;

/* The rows of a tile, if a position-wise module gets `rows`: an eighth of them, but enough for efficient
 * matrix products; `rows` if they are too few to cut. */
MS_API uint64_t ms_tile_rows(uint64_t rows);

/* Name and text of a row of the table. */
MS_API const char *ms_step_option_name(ms_step_option option);
MS_API const char *ms_step_option_text(ms_step_option option);
/* The changes that the option may make. */
MS_API ms_exactness ms_step_option_exactness(ms_step_option option);

/* ---- the choices that a replay takes -------------------------------------- */

/* The choices at each node and for the step as a whole. */
typedef struct ms_choices {
    const uint8_t *technique;    /* [node_count] ms_technique */
    const uint8_t *packed;       /* [node_count] number of the node's two-valued saved storages to bit-pack,
                                  * cheapest per byte first; NULL: none */
    uint32_t step_options;       /* a bit for each ms_step_option in force */
    uint64_t offload_min_bytes;  /* smaller storages stay */
    uint64_t write_window_bytes; /* most bytes of stores in flight; beyond it forward waits */
    uint64_t read_window_bytes;  /* most bytes fetched ahead of their use in backward */
    uint64_t ceiling_bytes;      /* of live + cached host memory; 0: no cache */
    bool host_leads;             /* GPU: the host runs as far ahead of it as it can; see sim.h */
    bool waits;                  /* GPU: the end of each layer waits for its stores, nothing is fetched ahead */
    uint64_t pinned_bytes; /* GPU: host memory to pin; what exceeds it moves at the rates of pageable memory. 0: all */
    uint64_t state_moved_bytes; /* that STATE_ON_DISK or STATE_ON_HOST moves off the device. 0: all that may move */
} ms_choices;

/* ---- simulator ------------------------------------------------------------ */

/* The result of a replay. */
typedef struct ms_replay {
    uint64_t peak_bytes; /* of the training device, caches included: the bytes that a budget limits */
    uint64_t peak_live_bytes; /* of tensors alone: with residents, without caches, slab and scratch */
    uint64_t first_step_peak_bytes; /* peak_bytes of the first step, at whose end optimizer state is allocated */
    uint64_t small_peak_bytes; /* of tensors below 128 KiB, with state; libc keeps their memory */
    uint32_t peak_node; /* the node at the peak; node_count: the optimizer */
    bool peak_in_backward;
    uint64_t step_ns; /* forward + backward + optimizer, stalls included */
    uint64_t compute_ns;
    uint64_t recompute_ns;
    uint64_t fault_ns; /* part of compute_ns: page faults */
    uint64_t stall_forward_ns; /* waits for stores */
    uint64_t
        stall_backward_ns; /* waits for fetches, and for optimizer state off the device if gradients are released */
    uint64_t tier_peak_bytes[3]; /* by ms_tier: bytes of this run on host and disk */
    uint64_t moved_bytes; /* stored + fetched per step */
    uint64_t packed_bytes; /* of two-valued storages that are bit-packed, per step */
    uint64_t packing_ns; /* part of compute_ns: bit packing and unpacking */
} ms_replay;

/* Owners of bytes on the device, from what stays to what comes and goes. */
#define MS_OWNER_TABLE(X) \
    X(PROCESS, "process") \
    X(PARAMETERS, "parameters") \
    X(STATE, "optimizer state") \
    X(GRADIENTS, "gradients") \
    X(LAYERS, "saved by layers") \
    X(HEAD, "head") \
    X(WORKING, "running work") \
    X(CACHE, "cache")
typedef enum ms_owner {
#define MS_OWNER_ENUM(id, name) MS_OWNER_##id,
    MS_OWNER_TABLE(MS_OWNER_ENUM)
#undef MS_OWNER_ENUM
        MS_OWNER_COUNT
} ms_owner;
MS_API const char *ms_owner_name(ms_owner owner);

/* One point of the timeline, for reports: after each node of forward and backward. */
typedef struct ms_sample {
    uint64_t at_ns; /* without page faults, which only the whole step counts */
    uint64_t recompute_ns; /* part of at_ns so far: layers and operators that ran again */
    uint64_t owner_bytes[MS_OWNER_COUNT]; /* sum to device_bytes */
    uint64_t device_bytes;
    uint64_t lower_tier_bytes;
    uint32_t node;
    uint32_t in_backward;
} ms_sample;

/*
 * Replays two consecutive steps (optimizer state appears in the first) under `choices`. `samples`, if not
 * NULL, has room for 2 x node_count points of the second step. Peaks include all scratch of the process,
 * reserve included. MS_ENOMEM is the only failure.
 */
MS_API int ms_simulate(const ms_graph *graph, const ms_hardware *hardware, const ms_choices *choices, ms_replay *replay,
                       ms_sample *samples, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
