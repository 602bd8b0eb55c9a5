/*
 * execute_values.h - the values of saved tensors of replayed layers, read in forward and compared in the replay.
 */
#ifndef MS_EXT_EXECUTE_VALUES_H
#define MS_EXT_EXECUTE_VALUES_H

#include "execute_handle.h"

/* Call this for each tensor saved in a slot. It remembers the values in forward and compares them in a replay. A tensor
 * that its operator may fill after saving it is read once the operator is over. -1 with an exception if values
 * differ. */
int ms_ext_values_saved(ms_region *region, uint32_t slot, PyObject *tensor);

/* Reads the waiting tensors if their operator is over, or if `all` is true. -1 with an exception. */
int ms_ext_values_settle(ms_region *region, bool all);

/* Forgets the waiting tensors. */
void ms_ext_values_forget(ms_region *region);

#endif
