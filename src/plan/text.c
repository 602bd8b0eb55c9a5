/*
 * The growing text of text.h. Used by table.c and explain.c only.
 */
#include "plan/text.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/array.h"

void ms__text_add(ms__text *text, const char *fmt, ...)
{
    char line[512]; /* most are short; names from documents may have any length */
    va_list args;
    line[0] = '\0';
    va_start(args, fmt);
    int wrote = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t added = wrote < 0 ? 0 : (size_t)wrote;
    if (text->failed || ms__array_reserve(&text->bytes, &text->capacity, text->length + added + 1, 1) != MS_OK) {
        text->failed = true;
        return;
    }
    if (added < sizeof line) {
        memcpy(text->bytes + text->length, line, added + 1);
    } else {
        va_start(args, fmt);
        vsnprintf(text->bytes + text->length, added + 1, fmt, args);
        va_end(args);
    }
    text->length += added;
}

char *ms__text_take(ms__text *text)
{
    if (text->failed) {
        ms_free(text->bytes);
        return NULL;
    }
    return text->bytes;
}
