/*
 * execute_extent.h - handles of saved tensors whose storages go to the lower tier.
 */
#ifndef MS_EXT_EXECUTE_EXTENT_H
#define MS_EXT_EXECUTE_EXTENT_H

#include "execute_handle.h"

/* Sends the tensor; takes over what->storage. NULL without an exception: keep it. */
PyObject *ms_ext_offload(ms_region *region, PyObject *tensor, ms_movable *what);
/* Sends a tensor argument. NULL without an exception: the tensor has to stay. */
PyObject *ms_ext_saved_of_input(ms_region *region, PyObject *tensor);
/* Moves the extent of `sent` to a handle that holds its tensor. Takes the reference to `sent`. */
void ms_ext_become_extent(ms_saved *saved, ms_saved *sent);

#endif
