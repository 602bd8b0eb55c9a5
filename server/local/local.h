/*
 * local.h - the dashboard for one: a thread reads the JSON-lines logs below a folder
 * (docs/formats/log.schema.json) as they grow, the latest first, into a database of its own, which the
 * server's usual pages show. Called by main.c. It writes nothing but that database.
 *
 * A run begins with each plan that a log tells, or with its first step; every later step is of it. A log
 * does not tell its end: a run whose file had no new line for MSS_LOCAL_QUIET_S has stopped.
 */
#ifndef MSS_LOCAL_LOCAL_H
#define MSS_LOCAL_LOCAL_H

#include "http/http.h"

enum { MSS_LOCAL_QUIET_S = 600, MSS_LOCAL_LINE_MOST = 16 * 1024 * 1024 };

typedef struct mss_local mss_local;

/* The database's schema, and the account that everyone is: a viewer of the one team. */
MS_NODISCARD int mss_local_prepare(const char *database, mss_id *account, ms_error *err);

/* Begins to read. `folder` and `database` live until mss_local_stop(). MS_ESYSTEM where the folder can't be read. */
MS_NODISCARD int mss_local_start(const char *folder, const char *database, mss_server *server, mss_local **local,
                                 ms_error *err);
/* Accepts NULL. */
void mss_local_stop(mss_local *local);

#endif
