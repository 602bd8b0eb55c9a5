/*
 * live.h - those who watch runs: each is a suspended connection whose stream of events
 * (text/event-stream) goes on when its run is told of. A viewer that reads too slowly is told "reload"
 * instead of what it missed. Thread-safe.
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
/* Ends every stream. No connection may be begun any more. */
void mss_live_end(mss_live *live);
void mss_live_close(mss_live *live);

/* The response that streams a run's events over the connection; NULL where there are too many viewers or
 * memory is out. */
struct MHD_Response *mss_live_watch(mss_live *live, const mss_id *run, struct MHD_Connection *connection);

/* Tells the viewers of `run`: `data` is one line of JSON. */
void mss_live_tell(mss_live *live, const mss_id *run, const char *data);

uint64_t mss_live_count(mss_live *live);

#endif
