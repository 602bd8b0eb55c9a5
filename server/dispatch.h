/*
 * dispatch.h - what happens to every request before its handler: who asks, the form's token, the object's
 * team, the permission, the buckets of account and token. No handler runs unless all of it has passed.
 */
#ifndef MSS_DISPATCH_H
#define MSS_DISPATCH_H

#include "http/http.h"

/* Runs the request's handler, or its `prepare`; gives the status of the answer. */
int mss_dispatch(mss_request *request, bool is_preparing);

#endif
