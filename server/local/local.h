/*
 * local.h - the local dashboard. A thread reads the JSON-lines logs below a folder
 * (docs/formats/log.schema.json) while they grow, the latest first, into its own database. The server's
 * usual pages show it. Called by main.c. Writes nothing but that database.
 *
 * In a log, each plan begins a run, and so does a first step without a plan; later steps belong to it. It ends as its log
 * says, or has stopped if its file got no new line for MSS_LOCAL_QUIET_S, as after kill -9. A report (reports.h) belongs
 * to the last run of the log of the same name, such as run.log for run.html, or is a run of its own.
 */
#ifndef MSS_LOCAL_LOCAL_H
#define MSS_LOCAL_LOCAL_H

#include "http/http.h"

enum { MSS_LOCAL_QUIET_S = 600, MSS_LOCAL_LINE_MOST = 16 * 1024 * 1024 };

typedef struct mss_local mss_local;

/* Makes the schema, and the account of all clients: a viewer of the only team. */
MS_NODISCARD int mss_local_prepare(const char *database, mss_id *account, ms_error *err);

/* Begins to read. `folder` and `database` live until mss_local_stop(). MS_ESYSTEM if the folder can't be read. */
MS_NODISCARD int mss_local_start(const char *folder, const char *database, mss_server *server, mss_local **local,
                                 ms_error *err);
/* Accepts NULL. */
void mss_local_stop(mss_local *local);

#endif
