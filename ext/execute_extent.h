/*
 * execute_extent.h - handles of saved tensors whose storages go to the lower tier.
 */
#ifndef MS_EXT_EXECUTE_EXTENT_H
#define MS_EXT_EXECUTE_EXTENT_H

#include "execute_handle.h"

/* Sends the tensor; takes over what->storage. NULL without an exception: keep it. */
PyObject *ms_ext_offload(ms_region *region, PyObject *tensor, ms_movable *what);
/* A handle of a tensor argument that is sent; NULL without an exception: it has to stay. */
PyObject *ms_ext_saved_of_input(ms_region *region, PyObject *tensor);
/* A handle that holds its tensor takes over the extent of `sent`, whose reference it takes. */
void ms_ext_become_extent(ms_saved *saved, ms_saved *sent);

#endif
