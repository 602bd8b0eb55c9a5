/*
 * Space for what leaves a GPU, chosen extent by extent: pinned memory up to its limit or the
 * driver's; then pageable memory up to the cap; then the spill file. The first use of pageable
 * memory and of the file is logged.
 *
 * Pinned memory is one range of addresses, registered in chunks as needed, so that a small run
 * pins little. It is never unpinned before the end: pinning costs as much as moving the bytes
 * several times.
 */
#include "offload/device_host.h"

#include <stdio.h>

#include "base/os/cgroup.h"
#include "base/os/map.h"
#include "base/os/numa.h"
#include "base/units.h"
#include "offload/slab.h"

#define CHUNK_BYTES (UINT64_C(64) << 20)

/* The two highest bits of a position are the kind of its extent; neither addresses nor file
 * offsets use them. */
enum { KIND_SHIFT = 62 };
#define KIND_MASK (UINT64_C(3) << KIND_SHIFT)

ms__rung ms__rung_of(uint64_t position)
{
    return (ms__rung)(position >> KIND_SHIFT);
}

uint64_t ms__device_offset(uint64_t position)
{
    return position & ~KIND_MASK;
}

unsigned char *ms__device_address(const ms__device_host *host, uint64_t position)
{
    uint64_t offset = ms__device_offset(position);
    return ms__rung_of(position) == MS__RUNG_PINNED ? host->pool + offset : (unsigned char *)(uintptr_t)offset;
}

uint64_t ms__device_reach(const ms__device_host *host, uint64_t position, uint64_t bytes)
{
    (void)host;
    if (ms__rung_of(position) != MS__RUNG_PINNED) {
        return bytes;
    }
    return ms__min_u64(bytes, CHUNK_BYTES - ms__device_offset(position) % CHUNK_BYTES);
}

/* ---- pinned -------------------------------------------------------------------- */

/* Pins up to the end of the last extent. False if the driver refuses. Under the lock. */
static bool pool_pin(ms__device_host *host)
{
    const ms__device *device = host->device;
    bool is_pinned = true;
    if (host->pinned.end_bytes <= host->pinned_bytes) {
        return true;
    }
    if (!ms__device_enter(device)) {
        return false;
    }
    while (is_pinned && host->pinned.end_bytes > host->pinned_bytes) {
        unsigned char *chunk = host->pool + host->pinned_bytes;
        uint64_t bytes = ms__min_u64(CHUNK_BYTES, host->pool_bytes - host->pinned_bytes);
        ms__touch(chunk, bytes); /* the driver would touch it with one thread */
        is_pinned = MS__DEVICE_CALL(device, pin, chunk, bytes) == 0;
        host->pinned_bytes += is_pinned ? bytes : 0;
        if (!is_pinned) {
            ms__untouch(chunk, bytes);
        }
    }
    ms__device_leave(device);
    return is_pinned;
}

static bool reserve_pinned(ms__device_host *host, uint64_t bytes, uint64_t *position)
{
    if (ms__extents_reserve(&host->pinned, bytes, position) != MS_OK) {
        return false;
    }
    if (pool_pin(host)) {
        return true;
    }
    ms__extents_release(&host->pinned, *position, bytes);
    host->pinned.limit_bytes = host->pinned_bytes; /* the driver is not asked again */
    return false;
}

/* An address range costs nothing until it is pinned. */
static int pool_open(ms__device_host *host, uint64_t wanted_bytes, ms_error *err)
{
    void *address = NULL;
    uint64_t limit_bytes = wanted_bytes != 0 ? wanted_bytes : ms__memory_room_bytes("") / 2;
    limit_bytes = ms__align_down(ms__min_u64(limit_bytes, host->cap_bytes), ms__page_bytes());
    if (limit_bytes == 0) {
        return MS_OK;
    }
    int rc = ms__map(limit_bytes, MS__HUGE_PAGE_BYTES, &address, err);
    if (rc != MS_OK) {
        return rc;
    }
    (void)ms__map_want_huge_pages(address, limit_bytes);
    (void)ms__map_no_fork(address, limit_bytes);
    ms__keep_near(address, limit_bytes, ms__numa_node_count(""), "pinned memory");
    host->pool = address;
    host->pool_bytes = limit_bytes;
    return MS_OK;
}

static void pool_close(ms__device_host *host)
{
    const ms__device *device = host->device;
    bool is_entered = host->pinned_bytes > 0 && device->kind->driver->enter(device) == 0;
    for (uint64_t at = 0; at < host->pinned_bytes; at += CHUNK_BYTES) {
        (void)device->kind->driver->unpin(device, host->pool + at);
    }
    if (is_entered) {
        ms__device_leave(device);
    }
    ms__unmap(host->pool, host->pool_bytes);
}

/* ---- pageable -------------------------------------------------------------------- */

static bool reserve_pageable(uint64_t bytes, uint64_t *position)
{
    void *address = NULL;
    bool is_large = bytes >= MS__HUGE_PAGE_BYTES;
    size_t align_bytes = is_large ? MS__HUGE_PAGE_BYTES : ms__page_bytes();
    if (ms__map(bytes, align_bytes, &address, NULL) != MS_OK) {
        return false;
    }
    if (is_large) {
        (void)ms__map_want_huge_pages(address, bytes);
    }
    (void)ms__map_no_fork(address, bytes);
    *position = (uintptr_t)address | (uint64_t)MS__RUNG_PAGEABLE << KIND_SHIFT;
    return true;
}

/* ---- all ----------------------------------------------------------------------------- */

int ms__device_host_open(ms__device_host *host, const ms__device *device, const ms__backend_ops *ops,
                         const ms__backend_options *options, ms_error *err)
{
    host->device = device;
    host->cap_bytes = options->tier == MS_TIER_DISK ? 0 : options->cap_bytes;
    host->has_disk = options->dir != NULL;
    host->pageable_write_bytes_per_s = options->pageable_write_bytes_per_s;
    host->pageable_read_bytes_per_s = options->pageable_read_bytes_per_s;
    if (host->has_disk) {
        ms__backend_options disk = *options;
        disk.cap_bytes = options->tier == MS_TIER_DISK ? options->cap_bytes : options->disk_cap_bytes;
        int rc = ms__spill_open(&host->spill, ops, &disk, "a GPU's threads", err);
        if (rc != MS_OK) {
            return rc;
        }
    }
    int rc = pool_open(host, options->pinned_bytes, err);
    if (rc != MS_OK) {
        if (host->has_disk) {
            ms__spill_close(&host->spill);
        }
        return rc;
    }
    ms__extents_init(&host->pinned, host->pool_bytes);
    ms__mutex_init(&host->lock);
    return MS_OK;
}

void ms__device_host_close(ms__device_host *host)
{
    pool_close(host);
    ms__extents_destroy(&host->pinned);
    ms__mutex_destroy(&host->lock);
    if (host->has_disk) {
        ms__spill_close(&host->spill);
    }
}

void ms__device_host_forget(ms__device_host *host)
{
    ms__extents_destroy(&host->pinned);
    if (host->has_disk) {
        ms__spill_forget(&host->spill);
    }
}

/* Under the lock. False: no memory for it. */
static bool reserve_memory(ms__device_host *host, uint64_t bytes, uint64_t *position)
{
    if (bytes > ms__sub_sat(host->cap_bytes, host->used_bytes)) {
        return false;
    }
    if (!reserve_pinned(host, bytes, position) && !reserve_pageable(bytes, position)) {
        return false;
    }
    host->used_bytes += bytes;
    return true;
}

/* Whether this is the first extent below pinned memory, on its rung. Under the lock. */
static bool rung_is_new(ms__device_host *host, ms__rung rung)
{
    bool *told = rung == MS__RUNG_DISK ? &host->told_disk : &host->told_pageable;
    bool is_expected = rung == MS__RUNG_PINNED || host->cap_bytes == 0;
    bool is_first = !is_expected && !*told;
    *told |= is_first;
    return is_first;
}

/* A limit that the caller set, or one that the driver did. */
static void pageable_report(const ms__device_host *host, uint64_t pinned_bytes)
{
    const ms__device *device = host->device;
    char cost[120] = "slower than pinned memory";
    if (host->pageable_write_bytes_per_s != 0 && host->pageable_read_bytes_per_s != 0) {
        snprintf(cost, sizeof cost, "moves at %s/s to the host and %s/s back",
                 ms__text_bytes(host->pageable_write_bytes_per_s).text,
                 ms__text_bytes(host->pageable_read_bytes_per_s).text);
    }
    if (pinned_bytes < host->pool_bytes) {
        ms_log(MS_LOG_WARNING,
               "%s %u: the driver pins %s of host memory, not the %s asked for; what exceeds it is pageable and %s",
               device->kind->label, device->number, ms__text_bytes(pinned_bytes).text,
               ms__text_bytes(host->pool_bytes).text, cost);
    } else {
        ms_log(MS_LOG_INFO, "%s %u: %s of host memory are pinned, the limit; more is pageable and %s",
               device->kind->label, device->number, ms__text_bytes(pinned_bytes).text, cost);
    }
}

static void rung_report(const ms__device_host *host, ms__rung rung, uint64_t pinned_bytes, uint64_t used_bytes)
{
    const ms__device *device = host->device;
    if (rung == MS__RUNG_PAGEABLE) {
        pageable_report(host, pinned_bytes);
    } else {
        ms_log(MS_LOG_INFO, "%s %u: %s of %s host memory are used; more goes to the %s", device->kind->label,
               device->number, ms__text_bytes(used_bytes).text, ms__text_bytes(host->cap_bytes).text,
               host->spill.base.place);
    }
}

int ms__device_host_reserve(ms__device_host *host, uint64_t bytes, uint64_t *position, ms_error *err)
{
    uint64_t taken = 0;
    int rc = MS_OK;
    ms__mutex_lock(&host->lock);
    bool is_in_memory = reserve_memory(host, bytes, &taken);
    uint64_t pinned_bytes = host->pinned_bytes, used_bytes = host->used_bytes;
    ms__mutex_unlock(&host->lock);
    if (!is_in_memory && host->has_disk) {
        rc = ms__spill_reserve(&host->spill.base, bytes, &taken, err);
        taken |= (uint64_t)MS__RUNG_DISK << KIND_SHIFT;
    } else if (!is_in_memory) {
        rc =
            ms_fail(err, MS_ENOSPC, "host tier of %s %u: %s more would exceed the cap of %s", host->device->kind->label,
                    host->device->number, ms__text_bytes(bytes).text, ms__text_bytes(host->cap_bytes).text);
    }
    if (rc != MS_OK) {
        return rc;
    }
    ms__rung rung = ms__rung_of(taken);
    ms__mutex_lock(&host->lock);
    bool is_to_be_told = rung_is_new(host, rung);
    ms__mutex_unlock(&host->lock);
    if (is_to_be_told) {
        rung_report(host, rung, pinned_bytes, used_bytes);
    }
    *position = taken;
    return MS_OK;
}

void ms__device_host_release(ms__device_host *host, uint64_t position, uint64_t bytes)
{
    ms__rung rung = ms__rung_of(position);
    if (rung == MS__RUNG_DISK) {
        ms__spill_release(&host->spill.base, ms__device_offset(position), bytes);
        return;
    }
    if (rung == MS__RUNG_PAGEABLE) {
        ms__unmap(ms__device_address(host, position), bytes);
    }
    ms__mutex_lock(&host->lock);
    if (rung == MS__RUNG_PINNED) {
        ms__extents_release(&host->pinned, position, bytes);
    }
    host->used_bytes -= bytes;
    ms__mutex_unlock(&host->lock);
}
