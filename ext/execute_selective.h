/*
 * execute_selective.h - saved tensors of layers in which single operators recompute some of them.
 */
#ifndef MS_EXT_EXECUTE_SELECTIVE_H
#define MS_EXT_EXECUTE_SELECTIVE_H

#include "execute_waiting.h"

/* A handle of a tensor of a selective layer: dropped, moved or kept, as the plan says. */
PyObject *ms_ext_save_selective(ms_region *region, PyObject *tensor);

#endif
