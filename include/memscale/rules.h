/*
 * rules.h - memory pressure, and the techniques that each node may use at that pressure, under the mode and
 * the flags.
 *
 * The rules admit techniques; the search (plan.h) chooses among the admitted ones. Every admission and every
 * refusal carries the rule that made it. All functions are pure and thread-safe.
 *
 * Tests: tests/c/rules/test_rules.c.
 */
#ifndef MEMSCALE_RULES_H
#define MEMSCALE_RULES_H

#include "memscale/config.h"
#include "memscale/graph.h"
#include "memscale/hardware.h"
#include "memscale/technique.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The rules: name, and the sentence that an explanation prints. */
#define MS_RULE_TABLE(X) \
    X(COMFORTABLE, "comfortable_fit", "the run fits comfortably: nothing is done") \
    X(KEEP_ALWAYS, "keep_always", "keeping costs no time") \
    X(PRESSURE, "pressure", "the run does not fit comfortably") \
    X(FORCED, "forced", "force_optimize plans for the smallest peak") \
    X(LOW_PRESSURE, "low_pressure", "the budget is nearly met: only the larger layers are touched") \
    X(MODE, "mode", "the mode does not allow it") \
    X(FLAG_OFF, "flag_off", "the flag for this technique is off") \
    X(ROOT_WORK, "root_work", "work outside a layer can't be run again on its own") \
    X(MUTATES_INPUT, "mutates_input", \
      "the layer changes its input or a parameter in place; a second run would change it twice") \
    X(OPAQUE_ARGUMENT, "opaque_argument", "the layer gets an object whose state running it again could change") \
    X(NOT_REPEATABLE, "not_repeatable", \
      "a second run of the layer gave other values, or would do something twice that can't be undone: it writes a " \
      "file, or draws from an iterator") \
    X(NO_TENSOR_INPUT, "no_tensor_input", "the layer has no tensor argument to run again from") \
    X(UNHOOKABLE, "unhookable", "the module can't be hooked; the log gives the reason") \
    X(ELSEWHERE, "elsewhere", \
      "it computes on another device, or it is the root's own work of a model on several: its tensors stay") \
    X(NOT_CHAINED, "not_chained", \
      "its first argument is not the output of the layer before, or that layer can't run again") \
    X(LAST_RESORT, "last_resort", "used only if nothing else fits the budget: it costs another forward") \
    X(COMPILED, "compiled", \
      "code compiled by torch.compile runs in the layer: it can run again, but not operator by operator") \
    X(NO_MAKERS, "no_makers", "none of the layer's saved tensors can be recomputed by single operators") \
    X(TOO_SMALL, "too_small", "too few saved bytes to be worth a transfer") \
    X(NO_DISK, "no_disk", "there is no usable disk directory") \
    X(DISK_CAP, "disk_cap", "the disk cap leaves no room") \
    X(HOST_IS_DEVICE, "host_is_device", "training runs in host memory: moving there frees nothing") \
    X(HOST_CAP, "host_cap", "the host cap leaves no room") \
    X(NO_LOSS_HEAD, "no_loss_head", "the model computes no cross entropy in its own forward") \
    X(LOSS_OUTSIDE, "loss_outside", \
      "the loss is computed outside the model's forward; if it is a cross entropy, " \
      "memscale.techniques.cross_entropy computes the same bits in a third of the memory") \
    X(HOST_HAS_ROOM, "host_has_room", "host memory has room for it, which is faster") \
    X(OTHER_OPTIMIZER, "other_optimizer", "the optimizer is not one of memscale.optim's, or already does it") \
    X(GRADIENTS_NEEDED, "gradients_needed", \
      "every gradient is needed before one may be used: a GradScaler, clipping or accumulation, observed or possible") \
    X(NO_PLAIN_HEAD, "no_plain_head", \
      "no cross entropy in the model's forward takes a linear layer's output unchanged") \
    X(NO_TILES, "no_tiles", "no layer holds a position-wise module, or the step was not traced in tiles") \
    X(EXACT_FITS, "exact_fits", "a plan that keeps every bit fits")
typedef enum ms_rule {
#define MS_RULE_ENUM(id, name, text) MS_RULE_##id,
    MS_RULE_TABLE(MS_RULE_ENUM)
#undef MS_RULE_ENUM
        MS_RULE_COUNT
} ms_rule;

/* Name and text of a row of the table. */
MS_API const char *ms_rule_name(ms_rule rule);
MS_API const char *ms_rule_text(ms_rule rule);

/* How the run's unoptimized peak compares with the bytes it may use. */
typedef struct ms_pressure {
    uint64_t need_bytes;     /* predicted peak with every node kept, no cache */
    uint64_t allowed_bytes;  /* the budget, or the target share of the device */
    uint64_t permille;       /* 1000 x need / allowed */
    bool budget_given;       /* by the user; a plan that exceeds it is an error */
    bool comfortable;        /* below the skip threshold and not forced */
    bool forced;             /* force_optimize without a binding budget */
} ms_pressure;

/* A comfortable fit needs at most 85% of the allowed bytes. Up to 110% pressure is low: nodes that save less
 * than a quarter of the largest node's bytes are kept. */
enum { MS_COMFORTABLE_PERMILLE = 850, MS_LOW_PRESSURE_PERMILLE = 1100 };

/* The pressure of a run that needs `need_bytes`. Pure. */
MS_API void ms_pressure_of(uint64_t need_bytes, const ms_hardware *hardware, const ms_config *config,
                           ms_pressure *pressure);

/* The most bytes that a plan may put on each tier: the configured cap; else half of the disk's free bytes, or
 * all available host memory. 0 if the tier can't be used: the directory is unfit, or training runs in host
 * memory. */
enum { MS_DISK_SHARE_PERMILLE = 500 };
MS_API uint64_t ms_rules_disk_cap(const ms_hardware *hardware, const ms_config *config);
MS_API uint64_t ms_rules_host_cap(const ms_hardware *hardware, const ms_config *config);
/* The part of the host's cap that an engine would pin: the configured pool, else half of the available memory. */
MS_API uint64_t ms_rules_pinned(const ms_hardware *hardware, const ms_config *config);

/* The techniques admitted at one node, and the rule behind each answer. */
typedef struct ms_admission {
    uint32_t techniques;                  /* a bit for each ms_technique admitted */
    uint32_t under_pressure;              /* the same, if MS_RULE_LOW_PRESSURE did not apply */
    uint32_t rule[MS_TECHNIQUE_COUNT];    /* the ms_rule that admitted or refused each */
    uint64_t saved_bytes;                 /* held between forward and backward if kept */
    uint64_t offload_bytes;               /* part of them: in storages large enough to move */
    bool packs;                           /* its two-valued storages may be bit-packed */
    uint32_t packing_rule;                /* the ms_rule that admitted or refused packing */
} ms_admission;

/*
 * Judges every node; `admissions` has room for graph->node_count. Pure and deterministic. If
 * pressure->comfortable, only KEEP is admitted. MS_EINVAL if a node has no profile.
 */
MS_API int ms_rules_admit(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          const ms_pressure *pressure, ms_admission *admissions, ms_error *err);

/* Smaller storages stay: moving them costs more than the bytes they free. */
#define MS_OFFLOAD_MIN_BYTES ((uint64_t)1 << 20)

#ifdef __cplusplus
}
#endif

#endif
