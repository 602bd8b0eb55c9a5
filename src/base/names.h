/*
 * How alike two names are, so that a message about a misspelled one can name the one that
 * was probably meant.
 */
#ifndef MS_BASE_NAMES_H
#define MS_BASE_NAMES_H

#include <stdint.h>

/* From this similarity on, one is worth naming for the other. */
enum { MS__NAMES_ALIKE_PERMILLE = 600 };

/*
 * 2 x the longest common subsequence over both lengths together, in permille: the measure
 * and threshold of Python's difflib, but for its blocks. 0 where a name is empty or has
 * more than 64 bytes.
 */
uint32_t ms__names_similarity_permille(const char *a, const char *b);

#endif
