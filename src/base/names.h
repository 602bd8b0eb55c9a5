/*
 * Similarity of two names: a message about a misspelled name suggests the likely one.
 * Tests: tests/c/base/test_names.c.
 */
#ifndef MS_BASE_NAMES_H
#define MS_BASE_NAMES_H

#include <stdint.h>

/* The least similarity at which a message suggests a name. */
enum { MS__NAMES_ALIKE_PERMILLE = 600 };

/*
 * 2 x the longest common subsequence over both lengths together, in permille: the measure
 * and threshold of Python's difflib, but for its blocks. 0 if a name is empty or has
 * more than 64 bytes.
 */
uint32_t ms__names_similarity_permille(const char *a, const char *b);

#endif
