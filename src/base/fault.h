/*
 * Fault points: a test can make the Nth call of a kind fail. Code that allocates, maps, opens, reads, writes, starts
 * a thread or calls a driver asks ms__fault() first. Unarmed, a point is one relaxed load.
 * Tests: tests/c/base/test_fault.c.
 */
#ifndef MS_BASE_FAULT_H
#define MS_BASE_FAULT_H

#include <stdatomic.h>

#include "memscale/base.h"

/* One bit per armed kind. */
extern _Atomic uint32_t ms__fault_armed;

bool ms__fault_count(ms_fault kind, int *system_errno);

/* True if this call must fail; then `*system_errno` (may be NULL) holds the armed number, and the caller skips the
 * real call and behaves as if it had failed with that number. Thread-safe. */
static inline bool ms__fault(ms_fault kind, int *system_errno)
{
    if (__builtin_expect(atomic_load_explicit(&ms__fault_armed, memory_order_relaxed) == 0, 1)) {
        return false;
    }
    return ms__fault_count(kind, system_errno);
}

#endif
