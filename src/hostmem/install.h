/*
 * install.h - taking the allocator's slots and giving them back.
 *
 * Called by the public functions in hostmem.c. May not count bytes: heap.c does.
 */
#ifndef MS_HOSTMEM_INSTALL_H
#define MS_HOSTMEM_INSTALL_H

#include "memscale/hostmem.h"

int ms__install(const char *library, ms_hostmem_means *means, ms_error *err);
void ms__uninstall(void);
ms_hostmem_means ms__install_means(void);

/* After the last user has gone: restores what could not be restored yet, as far as
 * that is safe by now. Costs one load when there is nothing to do. */
void ms__install_settle(void);

/* Registers the fork handlers, once. False if memory was out. */
bool ms__install_cover_fork(void);

#endif
