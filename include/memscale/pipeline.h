/*
 * pipeline.h - the stages in order: graph, hardware and config in, plan out; and corrections from finished
 * steps.
 *
 * src/pipeline/pipeline.c is the file to open first. Stages run one way; each passes a plain value to the
 * next. All functions depend on their arguments alone; some change documents in place, and say so.
 *
 * Tests: tests/c/pipeline/ (test_pipeline.c, test_observe.c, test_precision.c), tests/c/policy/test_policy.c
 * (policy).
 */
#ifndef MEMSCALE_PIPELINE_H
#define MEMSCALE_PIPELINE_H

#include "memscale/plan.h"
#include "memscale/policy.h"
#include "memscale/precision.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pressure -> rules -> search. Before the training loop has been observed (graph->loop.observed), the plan
 * assumes a loop that holds its outputs and has gradients live in forward. If no plan fits that loop, it assumes
 * a loop that holds less. The plan states its assumption (assumed_...). */
MS_API int ms_pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                            ms_error *err);

/* The parameters of a model that stream (streamed.h). */
typedef struct ms_streaming {
    uint64_t total_bytes;
    uint64_t least_bytes;   /* the smallest window: kept blocks and two layers */
    uint64_t trained_bytes; /* of the parameters that an optimizer changes */
    uint64_t checkpoint_bytes; /* of the parameters that lie in a checkpoint's own files */
    const char *directory; /* of the others' files */
} ms_streaming;

/* A choice of ms_pipeline_window(). */
typedef struct ms_window {
    uint64_t bytes;   /* for ms_streamed_set_window() */
    uint64_t disk_ns; /* the least time in a step in which the disk moves parameters */
} ms_window;

/*
 * Chooses how many bytes of streamed parameters stay in memory: the window with which the slower of plan and disk is
 * fastest, and of equally fast ones a large one. hardware->process gets
 * the window and room for pages that other code touches; its baseline then includes both, in place of an earlier
 * window; plans are made after that. *line
 * is the log's line; free it with ms_free(). MS_EINFEASIBLE, with nothing changed, if no plan fits beside the smallest
 * window: the error is that of ms_pipeline_plan(), and its budget includes the window. MS_EINVAL for a GPU.
 * Tests: tests/c/pipeline/test_window.c.
 */
MS_API int ms_pipeline_window(const ms_graph *graph, const ms_streaming *streaming, const ms_config *config,
                              ms_hardware *hardware, ms_window *window, char **line, ms_error *err);

/*
 * Like ms_pipeline_plan(), after the policy stage has picked mode and eligible techniques. `trained` is NULL if no trained
 * policy is available; `rules_only` selects the rule policy. Without a GPU and a budget the pressure is
 * unknown, and the configuration stays as it is. If no plan fits under a strategy, the widest strategy is
 * used.
 *
 * `effective` receives the configuration of the plan, `decision` the strategy and its numbers;
 * plan->decision_source names the source.
 */
MS_API int ms_pipeline_plan_by_policy(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                      const ms_policy *trained, bool rules_only, ms_strategy_decision *decision,
                                      ms_config *effective, ms_plan **plan, ms_error *err);

/* A plan's numbers under one strategy, and the work of planning it. */
typedef struct ms_strategy_outcome {
    bool fits;
    uint32_t care;            /* 0 to 2: how much the assumed loop may hold; of two that fit, more is better */
    uint64_t step_ns;         /* predicted; 0 if none fits */
    uint64_t peak_bytes;
    uint64_t replayed_events; /* the planner's work, the same on every machine */
} ms_strategy_outcome;

/* Plans under `strategy`, fitting or not. For training, and for people who ask what the others would have given. */
MS_API int ms_pipeline_try_strategy(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                    const ms_strategy *strategy, ms_strategy_outcome *outcome, ms_error *err);

/* The whole context of a run. MS_ENOMEM. */
MS_API int ms_pipeline_context(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                               ms_strategy_context *context, ms_error *err);

/*
 * The decision if no policy runs: the configuration's mode and techniques. Its context is all zeros if graph or
 * hardware is NULL. MS_ENOMEM.
 */
MS_API int ms_pipeline_as_configured(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                     ms_strategy_decision *decision, ms_error *err);

/*
 * The precision of forwards, from the step traced unchanged (`plain`) and under autocast to BF16 (`half`);
 * a failed trace is NULL. On a CPU *chosen is BF16 only if the CPU has the instructions and the step is
 * predicted to be faster, or smaller and not slower; then hardware->cpu.matmul_flops_per_s becomes BF16's. On
 * a GPU it is BF16 if the GPU computes BF16, else FP16, unless some parameters are FP16. *line gives the
 * reason; free it with ms_free().
 */
MS_API int ms_pipeline_precision(const ms_graph *plain, const ms_graph *half, bool has_fp16_parameters,
                                 ms_hardware *hardware, ms_precision *chosen, char **line, ms_error *err);

/*
 * Prepares the comparison of a step under `plan` with a step that keeps everything, on the inputs of `graph`
 * (the plan's, or fewer rows of them). *fits: the step with everything kept, a second set of gradients and a
 * second slab stay within the plan's allowed bytes. *exactness: the plan's promise. Changes `plan` so that the
 * smaller tensors of fewer rows still move.
 */
MS_API int ms_pipeline_rehearse(const ms_graph *graph, const ms_hardware *hardware, ms_plan *plan, bool *fits,
                                ms_exactness *exactness, ms_error *err);

/*
 * The plan to try after an allocation failed under `plan`: for an eighth less than its peak, or the smallest.
 * *config gets its budget, which holds from then on. `attempt` counts from 0 within a step. *line is the log's
 * line; free it with ms_free(). MS_EINFEASIBLE, and nothing changes, if no plan is tighter or a step was tried
 * too often.
 */
MS_API int ms_pipeline_tighten(const ms_graph *graph, const ms_hardware *hardware, ms_config *config,
                               const ms_plan *plan, uint32_t attempt, ms_plan **tighter, char **line, ms_error *err);

/*
 * Merges the documents of `count` processes that train one model (rank 0's first) into those of one plan.
 * Takes the smallest budgets, free bytes and disk rates, and the largest bytes held by a process. Divides a
 * machine's memory and disk among its `local_count` ranks. The rest is rank 0's. MS_EINVAL for no ranks.
 */
MS_API int ms_pipeline_agree(const ms_hardware *const *hardware, const ms_config *const *config, uint32_t count,
                             uint32_t local_count, ms_hardware *agreed_hardware, ms_config *agreed_config,
                             ms_error *err);

/* A step that no plan fits into the budget. */
typedef struct ms_beyond {
    const ms_graph *graph;
    const ms_graph *first;     /* of the shape that training began with; `graph` itself if it is that one */
    uint64_t held_bytes;       /* that the script came to hold, or that its waiting forwards hold */
    uint64_t waiting_forwards; /* of the step under way, for their backward */
    const ms_plan *in_force;   /* for `graph`, from earlier documents; NULL if there is none */
} ms_beyond;

/*
 * The smallest plan for it, with the pressure of the configuration's budget; NULL if the plan in force makes the same
 * choices. *line names the shape, the bytes over the budget and the cause: another shape, with the longest size that
 * fits, or what the loop holds; free it with ms_free(). On failure neither is set. Tests:
 * tests/c/pipeline/test_pipeline.c.
 */
MS_API int ms_pipeline_beyond(const ms_beyond *beyond, const ms_hardware *hardware, const ms_config *config,
                              ms_plan **plan, char **line, ms_error *err);

/*
 * The smallest plan for a step that no plan fits into the budget. Its pressure is that of the budget, with which measured
 * peaks are then compared: what is counted may be an upper bound. As ms_pipeline_plan() otherwise. Tests:
 * tests/c/pipeline/test_pipeline.c.
 */
MS_API int ms_pipeline_least(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                             ms_plan **plan, ms_error *err);

/* Restricts a configuration to techniques that work with layers that are divided among ranks: what they save are parts
 * in wrappers, which don't move. */
MS_API void ms_pipeline_in_parts(ms_config *config);

/* Measurements of one finished step. MS_UNSET if not measured. */
typedef struct ms_observation {
    uint64_t peak_bytes;             /* of the training device in this step */
    uint64_t peak_held_bytes;        /* of tensors in host maps: largest live + cached */
    uint64_t baseline_held_bytes;    /* of these, bytes that the baseline includes (DDP's buckets) */
    uint64_t resident_bytes;         /* at the step's boundary */
    uint64_t held_bytes;             /* live + cached at the boundary */
    uint64_t step_ns;                /* of the step `time_lag` steps ago, under the same plan */
    uint64_t optimizer_state_bytes;  /* of the optimizer that stepped */
    bool outputs_held;
    bool gradients_live_in_forward;
    bool gradients_cleared;          /* those were freed before each backward; false before the first */
    bool loop_seen;                  /* the three above were observed */
    bool gradients_released;         /* by that optimizer in backward, at its caller's request */
    bool gradients_needed;           /* all needed before one is used: by a GradScaler, clipping or accumulation */
    bool smaller_inputs;             /* than planned: the step may take less memory and time */
    bool keeps_reserve;              /* never lower the reserve: ranks differ, and only one was measured */
    bool replan_refused;             /* after corrections no plan fits: this plan stays in force, and its peak came
                                      * from other documents */
    uint64_t plans;                  /* made for these inputs so far; 0 or MS_UNSET: unknown */
    uint32_t step;                   /* counted from 1 after wrap() */
    uint32_t plan_steps;             /* steps under this plan, this one included */
    uint32_t time_lag;               /* 0 on a host; a device's steps end later than the host queues them */
} ms_observation;

/* The reason for a new plan. */
typedef enum ms_drift {
    MS_DRIFT_NONE,
    MS_DRIFT_LOOP,      /* the loop differs from the assumption */
    MS_DRIFT_OPTIMIZER, /* the optimizer's state or its use of gradients differs */
    MS_DRIFT_PEAK,      /* measured peak over the budget; without a budget, more than 5% above the plan's */
    MS_DRIFT_TIME,      /* measured step time more than 5% off, if that affects a choice */
    MS_DRIFT_RESERVE    /* memory beside tensors is less than reserved, or differs from the expectation */
} ms_drift;
/* "none", "loop", "optimizer", "peak", "time" or "reserve"; and its sentence for a log. */
MS_API const char *ms_drift_name(ms_drift drift);
MS_API const char *ms_drift_text(ms_drift drift);

/*
 * Compares a step with its plan. If they differ enough, corrects the two documents in place (graph->loop,
 * hardware->process, hardware->time_scale_permille) and gives the reason in *drift; the caller then makes a
 * new plan from them. *line is always one line for the log; free it with ms_free(). The times of steps below 0.2 s are
 * not compared in it. MS_ENOMEM leaves the documents unchanged.
 *
 * Corrections do not oscillate. After its first observation a loop can only be found to hold more. Scratch
 * grows after any step over its limit. Scratch shrinks only at steps 3, 8, 16, 32 ..., the time scale changes only at
 * step 3, at the second step under each plan before step 8, and at steps 8, 16, 32 ...; both only by amounts worth a
 * new plan, and never after a step of smaller inputs. After the third plan for the same inputs
 * only a peak over the budget is corrected.
 */
MS_API int ms_pipeline_observe(ms_graph *graph, ms_hardware *hardware, const ms_config *config, const ms_plan *plan,
                               const ms_observation *observation, ms_drift *drift, char **line, ms_error *err);

/* Whether a step's measured peak kept its plan's budget, exceeded it, or exceeded it by more than 1%. If it kept the
 * budget, the user need not know of a refused plan. If it is far over, the user is told even if the next plan fits. */
typedef enum ms_overrun { MS_OVERRUN_NONE, MS_OVERRUN_SLIGHT, MS_OVERRUN_FAR } ms_overrun;
MS_API ms_overrun ms_pipeline_overrun(const ms_plan *plan, const ms_observation *observation);

/*
 * The user's cache keeps what a step's operators took beyond the estimate. A later run of the same step on this machine
 * plans for it from its first step on. `software` names what computes, such as torch's version and its
 * number of threads; `cache_dir` as in ms_hardware_options. A step is known by its graph without the loop.
 *
 * ms_pipeline_keep_scratch() is called after ms_pipeline_observe() has corrected the process of a CPU host from `before`
 * to `after`. It keeps the memory beside tensors if that is more than was estimated, and corrects what was kept. False if
 * there was nothing to keep. A folder that can't be written is only logged.
 * ms_pipeline_recall_scratch() raises the scratch in `hardware` to what was kept, if a plan still fits `config` then: an
 * earlier run must not refuse a budget. True if it did. Tests: tests/c/pipeline/test_recall.c.
 */
MS_API bool ms_pipeline_keep_scratch(const ms_graph *graph, const ms_process *before, const ms_hardware *after,
                                     const char *software, const char *cache_dir);
MS_API bool ms_pipeline_recall_scratch(const ms_graph *graph, ms_hardware *hardware, const ms_config *config,
                                       const char *software, const char *cache_dir);

/* Measurements of one evaluation: forwards without gradients. MS_UNSET if not measured. */
typedef struct ms_evaluation {
    uint64_t before_bytes; /* resident when it began */
    uint64_t peak_bytes;
    uint64_t rows; /* of the largest batch; 0 if unknown */
} ms_evaluation;

/*
 * Sets *line to the warning for an evaluation that exceeded the budget, with the number of rows that would fit; to
 * NULL if it did not, or if there is no budget. Free it with ms_free(). Tests: tests/c/pipeline/test_evaluation.c.
 */
MS_API int ms_pipeline_evaluation(const ms_config *config, const ms_evaluation *seen, char **line, ms_error *err);

/*
 * Compares the graphs of a traced and of a real step, storage by storage, to explain a wrong predicted peak
 * (docs/peaks.md). Reports the allocations, releases and saved tensors that only one graph has, and the operator
 * before each.
 *
 * *report is a text; free it with ms_free(). *differences counts the events and nodes that only one graph
 * has. MS_ENOMEM is the only failure. Tests: tests/c/pipeline/test_trace_diff.c.
 */
MS_API int ms_pipeline_trace_diff(const ms_graph *traced, const ms_graph *seen, const ms_hardware *hardware,
                                  char **report, uint32_t *differences, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
