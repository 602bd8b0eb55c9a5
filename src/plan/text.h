/*
 * A growing text for the table and the explanations. It remembers its first failure; ms__text_take() then
 * returns NULL. Tests: tests/c/plan/test_plan_json.c.
 */
#ifndef MS_PLAN_TEXT_H
#define MS_PLAN_TEXT_H

#include "memscale/base.h"

typedef struct ms__text {
    char *bytes;
    size_t length, capacity;
    bool failed;
} ms__text;

void ms__text_add(ms__text *text, const char *fmt, ...) MS_PRINTF(2, 3);
/* Takes the text; NULL after a failure. Free it with ms_free(). */
char *ms__text_take(ms__text *text);

#endif
