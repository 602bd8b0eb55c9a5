/*
 * outlook.h - will it fit? A run judged before it starts: peak unmodified and planned, the risk of running
 * out of memory, and advice.
 *
 * Called for OOMPredictor and estimate_savings(); pure functions of three documents. Tests:
 * tests/python/test_autotuning.py.
 */
#ifndef MEMSCALE_OUTLOOK_H
#define MEMSCALE_OUTLOOK_H

#include "memscale/frontier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The risk that a run does not fit, from its predicted peak as a share of the capacity. */
#define MS_RISK_TABLE(X) \
    X(LOW, "low", "fits with room to spare") \
    X(MODERATE, "moderate", "fits, but the room is within the error that predictions can have") \
    X(HIGH, "high", "may fit, within the error of the prediction") \
    X(CERTAIN, "certain", "does not fit")
typedef enum ms_risk {
#define MS_RISK_ENUM(id, name, text) MS_RISK_##id,
    MS_RISK_TABLE(MS_RISK_ENUM)
#undef MS_RISK_ENUM
} ms_risk;

/* A risk's name in documents. */
MS_API const char *ms_risk_name(ms_risk risk);

/* Upper limits of the risks, in permille of the capacity. */
enum { MS_RISK_LOW_PERMILLE = 850, MS_RISK_MODERATE_PERMILLE = 950, MS_RISK_HIGH_PERMILLE = 1050 };

/* Without memscale, libc keeps freed memory of a CPU process: this share of its tensors' peak (measured:
 * 8.7 GB resident with 7.7 live). The first step also loads code: torch imports its compiler in the
 * first optimizer step, and kernels are generated. */
enum { MS_LIBC_SLACK_PERMILLE = 150, MS_FIRST_STEP_BYTES = 100000000 };

enum { MS_ADVICE_MOST = 6, MS_ADVICE_TEXT_MAX = 256 };

/* The prediction for a run. */
typedef struct ms_outlook {
    uint64_t capacity_bytes;        /* the budget, or the device's memory */
    uint64_t need_bytes;            /* peak of the unmodified run, libc's share included */
    uint64_t unoptimized_ns;
    ms_risk risk;                   /* of the unmodified run */
    bool is_plannable;              /* some plan fits; the next three describe it */
    uint64_t planned_peak_bytes;
    uint64_t planned_ns;
    ms_risk planned_risk;
    uint64_t smallest_budget_bytes; /* the smallest that a plan of this configuration meets */
    uint64_t batch_permille;        /* the part of this batch that would fit unmodified, roughly; 0: none */
    uint32_t advice_count;
    char advice[MS_ADVICE_MOST][MS_ADVICE_TEXT_MAX];
} ms_outlook;

/*
 * `is_absent`: the model is not in memory yet, so its parameters add to the process's baseline. If `hardware`
 * describes no process (all zeros), assumes one that holds the runtime and the model. MS_ENOMEM; a run that
 * fits nowhere is a result, not an error.
 */
MS_API int ms_outlook_of(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, bool is_absent,
                         ms_outlook *outlook, ms_error *err);
/* {"capacity_bytes": ..., "risk": "high", "advice": [...]}; NULL when out of memory. Free with ms_free(). */
MS_API char *ms_outlook_to_json(const ms_outlook *outlook);

/* The savings of each mode as JSON: the smallest budget that fits, with its peak and step time, beside the
 * unmodified step. Free with ms_free(). */
MS_API int ms_savings_json(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, bool is_absent,
                           char **json, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
