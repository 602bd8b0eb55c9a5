/*
 * policy.h - the policy stage: the mode, the techniques that a run may use, and how far the planner searches, before
 * rules and search decide layer by layer.
 *
 * A context is a row of whole numbers. The rule policy compares them with thresholds; a trained policy is an
 * ensemble of decision trees over them, which predict the cost of each strategy. So the same context gives the same
 * decision on every machine. A policy only narrows: it switches on no technique that the caller switched off or that
 * changes results. A context outside of what a trained policy was trained for is left to the rules.
 *
 * Tests: tests/c/policy/test_policy.c, test_shipped.c.
 */
#ifndef MEMSCALE_POLICY_H
#define MEMSCALE_POLICY_H

#include "memscale/rules.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The features of a context, with their names in artifacts. Unknown numbers are 0. */
#define MS_FEATURE_TABLE(X) \
    X(NEED_BYTES, "need_bytes", "predicted peak with everything kept") \
    X(ALLOWED_BYTES, "allowed_bytes", "the budget, or the target share of the device") \
    X(PRESSURE_PERMILLE, "pressure_permille", "1000 x need / allowed") \
    X(BUDGET_GIVEN, "budget_given", "1 if the caller named a budget") \
    X(ON_GPU, "on_gpu", "1 if training runs on a GPU") \
    X(PARAMETER_BYTES, "parameter_bytes", "of all parameters") \
    X(STATE_BYTES, "state_bytes", "of the optimizer's state") \
    X(SAVED_BYTES, "saved_bytes", "held between forward and backward if all is kept") \
    X(LARGEST_SAVED_BYTES, "largest_saved_bytes", "the same of the layer that saves most") \
    X(LAYER_COUNT, "layer_count", "calls of layers in a step") \
    X(MATMUL_FLOPS_PER_S, "matmul_flops_per_s", "of the training device") \
    X(DISK_ROOM_BYTES, "disk_room_bytes", "most bytes on the disk tier") \
    X(DISK_WRITE_BYTES_PER_S, "disk_write_bytes_per_s", "of the disk tier") \
    X(DISK_READ_BYTES_PER_S, "disk_read_bytes_per_s", "of the disk tier") \
    X(HOST_ROOM_BYTES, "host_room_bytes", "most bytes on the host tier") \
    X(TO_HOST_BYTES_PER_S, "to_host_bytes_per_s", "from the GPU") \
    X(LOOP_OBSERVED, "loop_observed", "1 if steps of the training loop were seen") \
    X(EVENT_COUNT, "event_count", "events of a replayed step: the cost of a replay") \
    X(FIXED_PERMILLE, "fixed_permille", "1000 x bytes that are there at any time / allowed") \
    X(SELECTIVE_PEAK_PERMILLE, "selective_peak_permille", \
      "1000 x peak / allowed if operators recompute the largest set of each layer") \
    X(SELECTIVE_STEP_PERMILLE, "selective_step_permille", "1000 x that plan's step time / the unmodified one") \
    X(RECOMPUTE_PEAK_PERMILLE, "recompute_peak_permille", "1000 x peak / allowed if each layer is recomputed") \
    X(RECOMPUTE_STEP_PERMILLE, "recompute_step_permille", "1000 x that plan's step time / the unmodified one") \
    X(OFFLOAD_PEAK_PERMILLE, "offload_peak_permille", "1000 x peak / allowed if each layer's saved tensors move") \
    X(OFFLOAD_STEP_PERMILLE, "offload_step_permille", "1000 x that plan's step time / the unmodified one") \
    X(MOVED_PEAK_PERMILLE, "moved_peak_permille", \
      "1000 x peak / allowed if each layer is recomputed and its arguments move") \
    X(MOVED_STEP_PERMILLE, "moved_step_permille", "1000 x that plan's step time / the unmodified one") \
    X(GLANCE_PEAK_PERMILLE, "glance_peak_permille", "1000 x peak / allowed of a glance's plan; 0: it finds none") \
    X(GLANCE_STEP_PERMILLE, "glance_step_permille", "1000 x that plan's step time / the unmodified one")
typedef enum ms_feature {
#define MS_FEATURE_ENUM(id, name, text) MS_FEATURE_##id,
    MS_FEATURE_TABLE(MS_FEATURE_ENUM)
#undef MS_FEATURE_ENUM
        MS_FEATURE_COUNT
} ms_feature;

/* A feature's name in documents, and its text for people. */
MS_API const char *ms_feature_name(ms_feature feature);
MS_API const char *ms_feature_text(ms_feature feature);

/* The features of one run, in the order of the table. */
typedef struct ms_strategy_context {
    uint64_t value[MS_FEATURE_COUNT];
} ms_strategy_context;

/* The context of a run whose pressure is known, except for the features that replays and a glance give (EVENT_COUNT and
 * those after it): ms_pipeline_plan_by_policy() adds them. MS_ENOMEM. */
MS_API int ms_strategy_context_of(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                  const ms_pressure *pressure, ms_strategy_context *context, ms_error *err);

/* Stage 1's decision. */
typedef struct ms_strategy {
    ms_mode mode;
    bool enable_checkpointing;
    bool enable_offloading;
    uint32_t search_permille; /* 1 to 1000: the share of the planner's replays that the search may use */
    uint32_t
        second_permille; /* a second search, in which nothing moves, may use this share; the better of both plans is
                               * taken. 0: there is none */
} ms_strategy;

/* The strategies that policies are trained on, alone and with a second search: name, mode, recomputes, moves, permille of the search, and a text. The
 * first is the widest: it admits everything that any other strategy admits. */
#define MS_STRATEGY_TABLE(X) \
    X("everything", AGGRESSIVE, true, true, 1000, "every technique, the whole search") \
    X("everything, quick", AGGRESSIVE, true, true, 250, "every technique, a quarter of the search") \
    X("everything, brief", AGGRESSIVE, true, true, 80, "every technique, a twelfth of the search") \
    X("everything, glance", AGGRESSIVE, true, true, 20, "every technique, little more than uniform plans") \
    X("recompute", AGGRESSIVE, true, false, 1000, "nothing moves, the whole search") \
    X("recompute, quick", AGGRESSIVE, true, false, 250, "nothing moves, a quarter of the search") \
    X("recompute, brief", AGGRESSIVE, true, false, 50, "nothing moves, a twentieth of the search") \
    X("offload, quick", AGGRESSIVE, false, true, 250, "nothing is recomputed, a quarter of the search") \
    X("offload, brief", AGGRESSIVE, false, true, 50, "nothing is recomputed, a twentieth of the search") \
    X("keep", AGGRESSIVE, false, false, 50, "options of the whole step alone") \
    X("balanced", BALANCED, true, true, 1000, "no gradient release; under low pressure only the larger layers")

/* A row of the table as a strategy, its name and its text; past the last, false and "unknown". */
MS_API bool ms_strategy_at(size_t i, ms_strategy *strategy);
/* The row with these values, the second search aside; the mode's name if there is none. Lives as long as the library. */
MS_API const char *ms_strategy_name(const ms_strategy *strategy);
MS_API const char *ms_strategy_text(const ms_strategy *strategy);

/* The second search as a strategy of its own. False if there is none. */
MS_API bool ms_strategy_second(const ms_strategy *strategy, ms_strategy *second);

/* The source of a decision. */
#define MS_DECISION_SOURCE_TABLE(X) \
    X(USER_CONFIG, "user_config") \
    X(ML, "ml") \
    X(RULE_FALLBACK, "rule_fallback") \
    X(RULE, "rule")
typedef enum ms_decision_source {
#define MS_DECISION_SOURCE_ENUM(id, name) MS_DECISION_SOURCE_##id,
    MS_DECISION_SOURCE_TABLE(MS_DECISION_SOURCE_ENUM)
#undef MS_DECISION_SOURCE_ENUM
        MS_DECISION_SOURCE_COUNT
} ms_decision_source;

/* A source's name in documents. */
MS_API const char *ms_decision_source_name(ms_decision_source source);

enum { MS_REASON_MAX = 256 };
/* The strategy, its source, the numbers it came from, and the reason. */
typedef struct ms_strategy_decision {
    ms_decision_source source;
    ms_strategy strategy;
    ms_strategy_context context;
    char reason[MS_REASON_MAX];
} ms_strategy_decision;

/* {"decision_source": ..., "mode": ..., ..., "context": {...}}. Free with ms_free(); NULL when out of memory. */
MS_API char *ms_strategy_decision_to_json(const ms_strategy_decision *decision);

/* The caller's configuration under a strategy: the strategy's mode, and the caller's techniques that the
 * strategy admits. */
MS_API ms_config ms_strategy_apply(const ms_strategy *strategy, const ms_config *config);

/* The widest strategy: it admits everything that any other strategy admits. */
MS_API ms_strategy ms_strategy_widest(void);
/* The shortest search of the same techniques. A trained policy sees how good its plan is before it decides. */
MS_API ms_strategy ms_strategy_glance(void);
/* Whether the first search of a strategy is that one. */
MS_API bool ms_strategy_is_glance(const ms_strategy *strategy);

/* ---- the rule policy ------------------------------------------------------ */

/* Fills strategy and reason from the context. */
MS_API void ms_policy_rule(const ms_strategy_context *context, const ms_config *config, ms_strategy_decision *decision);

/* ---- trained policies ------------------------------------------------------ */

/* A trained policy. */
typedef struct ms_policy ms_policy;

/* Reads an artifact (docs/formats/policy.schema.json) and compares its checksum. MS_EFORMAT and MS_EVERSION
 * name the place; MS_ENOMEM. An artifact of more than MS_POLICY_BYTES_MOST is refused unread. A policy is immutable and
 * thread-safe. */
enum { MS_POLICY_BYTES_MOST = 4 << 20 };
MS_API int ms_policy_parse(const char *json, ms_policy **policy, ms_error *err);
MS_API void ms_policy_free(ms_policy *policy);
MS_API const char *ms_policy_name(const ms_policy *policy);

/* The artifact that is built into the library. */
MS_API const char *ms_policy_shipped(void);

/* False if a feature is outside of the range that the policy was trained for; `why` then names it, its value and the
 * limit. */
MS_API bool ms_policy_covers(const ms_policy *policy, const ms_strategy_context *context, char why[MS_REASON_MAX]);

/* The strategy with the lowest predicted cost; of equals, the first. */
MS_API ms_strategy ms_policy_choose(const ms_policy *policy, const ms_strategy_context *context);

/* The strategies of a policy, and the predicted cost of each in units of 2^-20 (docs/formats/policy.schema.json), up to
 * a constant. False past the last. */
MS_API bool ms_policy_strategy(const ms_policy *policy, size_t i, ms_strategy *strategy);
MS_API uint64_t ms_policy_cost(const ms_policy *policy, size_t i, const ms_strategy_context *context);

/* Why the policy prefers its strategy to the next best one, in words: the features whose replacement by their usual
 * value would narrow the difference most. */
MS_API void ms_policy_explain(const ms_policy *policy, const ms_strategy_context *context, char text[MS_REASON_MAX]);

/* Checks the object "policy" of the format, which training writes, as ms_policy_parse() does, and makes it
 * an artifact. Free *artifact with ms_free(). */
MS_API int ms_policy_seal(const char *policy_json, char **artifact, ms_error *err);

/* Fills source, strategy, context and reason: the trained policy decides if it is there, covers the context and the
 * smallest peak is not asked for; else the rules do. */
MS_API void ms_strategy_decide(const ms_strategy_context *context, const ms_config *config, const ms_policy *trained,
                               bool rules_only, ms_strategy_decision *decision);

#ifdef __cplusplus
}
#endif

#endif
