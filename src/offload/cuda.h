/*
 * cuda.h - one GPU as the CUDA backend sees it, and the host's side of its extents:
 * pinned, pageable or in the spill file. Shared by backend_cuda.c (the transfers) and
 * cuda_host.c (the space).
 */
#ifndef MS_OFFLOAD_CUDA_H
#define MS_OFFLOAD_CUDA_H

#include "base/fault.h"
#include "base/libcuda.h"
#include "offload/spill.h"

typedef struct ms__cuda {
    const ms__libcuda *driver;
    ms__cu_context context; /* the primary one, which torch uses too */
    ms__cu_device device;
} ms__cuda;

/* What a call answers that a test made fail: CUDA_ERROR_UNKNOWN. */
enum { MS__CU_UNKNOWN = 999 };

/* A call that may fail. What gives something back is called without, and its answer not
 * looked at: after an error of the device nothing else could be done. */
#define MS__CUDA_CALL(cuda, function, ...) \
    (ms__fault(MS_FAULT_DRIVER, NULL) ? MS__CU_UNKNOWN : (cuda)->driver->function(__VA_ARGS__))

/* Around calls that need the context: the thread may be anybody's, with a context of its
 * own. leave() only where enter() said true. */
static inline bool ms__cuda_enter(const ms__cuda *cuda)
{
    return MS__CUDA_CALL(cuda, context_push, cuda->context) == 0;
}

static inline void ms__cuda_leave(const ms__cuda *cuda)
{
    ms__cu_context popped;
    (void)cuda->driver->context_pop(&popped);
}

/* ---- cuda_host.c ------------------------------------------------------------- */

typedef struct ms__cuda_host {
    const ms__cuda *cuda;
    uint64_t cap_bytes;
    bool has_disk;
    ms__spill spill; /* where has_disk */

    unsigned char *pool; /* an address range; pinned from its start, as far as it is used */
    uint64_t pool_bytes;
    ms__mutex lock; /* guards what follows */
    ms__extents pinned;
    uint64_t pinned_bytes; /* of the pool */
    uint64_t used_bytes;   /* of extents in memory */
    bool told_pageable, told_disk;
} ms__cuda_host;

/* Where an extent's bytes are. */
typedef enum ms__cuda_kind { MS__CUDA_PINNED, MS__CUDA_PAGEABLE, MS__CUDA_DISK } ms__cuda_kind;

ms__cuda_kind ms__cuda_kind_of(uint64_t position);
/* The address of a position in memory; the offset in the file of one on disk. */
unsigned char *ms__cuda_address(const ms__cuda_host *host, uint64_t position);
uint64_t ms__cuda_offset(uint64_t position);
/* Of `bytes` from here on, those that one copy may name: registrations end somewhere. */
uint64_t ms__cuda_reach(const ms__cuda_host *host, uint64_t position, uint64_t bytes);

int ms__cuda_host_open(ms__cuda_host *host, const ms__cuda *cuda, const ms__backend_ops *ops,
                       const ms__backend_options *options, ms_error *err);
/* Every extent was released. */
void ms__cuda_host_close(ms__cuda_host *host);
void ms__cuda_host_forget(ms__cuda_host *host);
int ms__cuda_host_reserve(ms__cuda_host *host, uint64_t bytes, uint64_t *position, ms_error *err);
void ms__cuda_host_release(ms__cuda_host *host, uint64_t position, uint64_t bytes);

#endif
