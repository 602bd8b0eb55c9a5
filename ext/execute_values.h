/*
 * execute_values.h - the values of saved tensors of replayed layers, read in forward and compared in the replay.
 */
#ifndef MS_EXT_EXECUTE_VALUES_H
#define MS_EXT_EXECUTE_VALUES_H

#include "execute_handle.h"

/* A tensor was saved in this slot: in forward its values are remembered, in a replay compared. One that its operator
 * may fill afterwards is read when the operator is over. -1 with an exception: they differ. */
int ms_ext_values_saved(ms_region *region, uint32_t slot, PyObject *tensor);

/* Reads the tensors whose operator is over; with `all` every one that waits. -1 with an exception. */
int ms_ext_values_settle(ms_region *region, bool all);

/* Forgets those that wait. */
void ms_ext_values_forget(ms_region *region);

#endif
