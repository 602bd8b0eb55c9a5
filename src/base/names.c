/*
 * Similarity of short names. It takes time in proportion to the product of their lengths.
 */
#include "base/names.h"

#include <string.h>

enum { LENGTH_MOST = 64 };

/* Length of the longest common subsequence, row by row. */
static size_t common_length(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t row[LENGTH_MOST + 1] = {0};
    for (size_t i = 0; i < a_length; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < b_length; j++) {
            size_t above = row[j + 1];
            size_t skipped = above > row[j] ? above : row[j];
            row[j + 1] = a[i] == b[j] ? diagonal + 1 : skipped;
            diagonal = above;
        }
    }
    return row[b_length];
}

uint32_t ms__names_similarity_permille(const char *a, const char *b)
{
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length == 0 || b_length == 0 || a_length > LENGTH_MOST || b_length > LENGTH_MOST) {
        return 0;
    }
    return (uint32_t)(2000 * common_length(a, a_length, b, b_length) / (a_length + b_length));
}
