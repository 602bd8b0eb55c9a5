/*
 * steps.h - the steps of a run: read from JSON, stored a batch per row, drawn as so many points. Pure
 * functions of their arguments, but for mss_steps_load().
 *
 * A batch is stored column by column; in a column each value is the difference to the one before, as a
 * zigzag varint. 100 steps take about 1 kB so.
 */
#ifndef MSS_STORE_STEPS_H
#define MSS_STORE_STEPS_H

#include "base/array.h"
#include "base/json.h"
#include "store/sql.h"

/* The members of a step, as in the "step" of a log line (docs/formats/log.schema.json): the step's number
 * first, then bytes and nanoseconds. How several steps become one point of a chart: their largest or mean. */
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
/* Beyond any machine, and small enough that a run's sums fit: 4 EB, 146 years. */
#define MSS_STEP_VALUE_MOST ((uint64_t)1 << 62)

/* UINT64_MAX: not known. A number is always known, and at least 1. */
typedef struct mss_step {
    uint64_t value[MSS_STEP_COLUMNS];
} mss_step;

typedef MS__ARRAY(mss_step) mss_steps;

/* Reads the object `name` of `object`: {"step": [...], "step_ns": [...], ...}, columns of equal length. "step" is
 * needed, its 1 to MSS_BATCH_STEPS_MOST numbers rise; null is a value that is not known. MS_EFORMAT, MS_ENOMEM. */
MS_NODISCARD int mss_steps_read(const ms__json_at *object, const char *name, mss_steps *steps);

/* The stored form, to be freed with ms_free(). MS_ENOMEM. */
MS_NODISCARD int mss_steps_pack(const mss_steps *steps, unsigned char **data, size_t *bytes, ms_error *err);

/* Appends `count` steps of the stored form. MS_EFORMAT where it is damaged, with the steps as they were. */
MS_NODISCARD int mss_steps_unpack(const void *data, size_t bytes, size_t count, mss_steps *steps, ms_error *err);

/* Stores a batch, and what it changes in its run's row: within a transaction of the caller's, who knows that the
 * sequence and the first step follow the run's last. */
MS_NODISCARD int mss_run_append(mss_sql *sql, const char *run, uint64_t sequence, const mss_steps *steps,
                                ms_error *err);

/* All steps of a run behind number `after`. */
MS_NODISCARD int mss_steps_load(mss_sql *sql, const char *run, uint64_t after, mss_steps *steps, ms_error *err);

/* Merges neighbours until at most `points` (at least 1) are left; gives how many steps a point holds. */
size_t mss_steps_thin(mss_steps *steps, size_t points);

/* {"step": [...], "step_ns": [...], ...}: null for what is not known. NULL where memory is out. */
json_t *mss_steps_json(const mss_steps *steps);

#endif
