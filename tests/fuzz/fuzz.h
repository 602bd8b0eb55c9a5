/*
 * Shared by the fuzz targets of documents: the input as text, and checks that abort on a broken promise.
 */
#ifndef MS_FUZZ_H
#define MS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memscale/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Fuzzers detect a broken promise by the abort. */
#define FUZZ_CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

/* The input as text, to be freed with free(). */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_CHECK(text != NULL);
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    return text;
}

/* A refusal has a code and one line of text. */
static inline void fuzz_check_refusal(int rc, const ms_error *err)
{
    FUZZ_CHECK(rc < 0 && err->code == rc);
    FUZZ_CHECK(err->text[0] != '\0' && strchr(err->text, '\n') == NULL);
}

#endif
