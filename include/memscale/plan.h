/*
 * plan.h - the decision at every node, its predicted bytes and time, and its reasons.
 *
 * The search proposes candidates, the simulator replays each over the whole step in exact bytes, and the
 * fastest that fits is the plan. The replay is the proof: no plan is returned unless its replay fits. All
 * numbers are integers; the same three documents give the same plan, byte for byte.
 *
 * Tests: tests/c/plan/ (test_solver.c, test_plans.c, test_random_plans.c, test_explain.c, test_plan_json.c).
 */
#ifndef MEMSCALE_PLAN_H
#define MEMSCALE_PLAN_H

#include "memscale/simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plan ----------------------------------------------------------------- */

/* The decision on an entry's two-valued saved storages (ms_profile.two_valued). All zeros if the entry is
 * recomputed or has none. */
typedef struct ms_plan_packing {
    uint32_t tensors;      /* two-valued saved storages */
    uint32_t packed;       /* of those, bit-packed ones: see the entry's selection */
    uint32_t rule;         /* ms_rule that admitted or refused packing */
    uint64_t saved_bytes;  /* freed between forward and backward by packing here */
    uint64_t cost_ns;      /* time that packing here adds to the step */
    uint32_t runner_up;    /* the alternative number: 0 or all; `packed` if packing is not admitted */
    uint64_t runner_up_ns; /* predicted step time with the alternative here */
    uint64_t runner_up_peak_bytes; /* its peak without a cache */
} ms_plan_packing;

/* The decision at one node, its bytes and time, and those of the alternative. */
typedef struct ms_plan_entry {
    char *name;            /* of the node's module; "" for the root's own work */
    uint32_t node;         /* index in the graph */
    uint32_t call;
    uint32_t technique;    /* ms_technique */
    uint32_t rule;         /* ms_rule that admitted it */
    uint32_t refusal;      /* ms_rule that refuses recomputation because of an observed run; 0: none */
    uint32_t selection;    /* 1 + index into ms_plan.selections; 0: none */
    uint64_t kept_bytes;   /* held between forward and backward if kept */
    uint64_t saved_bytes;  /* part of kept_bytes that this technique frees */
    uint64_t cost_ns;      /* time added to the step, overlap considered */
    uint32_t runner_up;    /* ms_technique; equal to `technique` if no other is admitted */
    uint64_t runner_up_ns; /* predicted step time with the runner-up here */
    uint64_t runner_up_peak_bytes; /* its peak without a cache */
    ms_plan_packing packing;
} ms_plan_entry;

/* The decision on one step option. */
typedef struct ms_plan_option {
    uint32_t rule;        /* ms_rule that admitted or refused it */
    bool chosen;
    uint64_t saved_bytes; /* peak bytes that the option alone frees, in this plan or if it were added */
    uint64_t cost_ns;     /* time that it adds to the step */
    uint64_t gain_ns;     /* time that it removes from the step */
} ms_plan_option;

/* ---- explanation -------------------------------------------------------------- */

/* Kinds of bytes at the peak. */
#define MS_PEAK_KIND_TABLE(X) \
    X(RUNTIME, "runtime", "other memory of the process: interpreter and libraries, or a GPU's handles and buckets") \
    X(PARAMETERS, "parameters", "parameters") \
    X(BUFFERS, "buffers", "buffers of the model") \
    X(BATCH, "batch", "the batch") \
    X(WORKSPACE, "workspace", "workspace of operators and step options") \
    X(SLAB, "slab", "slots for transfers") \
    X(OPTIMIZER_STATE, "optimizer_state", "optimizer state") \
    X(OPTIMIZER_WORK, "optimizer_work", "temporaries of the optimizer's step") \
    X(GRADIENTS, "gradients", "gradients of parameters") \
    X(OUTPUTS, "outputs", "outputs of the model") \
    X(LOGITS, "logits", "logits and the cross entropy's buffers") \
    X(OUTER_LOSS, "outer_loss", "tensors of a loss outside the model") \
    X(SAVED, "saved", "activations kept for backward") \
    X(PENDING, "pending", "what earlier forwards of the step keep until their backward") \
    X(ARGUMENTS, "arguments", "arguments kept to run the layer again") \
    X(REBUILT, "rebuilt", "recomputed activations") \
    X(FETCHED, "fetched", "activations fetched from a lower tier") \
    X(STORING, "storing", "activations being written to a lower tier") \
    X(WORKING, "working", "tensors of the running work, and those passed between nodes") \
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

/* Bytes of one kind that belong to one node: it saved them, made them or is using them. */
typedef struct ms_peak_part {
    uint32_t kind;     /* ms_peak_kind */
    uint32_t node;     /* MS_NO_NODE if they belong to no node */
    uint32_t storages; /* number of storages; 0 if not known */
    uint64_t bytes;
} ms_peak_part;

/* The parts of a step, and their names. */
typedef enum ms_step_phase { MS_PHASE_FORWARD, MS_PHASE_BACKWARD, MS_PHASE_OPTIMIZER, MS_PHASE_COUNT } ms_step_phase;
MS_API const char *ms_step_phase_name(ms_step_phase phase);

/* The plan for another budget, in the same assumed loop. */
typedef struct ms_neighbour {
    uint64_t budget_bytes; /* 0: none */
    uint64_t peak_bytes;   /* that plan's expected peak */
    uint64_t step_ns;
} ms_neighbour;

/* The place and parts of the peak, a lower bound of the time, and the plans for other budgets. */
typedef struct ms_explanation {
    bool known;               /* false: the plan was made without a graph, or its document has no explanation */
    uint32_t peak_phase;      /* ms_step_phase; the node is replay.peak_node */
    uint32_t peak_event;      /* index in the node's program; with `peak_again`, in its forward program */
    bool peak_again;          /* the node is being recomputed */
    uint32_t part_count;
    ms_peak_part *parts;      /* largest first; their bytes sum to replay.peak_bytes */
    uint64_t timed_bytes;     /* device bytes assumed by replay.step_ns and the runner-ups' times */
    uint64_t lower_bound_ns;  /* every plan that fits takes at least this; 0: not computed */
    ms_neighbour larger;      /* at the next larger budget with a faster candidate */
    ms_neighbour smaller;     /* at the next smaller budget with another candidate */
    ms_neighbour gigabyte;    /* on a GPU: at a budget of 1 GB more; budget_bytes 0: not computed */
    ms_neighbour forced;      /* of a skipped plan: what force_optimize would give; budget_bytes 0: not computed */
} ms_explanation;

/* A saved storage with exactly two values: whether it is bit-packed, the bytes that packing frees, and its time
 * in forward and backward together. */
typedef struct ms_two_valued {
    uint32_t slot;
    bool packed;
    uint64_t saved_bytes;
    uint64_t cost_ns;
} ms_two_valued;

/*
 * The single saved storages of a layer that a selective technique drops, and the two-valued ones that are
 * bit-packed. Slots are the distinct storages that a call saves, in order of their first save, without
 * parameters, buffers and the batch. When backward asks for a dropped storage, the operators that made it run
 * again. The executor keeps it instead if its size in the call exceeds the slot's, if anything writes to it, or if the
 * call's other saved tensors don't suffice to recompute it.
 */
typedef struct ms_selection {
    uint32_t slot_count;
    uint64_t *slot_bytes; /* [slot_count] */
    uint8_t *dropped;     /* [slot_count] 1: dropped */
    uint32_t two_valued_count;
    ms_two_valued *two_valued; /* [two_valued_count], slots ascending; unlisted ones may have any values */
} ms_selection;

/* The plan with its reasons. */
typedef struct ms_plan {
    char *model;
    char *signature;
    ms_pressure pressure;
    ms_replay replay;            /* of this plan: the expected values */
    ms_replay unoptimized;       /* the same step with everything kept: its peak without a cache; its time if no
                                  * page returned to the system */
    uint64_t reserve_bytes;      /* budget bytes needed beyond replay.peak_bytes */
    bool assumed_outputs_held;   /* the loop that the replay assumes (ms_loop) */
    bool assumed_gradients_live;
    uint64_t offload_min_bytes;
    uint64_t write_window_bytes;
    uint64_t read_window_bytes;
    uint64_t ceiling_bytes;      /* for hostmem: live + cached maps */
    uint64_t slab_bytes;         /* for the offload engine; 0 if nothing is moved */
    uint64_t disk_cap_bytes;     /* of the disk tier; 0: unused */
    uint64_t host_cap_bytes;     /* of the host tier; 0: unused */
    uint64_t smallest_budget_bytes; /* smallest budget that has a plan; 0: not searched (skipped). For a
                                     * forced plan: the smallest that any plan meets in this loop */
    uint64_t state_buffer_bytes; /* for optimizer state off the device, with STATE_READ_AHEAD; 0: the usual buffers */
    uint64_t state_moved_bytes; /* by STATE_ON_DISK or STATE_ON_HOST, whole states: at least so many; 0: all */
    bool skipped; /* comfortable fit: everything is kept */
    bool over_target; /* no plan meets the budget or the default target; this one is the smallest */
    char *decision_source; /* "user_config" unless a policy chose */
    uint32_t fallback; /* ms_technique of layers without an entry */
    ms_plan_option step_options[MS_STEP_OPTION_COUNT];
    uint32_t entry_count;
    ms_plan_entry *entries; /* one per node, in order */
    ms_explanation why;
    uint32_t selection_count;
    ms_selection *selections;
} ms_plan;

/* Frees a plan. Accepts NULL. */
MS_API void ms_plan_free(ms_plan *plan);

/* A plan with one technique for all nodes: for warm-up steps and comparisons. Nodes at which mode or flags refuse it
 * are kept. MS_TECHNIQUE_COUNT stands for the admitted technique that frees most. `graph` may be NULL: then
 * entry_count is 0, `fallback` applies to every layer, and nothing is cached. MS_EINVAL for a graph without nodes,
 * MS_ENOMEM. */
MS_API int ms_plan_uniform(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                           ms_technique technique, ms_plan **plan, ms_error *err);

/* The same choices with the figures of corrected documents, without a search. *plan is NULL if they no longer fit, or if
 * a search could find a faster plan: unless everything is kept, that is so if the corrected step needs no more than the
 * one that `old` was made for. MS_ENOMEM. Tests: tests/c/plan/test_again.c. */
MS_API int ms_plan_again(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                         const ms_plan *old, ms_plan **plan, ms_error *err);

/* The plan's choices for ms_simulate(). They point into `rows`, which has room for 2 x entry_count: techniques, then numbers
 * of packed storages. */
MS_API ms_choices ms_plan_choices(const ms_plan *plan, uint8_t *rows);

/* The chosen step options as a mask of ms_step_option. */
MS_API uint32_t ms_plan_step_options(const ms_plan *plan);

/* The plan's part for an optimizer of memscale. */
typedef struct ms_plan_optimizer {
    bool state_on_disk;
    bool state_on_host; /* of parameters on a GPU */
    uint64_t state_buffer_bytes; /* for both; 0: the usual buffers */
    uint64_t state_moved_bytes; /* for both: at least so many; 0: all that may move */
    bool releases; /* each gradient is used and freed inside backward */
    bool may_release; /* a later plan may release gradients: the caller watches whether the loop needs them */
} ms_plan_optimizer;

/* All false if `plan` is NULL. */
MS_API ms_plan_optimizer ms_plan_for_optimizer(const ms_plan *plan, const ms_config *config);

/* Reads and writes a plan as JSON (docs/formats/plan.schema.json). */
MS_API int ms_plan_parse(const char *json, ms_plan **plan, ms_error *err);
MS_API char *ms_plan_to_json(const ms_plan *plan);

/* One line before the plan is known: the model, the machine, budget or target, whether the device has less, and what
 * mode and flags allow. Free with ms_free(); NULL when out of memory. */
MS_API char *ms_plan_intent(const ms_hardware *hardware, const ms_config *config, const char *model,
                            uint64_t parameter_bytes);

/* A summary in a few lines: hardware, need, budget, pressure, layers by technique, predicted peak and step
 * time. Free with ms_free(); NULL when out of memory. */
MS_API char *ms_plan_table(const ms_plan *plan, const ms_hardware *hardware);

/* The reasons for node `entry`: rule, bytes freed, time added, runner-up. With entry < 0, the reasons for the
 * plan: the place and parts of its peak, the distance of its time from the lower bound, and the plans for the
 * next larger and smaller budgets. Free with ms_free(); NULL when out of memory. */
MS_API char *ms_plan_explain(const ms_plan *plan, int64_t entry);

#ifdef __cplusplus
}
#endif

#endif
