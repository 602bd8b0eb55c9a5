/*
 * The error table, and the two functions that fill an ms_error. Nothing here allocates or fails.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

typedef struct error_row {
    int code;
    const char *name;
    const char *exception;
    const char *text;
} error_row;

static const error_row error_table[] = {{MS_OK, "MS_OK", "", "no error"},
#define ERROR_ROW(name, value, exception, text) {value, #name, exception, text},
                                        MS_ERROR_TABLE(ERROR_ROW)
#undef ERROR_ROW
};

static const error_row error_unknown = {0, "MS_E?", "MemScaleError", "unknown error code"};

static const error_row *error_find(int code)
{
    for (size_t i = 0; i < sizeof error_table / sizeof error_table[0]; i++) {
        if (error_table[i].code == code) {
            return &error_table[i];
        }
    }
    return &error_unknown;
}

const char *ms_error_name(int code)
{
    return error_find(code)->name;
}

const char *ms_error_text(int code)
{
    return error_find(code)->text;
}

const char *ms_error_exception(int code)
{
    return error_find(code)->exception;
}

/* Errors quote names from documents and of files, which may hold any bytes. */
void ms__keep_to_one_line(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7F) {
            *text = ' ';
        }
    }
}

MS_PRINTF(4, 0)
static void error_fill(ms_error *err, int code, int system_errno, const char *fmt, va_list args)
{
    /* The arguments may point into the old text of the same error. */
    char text[MS_ERROR_TEXT_MAX];
    vsnprintf(text, sizeof text, fmt, args);
    ms__keep_to_one_line(text);
    memcpy(err->text, text, sizeof text);
    err->code = code;
    err->system_errno = system_errno;
    err->hint_bytes = 0;
}

int ms_fail(ms_error *err, int code, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        error_fill(err, code, 0, fmt, args);
        va_end(args);
    }
    return code;
}

static int code_for_errno(int code, int system_errno)
{
    if (system_errno == ENOSPC || system_errno == EDQUOT || system_errno == EFBIG) {
        return MS_ENOSPC;
    }
    return system_errno == ENOMEM ? MS_ENOMEM : code;
}

int ms_fail_errno(ms_error *err, int code, int system_errno, const char *fmt, ...)
{
    code = code_for_errno(code, system_errno);
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        error_fill(err, code, system_errno, fmt, args);
        va_end(args);
        char reason[128];
        /* The GNU variant returns the text, which may lie outside the buffer. */
        const char *reason_text = strerror_r(system_errno, reason, sizeof reason);
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s (errno %d)", reason_text, system_errno);
    }
    return code;
}
