/*
 * lanes.h - the threads that run handlers. Read and slow lanes have several threads, each with a
 * connection of its own; the write lane has one, which takes everything that waits, runs each request
 * in a savepoint of one transaction, and lets the answers go after the commit.
 */
#ifndef MSS_HTTP_LANES_H
#define MSS_HTTP_LANES_H

#include "http/http.h"

enum { MSS_LANE_WAITING_MOST = 1024, MSS_SLOW_WAITING_MOST = 64, MSS_GROUP_MOST = 256 };

/* Called by a lane's thread when a request's answer is final. */
typedef void (*mss_lanes_done)(mss_request *request);

MS_NODISCARD int mss_lanes_open(const mss_settings *settings, mss_lanes_done done, mss_lanes **lanes, ms_error *err);
/* Runs what waits, then ends the threads; from then on nothing can be submitted. */
void mss_lanes_end(mss_lanes *lanes);
/* Ends them where that was not done, and frees. Accepts NULL. */
void mss_lanes_close(mss_lanes *lanes);

/* Puts the request into its lane: the slow one first where its route prepares. False where that is full or
 * closing; then nothing happens. */
MS_NODISCARD bool mss_lanes_submit(mss_lanes *lanes, mss_request *request);

void mss_lanes_touch(mss_lanes *lanes, const mss_id *token);
void mss_lanes_count(mss_lanes *lanes, mss_server_numbers *numbers);

#endif
