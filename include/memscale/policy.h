/*
 * policy.h - stage 1: the mode and the techniques that a run may use, before stage 2 (rules and solver)
 * decides layer by layer.
 *
 * A context is a row of whole numbers. The rule policy compares them with thresholds; a trained policy is an
 * ensemble of decision trees over them, so the same context gives the same decision on every machine. A
 * policy narrows: it never switches on a technique that the caller switched off, nor one that changes
 * results.
 *
 * Tests: tests/c/policy/test_policy.c.
 */
#ifndef MEMSCALE_POLICY_H
#define MEMSCALE_POLICY_H

#include "memscale/rules.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The features of a context, by their names in artifacts. Unknown numbers are 0. */
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
    X(TO_HOST_BYTES_PER_S, "to_host_bytes_per_s", "from the GPU")
typedef enum ms_feature {
#define MS_FEATURE_ENUM(id, name, text) MS_FEATURE_##id,
    MS_FEATURE_TABLE(MS_FEATURE_ENUM)
#undef MS_FEATURE_ENUM
        MS_FEATURE_COUNT
} ms_feature;

/* A feature's name in documents. */
MS_API const char *ms_feature_name(ms_feature feature);

/* The features of one run, in the order of the table. */
typedef struct ms_strategy_context {
    uint64_t value[MS_FEATURE_COUNT];
} ms_strategy_context;

/* The context of a run whose pressure is known. MS_ENOMEM. */
MS_API int ms_strategy_context_of(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                  const ms_pressure *pressure, ms_strategy_context *context, ms_error *err);

/* Stage 1's decision. */
typedef struct ms_strategy {
    ms_mode mode;
    bool enable_checkpointing;
    bool enable_offloading;
} ms_strategy;

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

/* {"decision_source": ..., "mode": ..., ..., "context": {...}}, to be freed with ms_free(); NULL if memory
 * runs out. */
MS_API char *ms_strategy_decision_to_json(const ms_strategy_decision *decision);

/* The caller's configuration under a strategy: its mode, and only those of the caller's techniques that it
 * admits. */
MS_API ms_config ms_strategy_apply(const ms_strategy *strategy, const ms_config *config);

/* The widest strategy: it admits everything that any other strategy admits. */
MS_API ms_strategy ms_strategy_widest(void);

/* ---- the rule policy ------------------------------------------------------ */

/* Fills strategy and reason from the context. */
MS_API void ms_policy_rule(const ms_strategy_context *context, const ms_config *config, ms_strategy_decision *decision);

/* ---- trained policies ------------------------------------------------------ */

/* A trained policy. */
typedef struct ms_policy ms_policy;

/* Reads an artifact (docs/formats/policy.schema.json) and checks its checksum. MS_EFORMAT and MS_EVERSION
 * name the place; MS_ENOMEM. Immutable and thread-safe. */
MS_API int ms_policy_parse(const char *json, ms_policy **policy, ms_error *err);
MS_API void ms_policy_free(ms_policy *policy);
MS_API const char *ms_policy_name(const ms_policy *policy);

/* The strategy with the highest sum of scores, the first of equals. */
MS_API ms_strategy ms_policy_choose(const ms_policy *policy, const ms_strategy_context *context);

/* Wraps the object "policy" of the format, as training writes it, into an artifact. Checks it as
 * ms_policy_parse() does. */
MS_API int ms_policy_seal(const char *policy_json, char **artifact, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
