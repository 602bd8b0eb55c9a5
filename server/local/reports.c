#include "local/reports.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 1024 }; /* the title is in the first line of the page's head */

bool mss_report_may_be(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".html") == 0;
}

static bool read_title(const char *page, size_t bytes, char model[MSS_REPORT_MODEL_BYTES])
{
    static const char begin[] = "<title>memscale: ", end[] = "</title>";
    size_t head = bytes < HEAD_BYTES ? bytes : HEAD_BYTES;
    const char *title = memmem(page, head, begin, sizeof begin - 1);
    const char *name = title != NULL ? title + sizeof begin - 1 : NULL;
    const char *behind = name != NULL ? memmem(name, head - (size_t)(name - page), end, sizeof end - 1) : NULL;
    if (behind == NULL || behind == name || behind - name >= MSS_REPORT_MODEL_BYTES) {
        return false;
    }
    snprintf(model, MSS_REPORT_MODEL_BYTES, "%.*s", (int)(behind - name), name);
    return true;
}

static size_t read_whole(int descriptor, char *page, size_t most)
{
    size_t bytes = 0;
    ssize_t got = 1;
    while (got > 0 && bytes < most) {
        got = pread(descriptor, page + bytes, most - bytes, (off_t)bytes);
        bytes += got > 0 ? (size_t)got : 0;
    }
    return bytes;
}

int mss_report_read(const char *path, mss_report *report, ms_error *err)
{
    struct stat status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc = MS_OK;
    *report = (mss_report){0};
    if (descriptor >= 0 && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
        status.st_size <= MSS_REPORT_MOST_BYTES) {
        report->page = ms_malloc((size_t)status.st_size);
        rc = report->page != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "dashboard: out of memory for a report");
        report->bytes = rc == MS_OK ? read_whole(descriptor, report->page, (size_t)status.st_size) : 0;
        if (rc == MS_OK && !read_title(report->page, report->bytes, report->model)) {
            ms_free(report->page);
            report->page = NULL;
        }
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return rc;
}
