/* Shared by json_read.c and json_write.c only.
 * Tests: tests/c/base/test_json.c. */
#ifndef MS_BASE_JSON_SETUP_H
#define MS_BASE_JSON_SETUP_H

#include <stdbool.h>

/* Routes jansson's allocations through ms_malloc(), once per process. */
void ms__json_setup(void);

/* True if one of jansson's allocations has failed in this thread since the last call of this function. jansson
 * reports most such failures as a syntax error; if a string's buffer can't grow, it drops a character and
 * continues. */
bool ms__json_ran_out_of_memory(void);

#endif
