/*
 * The growing text of text.h. Used by table.c and explain.c only.
 */
#include "plan/text.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/array.h"

void ms__text_add(ms__text *text, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    int wrote = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t added = wrote < 0 ? 0 : (size_t)wrote < sizeof line ? (size_t)wrote : sizeof line - 1;
    if (text->failed || ms__array_reserve(&text->bytes, &text->capacity, text->length + added + 1, 1) != MS_OK) {
        text->failed = true;
        return;
    }
    memcpy(text->bytes + text->length, line, added);
    text->length += added;
    text->bytes[text->length] = '\0';
}

char *ms__text_take(ms__text *text)
{
    if (text->failed) {
        ms_free(text->bytes);
        return NULL;
    }
    return text->bytes;
}
