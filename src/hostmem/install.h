/*
 * install.h - takes the allocator's slots and restores them.
 *
 * Called by the public functions in hostmem.c; heap.c counts the bytes.
 *
 * Tests: tests/c/hostmem/test_slots.c, test_interposer.c, test_fixed_addresses.c.
 */
#ifndef MS_HOSTMEM_INSTALL_H
#define MS_HOSTMEM_INSTALL_H

#include "memscale/hostmem.h"

int ms__install(const char *library, ms_hostmem_means *means, ms_error *err);
void ms__uninstall(void);
ms_hostmem_means ms__install_means(void);

/* After the last user's removal: restores the slots that could not be restored then, if that is safe
 * now. Costs one load if there are none. */
void ms__install_settle(void);

/* Registers the fork handlers, once. False when out of memory. */
bool ms__install_cover_fork(void);

#endif
