/*
 * execute_waiting.h - saved tensors on their way to the lower tier: sent at once, or when they are written.
 */
#ifndef MS_EXT_EXECUTE_WAITING_H
#define MS_EXT_EXECUTE_WAITING_H

#include "execute_extent.h"

/* A handle of a tensor that is sent, now or once it is written; a kept one if it can't be. */
PyObject *ms_ext_save_extent(ms_region *region, PyObject *tensor);
/* Sends what waits in a region: the operator that saved it is over. Leaves no exception; what can't be sent
 * is kept. */
void ms_ext_send_waiting(ms_region *region);

#endif
