/*
 * execute_pack.h - the saved-tensor hooks of a region.
 */
#ifndef MS_EXT_EXECUTE_PACK_H
#define MS_EXT_EXECUTE_PACK_H

#include "execute_selective.h"
#include "execute_slot.h"
#include "execute_values.h"

/* Pushes the pack and unpack of a region, or those of its replay if `is_capture`. -1 with an exception. */
int ms_ext_push_hooks(ms_region *region, bool is_capture);
int ms_ext_pop_hooks(void);

#endif
