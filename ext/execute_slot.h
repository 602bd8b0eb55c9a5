/*
 * execute_slot.h - handles of tensors that a replay of their layer recomputes.
 */
#ifndef MS_EXT_EXECUTE_SLOT_H
#define MS_EXT_EXECUTE_SLOT_H

#include "execute_handle.h"

int ms_ext_slot_init(PyObject *module);

/* A handle of a slot in the region's frame; a kept one if the tensor stays. */
PyObject *ms_ext_save_slot(ms_region *region, PyObject *tensor);

/* During a replay: fills the slot that this tensor belongs to and returns the handle for the replay's own
 * graph. Raises ms_ext_replay_stop once every missing tensor is recomputed. */
PyObject *ms_ext_capture_slot(ms_region *region, PyObject *tensor);

/* The exception that ends a replay early. */
extern PyObject *ms_ext_replay_stop;

#endif
