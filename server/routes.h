/* routes.h - the one table of routes. */
#ifndef MSS_ROUTES_H
#define MSS_ROUTES_H

#include "http/http.h"

const mss_route *mss_routes(size_t *count);

/* The table as a JSON array, for tests that walk it. Free it. NULL if out of memory. */
char *mss_routes_json(void);

#endif
