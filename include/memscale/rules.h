/*
 * rules.h - how hard memory is pressed, and which techniques each node may use at
 * that pressure, mode and set of flags.
 *
 * The rules admit, the solver (plan.h) chooses among what was admitted. Every
 * admission and every refusal carries the rule that made it and its numbers.
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

/* The rules by name, with the sentence that an explanation prints. */
#define MS_RULE_TABLE(X) \
    X(COMFORTABLE, "comfortable_fit", "the run fits comfortably: nothing is done") \
    X(KEEP_ALWAYS, "keep_always", "keeping costs no time") \
    X(PRESSURE, "pressure", "the run does not fit comfortably") \
    X(FORCED, "forced", "force_optimize plans for the smallest peak") \
    X(LOW_PRESSURE, "low_pressure", "little is missing: only the larger layers are touched") \
    X(MODE, "mode", "the mode does not go this far") \
    X(FLAG_OFF, "flag_off", "the flag for this technique is off") \
    X(ROOT_WORK, "root_work", "work outside a layer can't be run again on its own") \
    X(MUTATES_INPUT, "mutates_input", \
      "the layer changes its input or a parameter in place: run again, it would twice") \
    X(OPAQUE_ARGUMENT, "opaque_argument", "the layer gets an object whose state running it again could change") \
    X(NO_TENSOR_INPUT, "no_tensor_input", "the layer has no tensor argument to run again from") \
    X(UNHOOKABLE, "unhookable", "the module must be left alone") \
    X(NOT_CHAINED, "not_chained", "its first argument is not what the layer before gave, or that can't be run again") \
    X(LAST_RESORT, "last_resort", "held back for budgets that nothing else fits: it costs another forward") \
    X(NO_MAKERS, "no_makers", "nothing that the layer saves can be made again by its operators alone") \
    X(TOO_SMALL, "too_small", "too few saved bytes to be worth a transfer") \
    X(NO_DISK, "no_disk", "there is no usable disk directory") \
    X(DISK_CAP, "disk_cap", "the disk cap leaves no room") \
    X(HOST_IS_DEVICE, "host_is_device", "training runs in host memory: moving there frees nothing") \
    X(HOST_CAP, "host_cap", "the host cap leaves no room") \
    X(NO_LOSS_HEAD, "no_loss_head", "the model computes no cross entropy in its own forward") \
    X(LOSS_OUTSIDE, "loss_outside", \
      "the loss is computed outside of the model's forward; if it is a cross entropy, " \
      "memscale.techniques.cross_entropy there has torch's bits in a third of the memory") \
    X(HOST_ONLY, "host_only", "it works on tensors in host memory only") \
    X(OTHER_OPTIMIZER, "other_optimizer", "the optimizer is not known to be memscale.optim's, or does it already") \
    X(GRADIENTS_NEEDED, "gradients_needed", \
      "all gradients are needed before one is used: a GradScaler, clipping or accumulation, seen or possible") \
    X(NO_PLAIN_HEAD, "no_plain_head", \
      "no cross entropy in the model's forward takes a linear layer's output as it is") \
    X(NO_TILES, "no_tiles", \
      "no layer holds a module that treats every position by itself, or the step was not traced in tiles") \
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

/* What the run would need unoptimised against what it may use. */
typedef struct ms_pressure {
    uint64_t need_bytes;     /* predicted peak with every node kept, no cache */
    uint64_t allowed_bytes;  /* the budget, or the target share of the device */
    uint64_t permille;       /* 1000 x need / allowed */
    bool budget_given;       /* a user's budget: not meeting it is an error */
    bool comfortable;        /* below the skip threshold and not forced */
    bool forced;             /* force_optimize without a binding budget */
} ms_pressure;

/* A comfortable fit needs at most 85% of what it may use. Up to 110% pressure is low:
 * nodes that save less than a quarter of what the largest saves are left alone. */
enum { MS_COMFORTABLE_PERMILLE = 850, MS_LOW_PRESSURE_PERMILLE = 1100 };

/* Works out the pressure of a run that would need `need_bytes`. Pure. */
MS_API void ms_pressure_of(uint64_t need_bytes, const ms_hardware *hardware, const ms_config *config,
                           ms_pressure *pressure);

/* What the tiers may take: the configured cap, else half of the disk's free bytes, all of
 * the available host memory. 0 where the tier can't be used (no fit directory; training
 * runs in host memory). */
enum { MS_DISK_SHARE_PERMILLE = 500 };
MS_API uint64_t ms_rules_disk_cap(const ms_hardware *hardware, const ms_config *config);
MS_API uint64_t ms_rules_host_cap(const ms_hardware *hardware, const ms_config *config);

/* What a node may use, and why or why not. */
typedef struct ms_admission {
    uint32_t techniques;                  /* a bit for each ms_technique admitted */
    uint32_t under_pressure;              /* what would be if MS_RULE_LOW_PRESSURE did not hold back */
    uint32_t rule[MS_TECHNIQUE_COUNT];    /* ms_rule that admitted or refused it */
    uint64_t saved_bytes;                 /* what the node holds between forward and backward if kept */
    uint64_t offload_bytes;               /* of those, in storages large enough to move */
    bool packs;                           /* its storages of two values may be kept as bits ... */
    uint32_t packing_rule;                /* ... by this ms_rule, or may not */
} ms_admission;

/*
 * Judges every node: `admissions` is an array of graph->node_count. Pure and
 * deterministic. With pressure->comfortable only KEEP is admitted anywhere.
 */
MS_API int ms_rules_admit(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          const ms_pressure *pressure, ms_admission *admissions, ms_error *err);

/* Storages below this stay: the handling costs more than they free. */
#define MS_OFFLOAD_MIN_BYTES ((uint64_t)1 << 20)

#ifdef __cplusplus
}
#endif

#endif
