/*
 * reports.h - recognises the page that `executor.report()` writes (src/observability/report.c): HTML whose title is
 * "memscale: " and the model's class. Called by local.c. Reads one file; no state, any thread.
 * Tests: tests/server/test_dashboard.py.
 */
#ifndef MSS_LOCAL_REPORTS_H
#define MSS_LOCAL_REPORTS_H

#include "memscale/base.h"

enum { MSS_REPORT_MODEL_BYTES = 121, MSS_REPORT_MOST_BYTES = 16 * 1024 * 1024 };

typedef struct mss_report {
    char *
        page; /* owned: ms_free(); NULL: the file is no report, is larger than MSS_REPORT_MOST_BYTES, or can't be read */
    size_t bytes;
    char model[MSS_REPORT_MODEL_BYTES]; /* as in HTML: "&lt;" stays */
} mss_report;

/* Whether a file of this name may be a report. */
bool mss_report_may_be(const char *path);
/* MS_ENOMEM. */
MS_NODISCARD int mss_report_read(const char *path, mss_report *report, ms_error *err);

#endif
