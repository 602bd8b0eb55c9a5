/*
 * live.h - the viewers of runs. Each is a suspended connection with a stream of events
 * (text/event-stream), which is resumed when its run has news. A viewer that reads too slowly gets
 * "reload" in place of the events that it missed. Thread-safe.
 */
#ifndef MSS_HTTP_LIVE_H
#define MSS_HTTP_LIVE_H

#include "http/http.h"

struct MHD_Connection;
struct MHD_Response;

enum { MSS_VIEWERS_MOST = 4096, MSS_VIEWER_PENDING_BYTES = 64 * 1024 };
/* A comment keeps proxies from closing a quiet stream; a stream ends after a while, so that a viewer whose
 * session has ended asks again and is refused. */
enum { MSS_HEARTBEAT_S = 15, MSS_STREAM_S = 600 };

MS_NODISCARD int mss_live_open(mss_live **live, ms_error *err);
/* Ends every stream. From then on no connection may begin. */
void mss_live_end(mss_live *live);
void mss_live_close(mss_live *live);

/* The response that streams a run's events over the connection; NULL if there are too many viewers or no
 * memory. */
struct MHD_Response *mss_live_watch(mss_live *live, const mss_id *run, struct MHD_Connection *connection);

/* Sends `data`, one line of JSON, to the viewers of `run`. */
void mss_live_tell(mss_live *live, const mss_id *run, const char *data);

/* Tells all viewers to look again: events may have been missed. */
void mss_live_missed(mss_live *live);

uint64_t mss_live_count(mss_live *live);

#endif
