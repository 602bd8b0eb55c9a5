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

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What can be done with a node's saved tensors. The value is stable: it is
 * written into plans by name and used as a bit number in admission masks.
 * KEEP must come first: it is what every fallback means. The selective ones come last:
 * each drops one set of saved tensors (which, depends on the layer: see selection in
 * plan.h), and what is not in the set stays or moves.
 */
#define MS_SELECTIVE_TABLE(X, id, name, rest) \
    X(SELECTIVE_1##id, "selective_1" name, \
      "set 1 of the saved tensors, cheapest per byte first, is made again by its operators; " rest) \
    X(SELECTIVE_2##id, "selective_2" name, \
      "set 2 of the saved tensors, cheapest per byte first, is made again by its operators; " rest) \
    X(SELECTIVE_3##id, "selective_3" name, \
      "set 3 of the saved tensors, cheapest per byte first, is made again by its operators; " rest) \
    X(SELECTIVE_4##id, "selective_4" name, \
      "set 4 of the saved tensors, cheapest per byte first, is made again by its operators; " rest)
#define MS_TECHNIQUE_TABLE(X) \
    X(KEEP, "keep", "saved tensors stay where they are") \
    X(RECOMPUTE, "recompute", "only the arguments stay; the layer runs again in backward") \
    X(RECOMPUTE_OFFLOAD_INPUT, "recompute_offload_input", "as recompute, with the arguments on a lower tier") \
    X(RECOMPUTE_JOINED, "recompute_joined", \
      "as recompute, but the layer before runs again with it, as one, and gives it its argument") \
    X(RECOMPUTE_SEGMENT, "recompute_segment", \
      "as recompute, but the argument that the layer before makes is made again, not kept") \
    X(RECOMPUTE_NESTED_2, "recompute_nested_2", "as recompute_segment, in a run inside the run that serves a segment") \
    X(RECOMPUTE_NESTED_3, "recompute_nested_3", \
      "as recompute_segment, in a run inside the run that serves a recompute_nested_2") \
    X(OFFLOAD_HOST, "offload_host", "saved tensors go to host memory and come back in backward") \
    X(OFFLOAD_DISK, "offload_disk", "saved tensors go to disk and come back in backward") \
    MS_SELECTIVE_TABLE(X, , "", "the rest stays") \
    MS_SELECTIVE_TABLE(X, _HOST, "_offload_host", "the rest goes to host memory") \
    MS_SELECTIVE_TABLE(X, _DISK, "_offload_disk", "the rest goes to disk")
typedef enum ms_technique {
#define MS_TECHNIQUE_ENUM(id, name, text) MS_TECHNIQUE_##id,
    MS_TECHNIQUE_TABLE(MS_TECHNIQUE_ENUM)
#undef MS_TECHNIQUE_ENUM
        MS_TECHNIQUE_COUNT
} ms_technique;

enum { MS_SELECTIVE_SETS = 4 };

/* The set that a technique drops, from 1; 0 where it is not a selective one. */
MS_API uint32_t ms_technique_set(ms_technique technique);
/* What happens to the tensors that are not dropped: KEEP, OFFLOAD_HOST or OFFLOAD_DISK;
 * of one that is not selective, itself. */
MS_API ms_technique ms_technique_rest(ms_technique technique);
MS_API bool ms_technique_moves(ms_technique technique);
/* Whether the layer is replayed as a whole. */
MS_API bool ms_technique_replays(ms_technique technique);

/*
 * Segments. A layer whose first argument the layer before gives, by identity, may do without
 * keeping it, if the layer before is replayed too. Two ways to get it back:
 * - joined: the layer before is replayed up to its result when this one asks, and both keep
 *   what they saved: they run again as one, once;
 * - from a run of the layers before, of which nothing but arguments stays. The run starts at
 *   the nearest layer before that has its argument. Which arguments stay is said by nesting:
 *   of the layers that it passes, those of the smallest number among them. So layers of
 *   number 1 are served by one run over the whole segment; those of number 2 by a run over
 *   the part between two of number 1, when backward is in that part; and so on. Each number
 *   costs up to one forward more, and the arguments of a part live only while backward is in it.
 */
enum { MS_NESTING_MOST = 3 };
MS_API bool ms_technique_is_joined(ms_technique technique);
/* 1 to MS_NESTING_MOST; 0: its argument is kept, or it is joined. */
MS_API uint32_t ms_technique_nesting(ms_technique technique);

MS_API const char *ms_technique_name(ms_technique technique);
MS_API const char *ms_technique_text(ms_technique technique);
MS_API int ms_technique_parse(const char *name, ms_technique *technique);

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
