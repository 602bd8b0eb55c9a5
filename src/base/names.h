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
 * 2 x the length of the longest common subsequence, divided by the sum of both lengths, in
 * permille. Measure and threshold are those of Python's difflib, except that difflib matches
 * blocks. 0 if a name is empty or has more than 64 bytes.
 */
uint32_t ms__names_similarity_permille(const char *a, const char *b);

#endif
