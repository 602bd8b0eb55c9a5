/*
 * config.h - the user's configuration as a value.
 *
 * The Python `Config` is written to JSON and parsed here, so that every bound and every message about a bad field
 * exists once, in C. Planning reads the user's options only from this struct.
 * Tests: tests/c/config/test_config.c.
 */
#ifndef MEMSCALE_CONFIG_H
#define MEMSCALE_CONFIG_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "Not given" in a byte field: the library chooses. */
#define MS_UNSET UINT64_MAX

enum { MS_PATH_MAX = 4096 };

/* The techniques allowed, as `OptimizationMode` in Python. In order: recomputation; also offload; all that the
 * flags allow. */
typedef enum ms_mode { MS_MODE_CONSERVATIVE, MS_MODE_BALANCED, MS_MODE_AGGRESSIVE, MS_MODE_COUNT } ms_mode;

/* The fields of `memscale.Config`; its documentation explains them. */
typedef struct ms_config {
    ms_mode mode;
    bool enable_checkpointing;
    bool enable_offloading;
    bool enable_tiling;
    bool use_mixed_precision;
    bool use_8bit_optimizer;
    bool force_optimize;
    bool use_static_profiling;
    bool use_empirical_fallback;
    bool enable_logging;
    bool verify_correctness;
    bool strict_budget; /* if no plan fits a new shape, its forward fails; otherwise it runs under its smallest plan */
    bool async_offload;
    bool auto_policy;
    uint32_t warmup_steps;
    uint32_t target_utilization_permille; /* of `target_gpu_utilization` */
    uint64_t memory_budget_bytes; /* MS_UNSET: a share of the device is the target */
    uint64_t max_cpu_offload_bytes; /* MS_UNSET: all available memory */
    uint64_t max_disk_offload_bytes; /* MS_UNSET: a stated share of the free space */
    int32_t observability_port; /* -1: none */
    uint64_t pinned_pool_bytes; /* of AsyncOffloadConfig; MS_UNSET: chosen */
    uint32_t prefetch_depth; /* layers ahead; 0: chosen */
    uint32_t num_streams; /* 0: chosen */
    bool async_debug;
    uint32_t search_permille; /* share of the planner's replays; 0: all of them. Set by a policy, in no document */
    char disk_offload_dir[MS_PATH_MAX]; /* "": a cache directory on a real disk */
    char log_file[MS_PATH_MAX]; /* "": none */
} ms_config;

/* "conservative", "balanced" or "aggressive"; "unknown" for any other number. */
MS_API const char *ms_mode_name(ms_mode mode);
/* MS_EINVAL if no mode has this name. */
MS_API int ms_mode_parse(const char *name, ms_mode *mode);

/* Fills in the defaults of the published `Config`. */
MS_API void ms_config_default(ms_config *config);

/*
 * Parses the JSON of a `Config`: an object with "version": 1 and any of the published fields under their published
 * names, GB fields as numbers of 1e9 bytes, null for "not given", `async_config` as a nested object. An absent field
 * keeps its default. MS_ECONFIG names the field, its value and the allowed values, or an unknown field.
 */
MS_API int ms_config_parse(const char *json, ms_config *config, ms_error *err);

/*
 * The message for an argument that one of Python's functions does not have: it suggests the field of `Config` or the
 * argument that was probably meant. `arguments` are the function's own, NULL after the last. Free it with ms_free(); NULL when
 * out of memory.
 */
MS_API char *ms_config_no_argument(const char *function, const char *name, const char *const *arguments);

/* A config with every field written out; NULL when out of memory. */
MS_API char *ms_config_to_json(const ms_config *config);

#ifdef __cplusplus
}
#endif

#endif
