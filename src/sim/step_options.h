/*
 * Options that change the step as a whole, such as the loss head, independently of its nodes' techniques. An
 * option judges whether it may be used, and changes a copy of the step; the simulator then replays that copy
 * under any techniques.
 *
 * To add one: a line in MS_STEP_OPTION_TABLE (simulate.h) and one file here, step_NAME.c, that defines `const
 * ms__step_option ms__step_NAME`. The search does the rest: every combination of admitted options is a step
 * of its own, and a combination that another beats in time and peak under every plain plan is dropped early.
 *
 * Tests: tests/c/sim/test_step_options.c; each option's own are in test_chunked_head.c, test_tiled_mlp.c and
 * test_step_optimizer.c.
 */
#ifndef MS_SIM_STEP_OPTIONS_H
#define MS_SIM_STEP_OPTIONS_H

#include "sim/sim.h"

/* Buffers of optimizer state on disk: MS_OPTIMIZER_CHUNKS of MS_OPTIMIZER_CHUNK_BYTES. A test compares
 * them. */
#define MS__STREAM_BUFFER_BYTES ((uint64_t)32 << 20)

/* Most bytes of one chunk's 32-bit logits: the size that ms_loss_chunk_rows() gives. A test compares them. */
#define MS__LOSS_CHUNK_BYTES ((uint64_t)24 << 20)

/* The facts that an option is judged by. */
typedef struct ms__step_case {
    const ms_graph *graph;
    const ms_hardware *hardware;
    const ms_config *config;
    const ms_pressure *pressure; /* never comfortable */
} ms__step_case;

/* no rule refuses */
enum { MS__STEP_ADMITTED = MS_RULE_COUNT };

/*
 * The step that an option changes. It may change programs, storages and the loop of the graph, but not its
 * nodes (except their profile, if it goes first) nor the storages that they bind. The result need not pass
 * ms_graph_check(). Each option is applied once: first those that go first, then the others, each group in
 * the order of their bits.
 */
typedef struct ms__step {
    ms_graph *graph;         /* a private copy */
    uint64_t optimizer_ns;   /* of the optimizer's step, initially unchanged */
    uint64_t resident_bytes; /* always held on the device, outside hostmem */
    uint64_t tier_bytes[MS__TIER_COUNT]; /* always held on a lower tier, counted against its cap */
} ms__step;

typedef struct ms__step_option {
    uint32_t excludes; /* bits of options that it can't be combined with */
    bool goes_first;   /* applied before the others, as it changes the nodes' programs */
    /* The ms_rule that refuses it, or MS__STEP_ADMITTED. Pure. */
    uint32_t (*judge)(const ms__step_case *facts);
    /* Changes the step. MS_ENOMEM is the only failure. Pure: a function of graph and machine. */
    int (*apply)(const ms_hardware *hardware, ms__step *step);
} ms__step_option;

#define MS__STEP_OPTION_EXTERN(id, name, exactness, text) extern const ms__step_option ms__step_##name;
MS_STEP_OPTION_TABLE(MS__STEP_OPTION_EXTERN)
#undef MS__STEP_OPTION_EXTERN

/* Judges every option. `rules` has MS_STEP_OPTION_COUNT entries; returns the mask of admitted options. */
uint32_t ms__step_options_admit(const ms__step_case *facts, uint32_t *rules);

/* Whether no two of these exclude each other. */
bool ms__step_options_agree(uint32_t options);

/* The least exact class among them. */
ms_exactness ms__step_options_exactness(uint32_t options);

/* The simulator of the graph's step under these options. It keeps pointers into the hardware, and into the
 * graph if there are no options. */
int ms__step_sim_new(const ms_graph *graph, const ms_hardware *hardware, uint32_t options, ms__sim **sim,
                     ms_error *err);

#endif
