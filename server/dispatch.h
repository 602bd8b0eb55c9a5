/*
 * dispatch.h - the checks before a handler: the client's identity, the form's token, the object's team, the
 * permission, the limits of account and token. A handler runs only if all have passed.
 */
#ifndef MSS_DISPATCH_H
#define MSS_DISPATCH_H

#include "http/http.h"

/* Runs the request's handler, or its `prepare`; returns the answer's status. */
int mss_dispatch(mss_request *request, bool is_preparing);

#endif
