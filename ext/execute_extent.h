/*
 * execute_extent.h - handles of saved tensors whose storages go to the lower tier.
 */
#ifndef MS_EXT_EXECUTE_EXTENT_H
#define MS_EXT_EXECUTE_EXTENT_H

#include "execute_handle.h"

/* Sends the tensor and returns its handle; takes over what->storage. NULL without an exception: keep the tensor. */
PyObject *ms_ext_offload(ms_region *region, PyObject *tensor, ms_movable *what);
/* Sends a tensor argument and returns its handle. NULL without an exception: it must stay. */
PyObject *ms_ext_saved_of_input(ms_region *region, PyObject *tensor);
/* `saved`, a handle that holds its tensor, takes over the extent of `sent` and the reference to `sent`. */
void ms_ext_become_extent(ms_saved *saved, ms_saved *sent);

#endif
