/*
 * plan.h - what will be done at every node, what it is predicted to take, and why.
 *
 * The solver proposes candidates, the simulator replays each over the whole step
 * in exact bytes, and the fastest that fits is the plan. The replay is the proof:
 * no plan leaves here whose replay does not fit. All of it is integers; the same
 * three documents give the same plan, byte for byte.
 */
#ifndef MEMSCALE_PLAN_H
#define MEMSCALE_PLAN_H

#include "memscale/simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plan ----------------------------------------------------------------- */

/* What was decided on the storages of two values that an entry saves (ms_profile.two_valued). Of
 * an entry that runs again, or has none, all of it is 0. */
typedef struct ms_plan_packing {
    uint32_t tensors;      /* how many there are */
    uint32_t packed;       /* of those, how many become bits: see the entry's selection */
    uint32_t rule;         /* ms_rule that admitted or refused it */
    uint64_t saved_bytes;  /* between forward and backward, by those that become bits here */
    uint64_t cost_ns;      /* what that adds to the step */
    uint32_t runner_up;    /* the other way: none of them, or all; `packed` where it is not admitted */
    uint64_t runner_up_ns; /* predicted step time with that here instead */
    uint64_t runner_up_peak_bytes; /* what that would take of a budget, nothing cached */
} ms_plan_packing;

/* What was decided on one node, what it saves and costs, and what the next best would. */
typedef struct ms_plan_entry {
    char *name;            /* of the node's module; "" for the root's own work */
    uint32_t node;         /* index in the graph */
    uint32_t call;
    uint32_t technique;    /* ms_technique */
    uint32_t rule;         /* ms_rule that admitted it */
    uint32_t selection;    /* 1 + index of what is dropped and what becomes bits; 0: nothing is known of it */
    uint64_t kept_bytes;   /* what keeping would hold between forward and backward */
    uint64_t saved_bytes;  /* of those, what the choice frees */
    uint64_t cost_ns;      /* what it adds to the step, overlap considered */
    uint32_t runner_up;    /* ms_technique; equal to `technique` when there was no other */
    uint64_t runner_up_ns; /* predicted step time with the runner-up here instead */
    uint64_t runner_up_peak_bytes; /* what that would take of a budget, nothing cached */
    ms_plan_packing packing;
} ms_plan_entry;

/* What was decided on one option for the whole step. */
typedef struct ms_plan_option {
    uint32_t rule;        /* ms_rule that admitted or refused it */
    bool chosen;
    uint64_t saved_bytes; /* of the peak, by it alone: in this plan, or if this plan had it */
    uint64_t cost_ns;     /* what it adds to the step, ... */
    uint64_t gain_ns;     /* ... or takes off it */
} ms_plan_option;

/* ---- why the plan is as it is -------------------------------------------------- */

/* What a byte at the peak is. */
#define MS_PEAK_KIND_TABLE(X) \
    X(RUNTIME, "runtime", "interpreter, libraries and what else the process held") \
    X(PARAMETERS, "parameters", "parameters") \
    X(BUFFERS, "buffers", "buffers of the model") \
    X(BATCH, "batch", "the batch") \
    X(WORKSPACE, "workspace", "what operators and step options take beside tensors") \
    X(SLAB, "slab", "slots for transfers") \
    X(OPTIMIZER_STATE, "optimizer_state", "optimizer state") \
    X(OPTIMIZER_WORK, "optimizer_work", "what the optimizer's step takes beside its state") \
    X(GRADIENTS, "gradients", "gradients of parameters") \
    X(OUTPUTS, "outputs", "outputs of the model") \
    X(LOGITS, "logits", "logits and what the cross entropy makes of them") \
    X(OUTER_LOSS, "outer_loss", "what a loss outside the model holds") \
    X(SAVED, "saved", "activations kept for backward") \
    X(ARGUMENTS, "arguments", "arguments kept to run the layer again") \
    X(REBUILT, "rebuilt", "activations made again") \
    X(FETCHED, "fetched", "activations brought back from a lower tier") \
    X(STORING, "storing", "activations on their way to a lower tier") \
    X(WORKING, "working", "tensors of the work that runs, and passed between nodes") \
    X(CACHE, "cache", "freed memory kept for reuse")
typedef enum ms_peak_kind {
#define MS_PEAK_KIND_ENUM(id, name, text) MS_PEAK_##id,
    MS_PEAK_KIND_TABLE(MS_PEAK_KIND_ENUM)
#undef MS_PEAK_KIND_ENUM
        MS_PEAK_KIND_COUNT
} ms_peak_kind;

/* Name and text of a row of the table. */
MS_API const char *ms_peak_kind_name(ms_peak_kind kind);
MS_API const char *ms_peak_kind_text(ms_peak_kind kind);

enum { MS_NO_NODE = UINT32_MAX };

/* Bytes of one kind that belong to one node (it saved, runs or made them). */
typedef struct ms_peak_part {
    uint32_t kind;     /* ms_peak_kind */
    uint32_t node;     /* MS_NO_NODE where they belong to none */
    uint32_t storages; /* how many tensors' storages; 0 where that is not known */
    uint64_t bytes;
} ms_peak_part;

/* The parts of a step; the name of each. */
typedef enum ms_step_phase { MS_PHASE_FORWARD, MS_PHASE_BACKWARD, MS_PHASE_OPTIMIZER, MS_PHASE_COUNT } ms_step_phase;
MS_API const char *ms_step_phase_name(ms_step_phase phase);

/* What another budget would buy: the plan for it, in the loop that was assumed. */
typedef struct ms_neighbour {
    uint64_t budget_bytes; /* 0: there is none */
    uint64_t peak_bytes;   /* what is expected of that plan */
    uint64_t step_ns;
} ms_neighbour;

/* Where the peak is and what makes it, a lower bound of the time, and what other budgets would buy. */
typedef struct ms_explanation {
    bool known;               /* false: made without a graph, or read from a document without it */
    uint32_t peak_phase;      /* ms_step_phase; the node is replay.peak_node */
    uint32_t peak_event;      /* index in the node's program: forward's where `peak_again` */
    bool peak_again;          /* the node is being run again */
    uint32_t part_count;
    ms_peak_part *parts;      /* the largest first; their bytes sum to replay.peak_bytes */
    uint64_t timed_bytes;     /* of the device, which replay.step_ns and the runner-ups' times count on */
    uint64_t lower_bound_ns;  /* no plan that fits takes less; 0: not worked out */
    ms_neighbour larger;      /* at the least larger budget that gives another plan, a faster one ... */
    ms_neighbour smaller;     /* ... and the most smaller one; a plan of more cache alone is no other */
} ms_explanation;

/* A saved storage that surely has two values: whether it is kept as bits, what that frees, and
 * what it takes in forward and backward together. */
typedef struct ms_two_valued {
    uint32_t slot;
    bool packed;
    uint64_t saved_bytes;
    uint64_t cost_ns;
} ms_two_valued;

/*
 * What becomes of single ones of a layer's saved storages: what a selective technique drops, and
 * which of those that have two values become bits. Slots are the distinct
 * storages that a call saves, in order of their first save, parameters, buffers and the
 * batch left out. A dropped one is made again by the operators that made it when backward
 * asks for it. One that does not have these bytes in the call, that somebody writes to, or
 * that can't be made from what else the call saves, stays.
 */
typedef struct ms_selection {
    uint32_t slot_count;
    uint64_t *slot_bytes; /* [slot_count] */
    uint8_t *dropped;     /* [slot_count] 1: dropped */
    uint32_t two_valued_count;
    ms_two_valued *two_valued; /* [two_valued_count], slots ascending; those not listed may have any values */
} ms_selection;

/* The plan, with all that was known when it was made. */
typedef struct ms_plan {
    char *model;
    char *signature;
    ms_pressure pressure;
    ms_replay replay;            /* of this plan: what is expected to be measured */
    ms_replay unoptimized;       /* of the same step with everything kept: its peak without a
                                  * cache, its time as if no page were ever given back */
    uint64_t reserve_bytes;      /* what a budget has to have beyond replay.peak_bytes */
    bool assumed_outputs_held;   /* the loop that the replay stands for (ms_loop) */
    bool assumed_gradients_live;
    uint64_t offload_min_bytes;
    uint64_t write_window_bytes;
    uint64_t read_window_bytes;
    uint64_t ceiling_bytes;      /* for hostmem: live + cached maps */
    uint64_t slab_bytes;         /* for the offload engine; 0 when nothing is moved */
    uint64_t disk_cap_bytes;     /* of the disk tier; 0: it is not used */
    uint64_t host_cap_bytes;     /* of the host tier; 0: it is not used */
    uint64_t smallest_budget_bytes; /* that a plan would be made for; 0: not searched (skipped). A forced
                                     * plan's: that some plan meets in this loop */
    bool skipped;                /* nothing to do: a comfortable fit */
    bool over_target;            /* a default target that could not be met */
    char *decision_source;       /* "user_config" until a policy chose */
    uint32_t fallback;           /* ms_technique of layers that have no entry */
    ms_plan_option step_options[MS_STEP_OPTION_COUNT];
    uint32_t entry_count;
    ms_plan_entry *entries;      /* one per node, in order */
    ms_explanation why;
    uint32_t selection_count;
    ms_selection *selections;
} ms_plan;

/* Frees a plan with all that it points to. Accepts NULL. */
MS_API void ms_plan_free(ms_plan *plan);

/* A plan with one technique wherever mode and flags admit it (else keep), for warm-up
 * steps before a graph exists (graph may then be NULL: entry_count is 0, `fallback` is
 * what every layer does, nothing is cached) and as a yardstick. A technique of
 * MS_TECHNIQUE_COUNT means the one that frees most of those that mode and flags admit. */
MS_API int ms_plan_uniform(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                           ms_technique technique, ms_plan **plan, ms_error *err);

/* What a replay of the plan needs of its entries: both arrays have room for entry_count. */
MS_API void ms_plan_copy_choices(const ms_plan *plan, uint8_t *techniques, uint8_t *packed);

/* The options for the step that were chosen, as a mask of ms_step_option. */
MS_API uint32_t ms_plan_step_options(const ms_plan *plan);

/* What a plan has an optimizer of memscale's own do. */
typedef struct ms_plan_optimizer {
    bool state_on_disk;
    bool releases;    /* each gradient is used inside backward and freed */
    bool may_release; /* a later plan may want that: whether the loop needs its gradients is to be watched */
} ms_plan_optimizer;

/* With `plan` NULL, nothing. */
MS_API ms_plan_optimizer ms_plan_for_optimizer(const ms_plan *plan, const ms_config *config);

/* Reads and writes a plan as JSON (docs/formats/plan.schema.json). */
MS_API int ms_plan_parse(const char *json, ms_plan **plan, ms_error *err);
MS_API char *ms_plan_to_json(const ms_plan *plan);

/* A few lines for people: hardware, need, budget, pressure, layers by technique,
 * predicted peak and step time. */
MS_API char *ms_plan_table(const ms_plan *plan, const ms_hardware *hardware);

/* Why node `entry` is treated as it is: rule, bytes saved, time paid, runner-up. With
 * entry < 0, the whole plan: where the peak is, what makes it, how far the time is from
 * the lower bound, what the next larger and smaller budget would buy. */
MS_API char *ms_plan_explain(const ms_plan *plan, int64_t entry);

#ifdef __cplusplus
}
#endif

#endif
