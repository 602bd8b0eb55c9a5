/*
 * Times hostmem: taking a block from the cache and returning it, mapping a block and
 * unmapping it, and looking up a page-aligned address that is not ours. Run by
 * `meson test --benchmark`; prints nanoseconds, asserts nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "memscale/hostmem.h"

enum { LIVE_BLOCKS = 200, ROUNDS = 1000000 };

#define MIB ((size_t)1 << 20)

static void report(const char *what, uint64_t start_ns, int rounds)
{
    printf("%-52s %8.1f ns\n", what, (double)(ms_now_ns() - start_ns) / rounds);
}

static void measure_pairs(const char *what, uint64_t ceiling_bytes, int rounds)
{
    ms_hostmem_set_ceiling(ceiling_bytes);
    uint64_t start_ns = ms_now_ns();
    for (int i = 0; i < rounds; i++) {
        ms_hostmem_release(ms_hostmem_alloc((size_t)(1 + i % 12) * 2 * MIB));
    }
    report(what, start_ns, rounds);
}

static void measure_look_ups(void *address, const char *what)
{
    uint64_t start_ns = ms_now_ns();
    for (int i = 0; i < ROUNDS; i++) {
        ms_hostmem_release(address); /* does nothing: the address is not ours */
    }
    report(what, start_ns, ROUNDS);
}

int main(void)
{
    void *blocks[LIVE_BLOCKS];
    for (size_t i = 0; i < LIVE_BLOCKS; i++) {
        blocks[i] = ms_hostmem_alloc((1 + i % 7) * MIB);
    }
    measure_pairs("alloc and release, from the cache", UINT64_MAX, ROUNDS);
    measure_pairs("alloc and release, mapped each time, untouched", 0, ROUNDS / 100);
    void *foreign = NULL;
    if (posix_memalign(&foreign, 4096, 4096) == 0) {
        measure_look_ups(foreign, "look-up of a foreign address, far from ours");
        free(foreign);
    }
    measure_look_ups((char *)blocks[6] + MIB, "look-up of a foreign address, between ours");
    for (size_t i = 0; i < LIVE_BLOCKS; i++) {
        ms_hostmem_release(blocks[i]);
    }
    return 0;
}
