/*
 * Options that change the whole step, such as the loss head, independently of its nodes' techniques. An
 * option judges whether it may be used, and changes a copy of the step; the simulator then replays that copy
 * under any techniques.
 *
 * To add one: a line in MS_STEP_OPTION_TABLE (simulate.h) and one file here, step_NAME.c, that defines `const
 * ms__step_option ms__step_NAME`. The search makes a step for every combination of admitted options, and early
 * drops a combination that another beats in time and peak under every plain plan.
 *
 * Tests: tests/c/sim/test_step_options.c; for single options test_chunked_head.c, test_tiled_mlp.c and
 * test_step_optimizer.c.
 */
#ifndef MS_SIM_STEP_OPTIONS_H
#define MS_SIM_STEP_OPTIONS_H

#include "sim/sim.h"

/* Buffers of optimizer state on disk: MS_OPTIMIZER_CHUNKS of MS_OPTIMIZER_CHUNK_BYTES. States of fewer elements stay. A test
 * compares them with those of optimizer_stream.h. */
#define MS__STREAM_CHUNK_BYTES ((uint64_t)4 << 20)
#define MS__STREAM_LEAST_ELEMENTS ((uint64_t)16384)
#define MS__STREAM_BUFFER_BYTES (8 * MS__STREAM_CHUNK_BYTES)

/* The same for state in host memory: MS_OPTIMIZER_HOST_BUFFERS of MS_OPTIMIZER_HOST_BUFFER_BYTES on the card. Beside them are
 * the temporaries of torch's update of one buffer's parameters, two of half a buffer. */
#define MS__HOST_CHUNK_BYTES ((uint64_t)16 << 20)
#define MS__HOST_BUFFER_BYTES (3 * MS__HOST_CHUNK_BYTES)
#define MS__HOST_STREAM_BYTES (MS__HOST_BUFFER_BYTES + MS__HOST_CHUNK_BYTES)

/* A chunk of state on disk takes these bytes of a GPU during its update: the chunk, and torch's temporaries. */
#define MS__DISK_ON_GPU_BYTES (2 * MS__STREAM_CHUNK_BYTES)

/* The most that an option may make of either. */
#define MS__STREAM_BUFFER_MOST_BYTES ((uint64_t)1 << 30)

/* Most bytes of one chunk's 32-bit logits, as in ms_loss_chunk_rows(). A test compares them. */
#define MS__LOSS_CHUNK_BYTES ((uint64_t)24 << 20)

/* The facts for judging an option. */
typedef struct ms__step_case {
    const ms_graph *graph;
    const ms_hardware *hardware;
    const ms_config *config;
    const ms_pressure *pressure; /* never comfortable */
} ms__step_case;

/* No rule refuses. */
enum { MS__STEP_ADMITTED = MS_RULE_COUNT };

/*
 * The step that an option changes. An option may change the graph's programs, storages and loop. It must not
 * change nodes (except their profile, if it goes first) or the storages that they bind. The result need not
 * pass ms_graph_check(). Each option is applied once: first those that go first, then the others, each group
 * in the order of their bits.
 */
typedef struct ms__step {
    ms_graph *graph;         /* a private copy */
    uint64_t optimizer_ns;   /* of the optimizer's step */
    ms__state_stream state;  /* off the device; moving_ns 0: none is */
    uint8_t *released;       /* [storage_count] 1: a gradient that is freed in backward; NULL: none is */
    uint64_t resident_bytes; /* always held on the device, in hostmem if it is the host */
    uint64_t tier_bytes[MS__TIER_COUNT]; /* always held on a lower tier, counted against its cap */
} ms__step;

typedef struct ms__step_option {
    uint32_t excludes; /* bits of options that it can't be combined with */
    uint32_t needs;    /* bits of options without which it does nothing */
    uint32_t needs_one; /* bits of options of which it needs one; 0: none */
    bool goes_first;   /* applied before the others, because they build on what it changes */
    /* The ms_rule that refuses it, or MS__STEP_ADMITTED. Pure. */
    uint32_t (*judge)(const ms__step_case *facts);
    /* Changes the step. MS_ENOMEM is the only failure. Pure: depends only on graph and machine. */
    int (*apply)(const ms_hardware *hardware, ms__step *step);
} ms__step_option;

#define MS__STEP_OPTION_EXTERN(id, name, exactness, text) extern const ms__step_option ms__step_##name;
MS_STEP_OPTION_TABLE(MS__STEP_OPTION_EXTERN)
#undef MS__STEP_OPTION_EXTERN

/* Judges every option. `rules` has MS_STEP_OPTION_COUNT entries; returns the mask of admitted options. */
uint32_t ms__step_options_admit(const ms__step_case *facts, uint32_t *rules);

/* Whether these options can be combined. */
bool ms__step_options_agree(uint32_t options);

/* The options with one of them toggled. Turning it on turns on those that it needs and turns off those that exclude it;
 * turning it off turns off those that need it. The result may lack one of those that `needs_one` names. */
uint32_t ms__step_options_toggle(uint32_t options, uint32_t option);

/* The exactness of the least exact one. */
ms_exactness ms__step_options_exactness(uint32_t options);

/* The bytes of state that STATE_ON_DISK or STATE_ON_HOST may move off the device. */
uint64_t ms__streamed_state_bytes(const ms_loop *loop);

/* The bytes that they move if a plan says `moved_bytes`; 0: all that may move. */
uint64_t ms__moved_state_bytes(const ms_loop *loop, uint64_t moved_bytes);

/* The time in which the disk reads and writes `bytes` of state. */
uint64_t ms__state_moving_ns(uint64_t bytes, const ms_hardware *hardware);

/* The bytes of temporaries of the update of parameters whose state stays on the device: in proportion to their state, or
 * of one piece if they are updated piece by piece (optim/widened.py). */
uint64_t ms__other_transient_bytes(const ms_loop *loop);

/* `bytes` of state lie off the device, move both ways in `moving_ns`, the way down alone in `writing_ns`, through buffers
 * of `buffer_bytes`. The update of their parameters takes at least `moving_ns`; the other updates come after it. Call it
 * before gradients are released and while the loop still counts this state: it reads both. */
void ms__step_move_state(ms__step *step, uint64_t bytes, uint64_t moving_ns, uint64_t writing_ns,
                         uint64_t buffer_bytes);

/* The options that move optimizer state off the device. */
#define MS__STATE_MOVES (1u << MS_STEP_STATE_ON_DISK | 1u << MS_STEP_STATE_ON_HOST)

/* Makes the simulator of the graph's step under these options, which move ms__moved_state_bytes() of optimizer state. (A run
 * moves whole states, so it may move up to one state more.) It keeps pointers into the hardware, and without options into
 * the graph. */
int ms__step_sim_new(const ms_graph *graph, const ms_hardware *hardware, uint32_t options, uint64_t moved_bytes,
                     ms__sim **sim, ms_error *err);

#endif
