/*
 * device_host.h - the host's space for a device's extents: pinned memory, pageable memory or the
 * spill file. device_host.c finds the space, backend_device.c makes the transfers.
 *
 * Tests: tests/c/offload/test_cuda.c.
 */
#ifndef MS_OFFLOAD_DEVICE_HOST_H
#define MS_OFFLOAD_DEVICE_HOST_H

#include "device/device.h"
#include "offload/spill.h"

typedef struct ms__device_host {
    const ms__device *device;
    uint64_t cap_bytes;
    bool has_disk;
    uint64_t pageable_write_bytes_per_s, pageable_read_bytes_per_s; /* for the log; 0: unknown */
    ms__spill spill; /* if has_disk */

    unsigned char *pool; /* an address range, pinned from its start as far as has been needed */
    uint64_t pool_bytes;
    ms__mutex lock; /* guards what follows */
    ms__extents pinned;
    uint64_t pinned_bytes; /* of the pool */
    uint64_t used_bytes;   /* of extents in memory */
    bool told_pageable, told_disk;
} ms__device_host;

/* The place of an extent's bytes. */
typedef enum ms__rung { MS__RUNG_PINNED, MS__RUNG_PAGEABLE, MS__RUNG_DISK } ms__rung;

ms__rung ms__rung_of(uint64_t position);
/* The address of a position in memory; the file offset of a position on disk. */
unsigned char *ms__device_address(const ms__device_host *host, uint64_t position);
uint64_t ms__device_offset(uint64_t position);
/* How many of the `bytes` from `position` on one copy may move: a copy must not cross registrations. */
uint64_t ms__device_reach(const ms__device_host *host, uint64_t position, uint64_t bytes);

int ms__device_host_open(ms__device_host *host, const ms__device *device, const ms__backend_ops *ops,
                         const ms__backend_options *options, ms_error *err);
/* Call when every extent is released. */
void ms__device_host_close(ms__device_host *host);
void ms__device_host_forget(ms__device_host *host);
int ms__device_host_reserve(ms__device_host *host, uint64_t bytes, uint64_t *position, ms_error *err);
void ms__device_host_release(ms__device_host *host, uint64_t position, uint64_t bytes);

#endif
