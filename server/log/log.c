#include "log/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"

int64_t mss_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void mss_time_text(int64_t time_ms, char text[MSS_TIME_TEXT_BYTES])
{
    struct tm parts;
    time_t seconds = (time_t)(time_ms / 1000);
    gmtime_r(&seconds, &parts);
    size_t length = strftime(text, MSS_TIME_TEXT_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text + length, MSS_TIME_TEXT_BYTES - length, ".%03dZ", (int)(time_ms % 1000));
}

/* One write per line, so that lines of threads don't mix. A log that can't be written stops nothing. */
static void write_line(ms__json_writer *writer, json_t *line)
{
    char *text = writer->code == MS_OK ? ms__json_text(line, true) : NULL;
    json_decref(line);
    if (text == NULL) {
        return;
    }
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the NUL: the length is known */
    ssize_t written = write(STDERR_FILENO, text, length + 1);
    (void)written;
    ms_free(text);
}

static json_t *begin_line(ms__json_writer *writer, ms_log_level level)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char time[MSS_TIME_TEXT_BYTES];
    mss_time_text(mss_now_ms(), time);
    json_t *line = ms__json_new(writer);
    ms__json_put_string(writer, line, "time", time);
    ms__json_put_string(writer, line, "level", names[level]);
    return line;
}

static void put_known(ms__json_writer *writer, json_t *line, const char *name, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        ms__json_put_string(writer, line, name, text);
    }
}

void mss_log_request_done(const mss_log_request *request)
{
    ms__json_writer writer = {0};
    json_t *line = begin_line(&writer, request->status >= 500 ? MS_LOG_ERROR : MS_LOG_INFO);
    put_known(&writer, line, "request", request->id);
    put_known(&writer, line, "method", request->method);
    put_known(&writer, line, "route", request->route);
    ms__json_put_u64(&writer, line, "status", (uint64_t)request->status);
    ms__json_put_u64(&writer, line, "duration_us", request->duration_ns / 1000);
    ms__json_put_u64(&writer, line, "sent_bytes", request->sent_bytes);
    put_known(&writer, line, "address", request->address);
    put_known(&writer, line, "account", request->account);
    put_known(&writer, line, "reason", request->reason);
    write_line(&writer, line);
}

void mss_log_event(ms_log_level level, const char *fmt, ...)
{
    char text[MS__LOG_LINE_MAX];
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(text, sizeof text, fmt, arguments);
    va_end(arguments);
    ms__json_writer writer = {0};
    json_t *line = begin_line(&writer, level);
    ms__json_put_string(&writer, line, "message", text);
    write_line(&writer, line);
}
