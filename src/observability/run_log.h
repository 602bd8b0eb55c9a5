/*
 * run_log.h - a run's log (docs/formats/log.schema.json) as a server takes it: whole lines, the four kinds that
 * matter, and steps in batches. It sends nothing itself.
 *
 * A log may grow while it is read. A line that has no end yet is left for a later call. A line that is no line of a
 * log (torn by a crash, longer than MS__LINE_MOST_BYTES) is MS__LINE_FOREIGN, and reading goes on behind it.
 * Tests: tests/c/observability/test_run_log.c, tests/fuzz/fuzz_run_log.c.
 */
#ifndef MS_OBSERVABILITY_RUN_LOG_H
#define MS_OBSERVABILITY_RUN_LOG_H

#include <sys/types.h>

#include "base/json.h"

enum { MS__LINE_MOST_BYTES = 16 * 1024 * 1024, MS__BATCH_STEPS_MOST = 1000 };
/* The largest value of a step that servers take. */
#define MS__STEP_VALUE_MOST ((uint64_t)1 << 62)

/* ---- lines ---------------------------------------------------------------- */

/* Members of the "step" of a line that are sent: bytes and nanoseconds behind the step's number. */
#define MS__STEP_TABLE(X) \
    X(NUMBER, "step") \
    X(NS, "step_ns") \
    X(PEAK, "peak_bytes") \
    X(RESIDENT, "resident_bytes") \
    X(TIER, "tier_bytes") \
    X(PREDICTED_PEAK, "predicted_peak_bytes") \
    X(PREDICTED_NS, "predicted_step_ns") \
    X(BUDGET, "budget_bytes")

typedef enum ms__step_column {
#define MS__STEP_ENUM(id, name) MS__STEP_##id,
    MS__STEP_TABLE(MS__STEP_ENUM)
#undef MS__STEP_ENUM
        MS__STEP_COLUMNS
} ms__step_column;

/* UINT64_MAX: not known. The number is always known, and at least 1. */
typedef struct ms__step {
    uint64_t value[MS__STEP_COLUMNS];
} ms__step;

typedef enum ms__line_kind {
    MS__LINE_FOREIGN, /* not a line of a log */
    MS__LINE_OTHER,   /* of a log, but nothing that a server takes; a step without a number too */
    MS__LINE_BEGIN,   /* "plan": a run begins */
    MS__LINE_STEP,    /* "step" */
    MS__LINE_END,     /* "finish": the run has ended; "continued": its next lines are in another file */
} ms__line_kind;

typedef struct ms__line {
    ms__line_kind kind;
    ms__step step; /* of STEP */
    json_t *tree;  /* of BEGIN and END, else NULL; owned by the caller */
} ms__line;

/* Reads one line, without its newline. MS_ENOMEM; any text is some kind of line. */
MS_NODISCARD int ms__line_read(const char *text, size_t length, ms__line *line, ms_error *err);

/* ---- files ------------------------------------------------------------------ */

/* A log that is read line by line. All zero but `path` (borrowed) is one that was not read yet. */
typedef struct ms__run_log {
    const char *path;
    uint64_t next_bytes;   /* where the next line begins */
    bool has_begun_anew;   /* the file was replaced or cut since the last call: what was read is of another log */
    /* run_log.c's: */
    int fd;
    bool is_open, is_in_long_line;
    dev_t device;
    ino_t file;
    char *buffer;
    size_t room, held, taken; /* bytes: of the buffer, in it, and of lines that were given out */
} ms__run_log;

/* The next whole line. `*text` lies in the log's buffer until the next call, and is not ended by NUL; it is NULL if
 * there is no further whole line now, and the file is then closed until the next call. A line that is too long is given
 * as an empty one. MS_ESYSTEM if the file can't be read or is no regular file, MS_EIO, MS_ENOMEM. */
MS_NODISCARD int ms__run_log_next(ms__run_log *log, const char **text, size_t *length, ms_error *err);

/* Makes the line that begins at this byte the next one. */
void ms__run_log_go_to(ms__run_log *log, uint64_t next_bytes);

/* Closes the file and frees the buffer. A later call opens it again. */
void ms__run_log_rest(ms__run_log *log);

/* ---- batches ---------------------------------------------------------------- */

/* {"sequence": n, "columns": {...}} of `count` steps, 1 to MS__BATCH_STEPS_MOST, compact, to be freed with ms_free().
 * A column of which nothing is known is left out. NULL when out of memory. */
char *ms__batch_text(const ms__step *steps, size_t count, uint64_t sequence);

#endif
