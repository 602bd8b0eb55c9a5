/* Shared by the two halves of json.h only. */
#ifndef MS_BASE_JSON_SETUP_H
#define MS_BASE_JSON_SETUP_H

#include <stdbool.h>

/* Routes jansson's allocations through ms_malloc(), once per process. */
void ms__json_setup(void);

/* Whether an allocation of jansson's has failed in this thread since the last
 * call of this function. jansson calls most such failures a syntax error, and
 * where its buffer of a string can't grow it drops a character and goes on. */
bool ms__json_ran_out_of_memory(void);

#endif
