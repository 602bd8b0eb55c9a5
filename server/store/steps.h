/*
 * steps.h - the steps of a run: read from JSON, stored one batch per row, thinned for charts. All are pure
 * functions but mss_steps_load() and mss_run_append().
 *
 * A batch is stored column by column. Each value is stored as its difference to the previous one, a zigzag
 * varint. So 100 steps take about 1 kB.
 */
#ifndef MSS_STORE_STEPS_H
#define MSS_STORE_STEPS_H

#include "base/array.h"
#include "base/json.h"
#include "store/sql.h"

/* The members of a step, as in a log line's "step" (docs/formats/log.schema.json): first the step's number, then
 * bytes and nanoseconds. The last column: a chart's point is the largest value of its steps, or their mean. */
#define MSS_STEP_TABLE(X) \
    X(NUMBER, "step", LARGEST) \
    X(NS, "step_ns", MEAN) \
    X(PEAK, "peak_bytes", LARGEST) \
    X(RESIDENT, "resident_bytes", LARGEST) \
    X(TIER, "tier_bytes", LARGEST) \
    X(PREDICTED_PEAK, "predicted_peak_bytes", LARGEST) \
    X(PREDICTED_NS, "predicted_step_ns", MEAN) \
    X(BUDGET, "budget_bytes", LARGEST)

typedef enum mss_step_column {
#define MSS_STEP_ENUM(id, name, merge) MSS_STEP_##id,
    MSS_STEP_TABLE(MSS_STEP_ENUM)
#undef MSS_STEP_ENUM
        MSS_STEP_COLUMNS
} mss_step_column;

enum { MSS_BATCH_STEPS_MOST = 1000, MSS_POINTS_MOST = 5000 };
/* The column's name in JSON. */
const char *mss_step_column_name(mss_step_column column);

/* 4 EB, 146 years: more than any machine needs, and small enough that a run's sums don't overflow. */
#define MSS_STEP_VALUE_MOST ((uint64_t)1 << 62)

/* UINT64_MAX: unknown. The step's number is always known and at least 1. */
typedef struct mss_step {
    uint64_t value[MSS_STEP_COLUMNS];
} mss_step;

typedef MS__ARRAY(mss_step) mss_steps;

/* Reads the object `name` of `object`: {"step": [...], "step_ns": [...], ...}, columns of equal length. "step" is
 * required and has 1 to MSS_BATCH_STEPS_MOST rising numbers; null means unknown. MS_EFORMAT, MS_ENOMEM. */
MS_NODISCARD int mss_steps_read(const ms__json_at *object, const char *name, mss_steps *steps);

/* The stored form; free it with ms_free(). MS_ENOMEM. */
MS_NODISCARD int mss_steps_pack(const mss_steps *steps, unsigned char **data, size_t *bytes, ms_error *err);

/* Appends `count` steps of the stored form. If it is damaged: MS_EFORMAT, and `steps` is unchanged. */
MS_NODISCARD int mss_steps_unpack(const void *data, size_t bytes, size_t count, mss_steps *steps, ms_error *err);

/* Stores a batch and updates its run's row, in the caller's transaction. The caller has checked that sequence and
 * first step follow the run's last ones. */
MS_NODISCARD int mss_run_append(mss_sql *sql, const char *run, uint64_t sequence, const mss_steps *steps,
                                ms_error *err);

/* All steps of a run after number `after`. */
MS_NODISCARD int mss_steps_load(mss_sql *sql, const char *run, uint64_t after, mss_steps *steps, ms_error *err);

/* Merges neighbours until at most `points` (at least 1) are left; returns the number of steps in a point. */
size_t mss_steps_thin(mss_steps *steps, size_t points);

/* {"step": [...], "step_ns": [...], ...}, with null for unknown values. NULL if out of memory. */
json_t *mss_steps_json(const mss_steps *steps);

#endif
