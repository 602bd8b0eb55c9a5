/*
 * Shared by the tests of the kernels: seeded random numbers, and the check after each test.
 */
#ifndef MS_TEST_KERNELS_FIXTURE_H
#define MS_TEST_KERNELS_FIXTURE_H

#include "test_common.h"

static inline uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 32);
}

/* A teardown: the library holds no memory, and no fault is armed for the next test. */
static inline int no_fault_left(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return ms_memory_live_bytes() == 0 ? 0 : -1;
}

#endif
