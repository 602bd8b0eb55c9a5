/*
 * matmul_kernel.h - the inner loop of a matrix product, only for measuring a CPU's floating-point rate.
 * Tests: tests/c/hardware/test_hardware.c.
 */
#ifndef MS_HARDWARE_MATMUL_KERNEL_H
#define MS_HARDWARE_MATMUL_KERNEL_H

#include <stdint.h>

/* The panels that one call reads and the tile that it writes, in floats: room for
 * every kernel. They fit the first-level cache, like the panels of a real product. */
enum { MS__KERNEL_PANEL_FLOATS = 256 * 32, MS__KERNEL_TILE_FLOATS = 16 * 32 };

typedef struct ms__matmul_kernel {
    /* tile = a-panel x b-panel. All are 64-byte aligned; the panels hold ordinary numbers. */
    void (*run)(const float *a, const float *b, float *tile);
    uint64_t flops; /* of one call */
} ms__matmul_kernel;

/* The fastest kernel for these MS_ISA_... bits. */
ms__matmul_kernel ms__matmul_kernel_for(uint32_t isa);

#endif
