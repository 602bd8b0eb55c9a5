/*
 * Options for the step as a whole: what is done to a training step besides what is done
 * to its nodes, such as the loss head. An option judges whether it may be used, and
 * changes a copy of the step; the simulator then replays that copy under any techniques.
 *
 * To add one: a line in MS_STEP_OPTION_TABLE (plan.h) and one file here, step_NAME.c,
 * that defines `const ms__step_option ms__step_NAME`. The search takes it from there:
 * every combination of admitted options is a step of its own, and those that another
 * beats in time and peak under every plain plan are dropped early.
 */
#ifndef MS_SIM_STEP_OPTIONS_H
#define MS_SIM_STEP_OPTIONS_H

#include "sim/sim.h"

/* Buffers of optimizer state on disk: MS_OPTIMIZER_CHUNKS of MS_OPTIMIZER_CHUNK_BYTES,
 * which a test holds it to. */
#define MS__STREAM_BUFFER_BYTES ((uint64_t)32 << 20)

/* Logits of one chunk of a loss head: at most so many bytes, of 32 bits, which is
 * ms_loss_chunk_rows()'s size and a test holds it to. */
#define MS__LOSS_CHUNK_BYTES ((uint64_t)24 << 20)

/* What an option may look at when it is judged. */
typedef struct ms__step_case {
    const ms_graph *graph;
    const ms_hardware *hardware;
    const ms_config *config;
    const ms_pressure *pressure; /* never comfortable */
} ms__step_case;

/* Nothing refuses it. */
enum { MS__STEP_ADMITTED = MS_RULE_COUNT };

/*
 * The step that an option changes. Programs, storages and the loop of the graph may be
 * changed, but neither its nodes (their profile alone, by an option that goes first) nor
 * which storages they bind; it need not pass ms_graph_check() any more. Options are applied
 * once each, in the order of their bits among those that go first and among the others.
 */
typedef struct ms__step {
    ms_graph *graph;         /* a private copy */
    uint64_t optimizer_ns;   /* of the optimizer's step, at first as if nothing was changed */
    uint64_t resident_bytes; /* held on the device all the time, and not by hostmem: slots */
    uint64_t tier_bytes[MS__TIER_COUNT]; /* held on a lower tier all the time, against its cap */
} ms__step;

typedef struct ms__step_option {
    uint32_t excludes; /* bits of the options that it can't be combined with */
    bool goes_first;   /* applied before the others: it changes which programs nodes run */
    /* The ms_rule that refuses it, or MS__STEP_ADMITTED. Pure. */
    uint32_t (*judge)(const ms__step_case *facts);
    /* Changes the step; MS_ENOMEM, or MS_OK. Pure: a function of graph and machine. */
    int (*apply)(const ms_hardware *hardware, ms__step *step);
} ms__step_option;

#define MS__STEP_OPTION_EXTERN(id, name, exactness, text) extern const ms__step_option ms__step_##name;
MS_STEP_OPTION_TABLE(MS__STEP_OPTION_EXTERN)
#undef MS__STEP_OPTION_EXTERN

/* Judges every option: `rules` has MS_STEP_OPTION_COUNT entries, and the mask of those
 * admitted is returned. */
uint32_t ms__step_options_admit(const ms__step_case *facts, uint32_t *rules);

/* Whether none of these excludes another. */
bool ms__step_options_agree(uint32_t options);

/* The furthest-going class among them. */
ms_exactness ms__step_options_exactness(uint32_t options);

/* The simulator of the graph's step under these options. It keeps pointers into the
 * hardware, and into the graph where there are no options. */
int ms__step_sim_new(const ms_graph *graph, const ms_hardware *hardware, uint32_t options, ms__sim **sim,
                     ms_error *err);

#endif
