/* The library's clock. Never fails. */
#include <time.h>

#include "memscale/base.h"

uint64_t ms_now_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
