/*
 * lanes.h - the threads that run handlers. Read and slow lanes have several threads, each with its own
 * connection to the database. The write lane has one: it takes all waiting requests, runs each in a
 * savepoint of one transaction, and releases the answers after the commit. If other servers share the database, an
 * answer's event is part of the transaction.
 */
#ifndef MSS_HTTP_LANES_H
#define MSS_HTTP_LANES_H

#include "http/http.h"
#include "http/shared.h"

enum { MSS_LANE_WAITING_MOST = 1024, MSS_SLOW_WAITING_MOST = 64, MSS_GROUP_MOST = 256 };

/* Called by a lane's thread when a request's answer is final. */
typedef void (*mss_lanes_done)(mss_request *request);

MS_NODISCARD int mss_lanes_open(const mss_settings *settings, mss_lanes_done done, mss_lanes **lanes, ms_error *err);
/* Runs the waiting requests, then ends the threads; from then on nothing can be submitted. */
void mss_lanes_end(mss_lanes *lanes);
/* Calls mss_lanes_end() if that was not done, and frees the lanes. Accepts NULL. */
void mss_lanes_close(mss_lanes *lanes);

/* Puts the request into its lane; first into the slow lane if its route has a `prepare`. If the lane is full or
 * closing, returns false and does nothing. */
MS_NODISCARD bool mss_lanes_submit(mss_lanes *lanes, mss_request *request);

void mss_lanes_touch(mss_lanes *lanes, const mss_id *token);
void mss_lanes_count(mss_lanes *lanes, mss_server_numbers *numbers);

#endif
