/*
 * pipeline.h - the stages strung together: graph, hardware and config in, plan out;
 * and what a finished step teaches.
 *
 * src/pipeline/pipeline.c is the file to open first. Stages run one way; each passes a plain
 * value to the next.
 */
#ifndef MEMSCALE_PIPELINE_H
#define MEMSCALE_PIPELINE_H

#include "memscale/plan.h"
#include "memscale/policy.h"
#include "memscale/precision.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pressure -> rules -> solver. A pure function of its three documents. While nobody has
 * seen the loop (graph->loop.observed), the plan is made for one that holds its outputs
 * and has gradients live in forward, and for less only where nothing fits; the plan says
 * for which (assumed_...). */
MS_API int ms_pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                            ms_error *err);

/*
 * The same behind stage 1: a policy picks mode and eligible techniques first. `trained` is
 * NULL where no trained policy is available; `rules_only` asks for the rule policy. Without
 * a GPU and without a budget there is no pressure to reason about, and the configuration is
 * used as it is. Where a strategy fits no plan, the widest one is planned for.
 *
 * `effective` receives the configuration that was planned for, `decision` what was chosen
 * and from what; plan->decision_source says by whom.
 */
MS_API int ms_pipeline_plan_by_policy(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                      const ms_policy *trained, bool rules_only, ms_strategy_decision *decision,
                                      ms_config *effective, ms_plan **plan, ms_error *err);

/*
 * What forwards should compute in, from the step traced as it is (`plain`) and under autocast
 * to BF16 (`half`); NULL for what could not be traced. On a CPU *chosen is BF16 only where it
 * has the instructions and the step is predicted to be faster, or smaller and not slower; the
 * description's rate of matrix products is then that of BF16. On a GPU BF16 where it computes
 * that, else FP16, unless there are parameters of that type. *line says why or why not, to be
 * freed.
 */
MS_API int ms_pipeline_precision(const ms_graph *plain, const ms_graph *half, bool has_fp16_parameters,
                                 ms_hardware *hardware, ms_precision *chosen, char **line, ms_error *err);

/*
 * For comparing a step under `plan` with one that keeps everything, on the inputs that
 * `graph` was traced with (those of the plan, or fewer rows of them). *fits: the step with
 * everything kept, a second set of gradients and a second slab stay within what the plan
 * may use. *exactness: what the plan promises. `plan` is adjusted so that the smaller
 * tensors of fewer rows are moved all the same.
 */
MS_API int ms_pipeline_rehearse(const ms_graph *graph, const ms_hardware *hardware, ms_plan *plan, bool *fits,
                                ms_exactness *exactness, ms_error *err);

/*
 * The plan to try after an allocation failed under `plan`: an eighth below its peak, or the
 * smallest there is. *config gets the budget that this means, which holds from then on.
 * `attempt` counts from 0 within a step. *line says it, to be freed. MS_EINFEASIBLE where
 * nothing is tighter or a step was tried often enough; then nothing is changed.
 */
MS_API int ms_pipeline_tighten(const ms_graph *graph, const ms_hardware *hardware, ms_config *config,
                               const ms_plan *plan, uint32_t attempt, ms_plan **tighter, char **line, ms_error *err);

/*
 * The documents from which one plan is made for `count` processes that train one model, from
 * those of each, rank 0 first: budgets and room are the smallest, what processes hold the
 * largest, and the `local_count` ranks of one machine divide its memory and disk. The rest
 * is rank 0's.
 */
MS_API int ms_pipeline_agree(const ms_hardware *const *hardware, const ms_config *const *config, uint32_t count,
                             uint32_t local_count, ms_hardware *agreed_hardware, ms_config *agreed_config,
                             ms_error *err);

/* Leaves in a configuration what may be done where parameters are sharded and gathered layer
 * by layer (FSDP). */
MS_API void ms_pipeline_sharded(ms_config *config);

/* What one finished step showed. MS_UNSET for what was not seen. */
typedef struct ms_observation {
    uint64_t peak_bytes;             /* of the training device in this step */
    uint64_t peak_held_bytes;        /* of tensors in host maps: live + cached at its most */
    uint64_t resident_bytes;         /* at the step's boundary */
    uint64_t held_bytes;             /* live + cached at the boundary */
    uint64_t step_ns;
    uint64_t optimizer_state_bytes;  /* found on the optimizer that stepped */
    bool outputs_held;
    bool gradients_live_in_forward;
    bool loop_seen;                  /* the two above are observations */
    bool gradients_released;         /* by that optimizer in backward, at its owner's wish */
    bool gradients_needed;           /* all, before one is used: by a GradScaler, clipping or accumulation */
    bool smaller_inputs;             /* than the plan was made for: it may take less memory and time */
    bool replan_refused;             /* what was learnt under this plan left no plan that fits: it goes on, and
                                      * its peak was made from other documents than these */
    uint32_t step;                   /* 1 for the first after wrap */
    uint32_t plan_steps;             /* how many of them ran under the plan, this one included */
} ms_observation;

/* Why a replan is due. */
typedef enum ms_drift {
    MS_DRIFT_NONE,
    MS_DRIFT_LOOP,      /* the caller's loop is not what was assumed */
    MS_DRIFT_OPTIMIZER, /* the optimizer's state, or its use of gradients, is not what was assumed */
    MS_DRIFT_PEAK,      /* measured peak more than 5% off, or over the budget */
    MS_DRIFT_TIME,      /* measured step time more than 5% off, and it matters for a choice */
    MS_DRIFT_RESERVE    /* less lies beside the tensors than is set aside, or other than expected */
} ms_drift;
/* "none", "loop", "optimizer", "peak", "time", "reserve"; and the sentence for a log. */
MS_API const char *ms_drift_name(ms_drift drift);
MS_API const char *ms_drift_text(ms_drift drift);

/*
 * Compares a step with its plan. When they differ enough, corrects the two documents
 * in place (graph->loop, hardware->process, hardware->time_scale_permille) and says
 * why in *drift; the caller then plans again from them. `line` receives one line for
 * the log, to be freed, whether or not anything drifted.
 *
 * It never swings: once seen, a loop is only ever found to hold more; scratch grows
 * whenever a step was over, and shrinks, as the time scale changes, only at rare steps
 * and by what is worth a new plan, never by a step of smaller inputs.
 */
MS_API int ms_pipeline_observe(ms_graph *graph, ms_hardware *hardware, const ms_config *config, const ms_plan *plan,
                               const ms_observation *observation, ms_drift *drift, char **line, ms_error *err);

/*
 * Compares the graph of a traced step with the one that a real step gave, storage by storage: which
 * allocations, releases and saved tensors only one of them has, and after which operator. For finding out why
 * a peak is predicted wrongly (docs/peaks.md).
 *
 * *report is a text for people, to be freed with ms_free(); *differences counts what only one graph has.
 * Fails only if memory is out. Tests: tests/c/pipeline/test_trace_diff.c.
 */
MS_API int ms_pipeline_trace_diff(const ms_graph *traced, const ms_graph *seen, const ms_hardware *hardware,
                                  char **report, uint32_t *differences, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
