/* Shared by the two halves of json.h only. */
#ifndef MS_BASE_JSON_SETUP_H
#define MS_BASE_JSON_SETUP_H

/* Routes jansson's allocations through ms_malloc(), once per process. */
void ms__json_setup(void);

#endif
