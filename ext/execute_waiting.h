/*
 * execute_waiting.h - saved tensors for the lower tier: sends them at once, or when they are written.
 */
#ifndef MS_EXT_EXECUTE_WAITING_H
#define MS_EXT_EXECUTE_WAITING_H

#include "execute_extent.h"

/* Sends a tensor, now or once it is written, and returns its handle; a kept one if the tensor can't be sent. */
PyObject *ms_ext_save_extent(ms_region *region, PyObject *tensor);
/* Sends the waiting tensors of a region, whose operator is over. No exception is left set; tensors that can't be
 * sent are kept. */
void ms_ext_send_waiting(ms_region *region);

#endif
