/* routes.h - the one table of all that the server answers. */
#ifndef MSS_ROUTES_H
#define MSS_ROUTES_H

#include "http/http.h"

const mss_route *mss_routes(size_t *count);

/* The table as a JSON array, for tests that walk it; to be freed. NULL where memory is out. */
char *mss_routes_json(void);

#endif
