/*
 * Fault points: the places where a test can make the Nth call fail. Every file
 * of the library that allocates, maps, opens, reads, writes, starts a thread or
 * calls a driver asks here first. Unarmed, a point is one relaxed load.
 */
#ifndef MS_BASE_FAULT_H
#define MS_BASE_FAULT_H

#include <stdatomic.h>

#include "memscale/base.h"

/* One bit per armed kind. */
extern _Atomic uint32_t ms__fault_armed;

bool ms__fault_count(ms_fault kind, int *system_errno);

/* True where this call is the one to fail; then `*system_errno` (may be NULL)
 * holds the number it was armed with. A caller that is told true behaves as if
 * the call had failed that way and does not make it. Thread-safe. */
static inline bool ms__fault(ms_fault kind, int *system_errno)
{
    if (__builtin_expect(atomic_load_explicit(&ms__fault_armed, memory_order_relaxed) == 0, 1)) {
        return false;
    }
    return ms__fault_count(kind, system_errno);
}

#endif
