/*
 * pipeline.h - the stages in order: graph, hardware and config in, plan out; and corrections from finished
 * steps.
 *
 * src/pipeline/pipeline.c is the file to open first. Stages run one way; each passes a plain value to the
 * next. All functions are pure functions of their documents.
 *
 * Tests: tests/c/pipeline/ (test_pipeline.c, test_observe.c, test_precision.c), tests/c/policy/test_policy.c
 * (stage 1).
 */
#ifndef MEMSCALE_PIPELINE_H
#define MEMSCALE_PIPELINE_H

#include "memscale/plan.h"
#include "memscale/policy.h"
#include "memscale/precision.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pressure -> rules -> solver. A pure function of its three documents. Before the training loop has been
 * observed (graph->loop.observed), the plan is for a loop that holds its outputs and has gradients live in
 * forward. If no plan fits that loop, it is for one that holds less. The plan states its assumption (assumed_...). */
MS_API int ms_pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                            ms_error *err);

/*
 * The same after stage 1: a policy first picks mode and eligible techniques. `trained` is NULL if no trained
 * policy is available; `rules_only` asks for the rule policy. Without a GPU and without a budget there is no
 * pressure to judge by, and the configuration stays as it is. If no plan fits under a strategy, the widest one
 * is used.
 *
 * `effective` receives the configuration that was planned for, `decision` the strategy and its numbers;
 * plan->decision_source names the source.
 */
MS_API int ms_pipeline_plan_by_policy(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                      const ms_policy *trained, bool rules_only, ms_strategy_decision *decision,
                                      ms_config *effective, ms_plan **plan, ms_error *err);

/*
 * The precision of forwards, from the step traced unchanged (`plain`) and under autocast to BF16 (`half`);
 * NULL if a trace failed. On a CPU *chosen is BF16 only if it has the instructions and the step is predicted
 * to be faster, or smaller and not slower; the description's rate of matrix products then becomes that of
 * BF16. On a GPU it is BF16 if the GPU computes that, else FP16, unless some parameters are FP16. *line gives
 * the reason, to be freed with ms_free().
 */
MS_API int ms_pipeline_precision(const ms_graph *plain, const ms_graph *half, bool has_fp16_parameters,
                                 ms_hardware *hardware, ms_precision *chosen, char **line, ms_error *err);

/*
 * For comparing a step under `plan` with one that keeps everything, on the inputs that `graph` was traced
 * with (the plan's, or fewer rows of them). *fits: the step with everything kept, a second set of gradients
 * and a second slab stay within the plan's allowed bytes. *exactness: the plan's promise. Changes `plan` so
 * that the smaller tensors of fewer rows still move.
 */
MS_API int ms_pipeline_rehearse(const ms_graph *graph, const ms_hardware *hardware, ms_plan *plan, bool *fits,
                                ms_exactness *exactness, ms_error *err);

/*
 * The plan to try after an allocation failed under `plan`: an eighth below its peak, or the smallest. *config
 * gets its budget, which holds from then on. `attempt` counts from 0 within a step. *line reports it, to be
 * freed with ms_free(). MS_EINFEASIBLE if no plan is tighter or a step was tried too often; then nothing
 * changes.
 */
MS_API int ms_pipeline_tighten(const ms_graph *graph, const ms_hardware *hardware, ms_config *config,
                               const ms_plan *plan, uint32_t attempt, ms_plan **tighter, char **line, ms_error *err);

/*
 * Merges the documents of `count` processes that train one model into those of one plan, rank 0's first:
 * budgets and room are the smallest, bytes held by processes the largest, and the `local_count` ranks of one
 * machine divide its memory and disk. The rest is rank 0's. MS_EINVAL for no ranks.
 */
MS_API int ms_pipeline_agree(const ms_hardware *const *hardware, const ms_config *const *config, uint32_t count,
                             uint32_t local_count, ms_hardware *agreed_hardware, ms_config *agreed_config,
                             ms_error *err);

/*
 * The smallest plan for a shape that no plan fits into the budget, when training has begun with `first`. *line, to
 * be freed with ms_free(), names the shape, the first one, the bytes over and the longest size that fits. On failure
 * neither is set. Tests: tests/c/pipeline/test_pipeline.c.
 */
MS_API int ms_pipeline_beyond(const ms_graph *graph, const ms_graph *first, const ms_hardware *hardware,
                              const ms_config *config, ms_plan **plan, char **line, ms_error *err);

/* Restricts a configuration to techniques that work with parameters sharded and gathered layer by layer
 * (FSDP). */
MS_API void ms_pipeline_sharded(ms_config *config);

/* Measurements of one finished step. MS_UNSET if not measured. */
typedef struct ms_observation {
    uint64_t peak_bytes;             /* of the training device in this step */
    uint64_t peak_held_bytes;        /* of tensors in host maps: largest live + cached */
    uint64_t baseline_held_bytes;    /* of these, bytes that the baseline counts (DDP's buckets) */
    uint64_t resident_bytes;         /* at the step's boundary */
    uint64_t held_bytes;             /* live + cached at the boundary */
    uint64_t step_ns;
    uint64_t optimizer_state_bytes;  /* of the optimizer that stepped */
    bool outputs_held;
    bool gradients_live_in_forward;
    bool loop_seen;                  /* the two above were observed */
    bool gradients_released;         /* by that optimizer in backward, as its caller asked */
    bool gradients_needed;           /* all needed before one is used: by a GradScaler, clipping or accumulation */
    bool smaller_inputs;             /* than planned: the step may take less memory and time */
    bool keeps_reserve;              /* never lower the reserve: ranks differ, and the measurement is of one */
    bool replan_refused;             /* corrections under this plan left no plan that fits: it stays in force, and
                                      * its peak came from other documents */
    uint64_t plans;                  /* made for these inputs so far; 0 or MS_UNSET: unknown */
    uint32_t step;                   /* 1 for the first after wrap */
    uint32_t plan_steps;             /* steps under this plan, this one included */
} ms_observation;

/* The reason for a new plan. */
typedef enum ms_drift {
    MS_DRIFT_NONE,
    MS_DRIFT_LOOP,      /* the loop differs from the assumption */
    MS_DRIFT_OPTIMIZER, /* the optimizer's state or its use of gradients differs */
    MS_DRIFT_PEAK,      /* measured peak more than 5% off, or over the budget */
    MS_DRIFT_TIME,      /* measured step time more than 5% off, if that affects a choice */
    MS_DRIFT_RESERVE    /* memory besides tensors is less than reserved, or differs from the expected */
} ms_drift;
/* "none", "loop", "optimizer", "peak", "time", "reserve"; and the sentence for a log. */
MS_API const char *ms_drift_name(ms_drift drift);
MS_API const char *ms_drift_text(ms_drift drift);

/*
 * Compares a step with its plan. If they differ enough, corrects the two documents in place (graph->loop,
 * hardware->process, hardware->time_scale_permille) and gives the reason in *drift; the caller then plans
 * again from them. `line` always receives one line for the log, to be freed with ms_free(). MS_ENOMEM leaves
 * the documents unchanged.
 *
 * Corrections do not oscillate. After its first observation a loop can only be found to hold more. Scratch
 * grows after any step over its limit. It shrinks, and the time scale changes, only at rare steps, by amounts
 * worth a new plan, and never after a step of smaller inputs. After the third plan for the same inputs only a peak
 * over the budget is corrected.
 */
MS_API int ms_pipeline_observe(ms_graph *graph, ms_hardware *hardware, const ms_config *config, const ms_plan *plan,
                               const ms_observation *observation, ms_drift *drift, char **line, ms_error *err);

/* Measurements of one evaluation: forwards without gradients. MS_UNSET if not measured. */
typedef struct ms_evaluation {
    uint64_t before_bytes; /* resident when it began */
    uint64_t peak_bytes;
    uint64_t rows; /* of the largest batch; 0 if unknown */
} ms_evaluation;

/*
 * The warning for an evaluation that took more than the budget, with the number of rows that would fit; NULL in
 * *line if it stayed within, or if there is no budget. To be freed with ms_free(). Tests:
 * tests/c/pipeline/test_evaluation.c.
 */
MS_API int ms_pipeline_evaluation(const ms_config *config, const ms_evaluation *seen, char **line, ms_error *err);

/*
 * Compares the graph of a traced step with that of a real step, storage by storage: the allocations, releases
 * and saved tensors that only one of them has, and the operator before each. It helps to explain a wrong
 * predicted peak (docs/peaks.md).
 *
 * *report is a text, to be freed with ms_free(); *differences counts the events and nodes that only one graph
 * has. MS_ENOMEM is the only failure. Tests: tests/c/pipeline/test_trace_diff.c.
 */
MS_API int ms_pipeline_trace_diff(const ms_graph *traced, const ms_graph *seen, const ms_hardware *hardware,
                                  char **report, uint32_t *differences, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
