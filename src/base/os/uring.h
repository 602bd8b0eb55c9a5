/*
 * One io_uring over the kernel's own interface: set up, one registered buffer, reads
 * and writes queued and taken back, results. Used by the io_uring backend; knows
 * nothing of tickets or extents. No library stands between: a ring is three system
 * calls and two arrays shared with the kernel, and each call is a fault point of
 * kind MS_FAULT_URING.
 *
 * A ring is opened by any thread and then used by one thread only (the kernel is
 * told so, and reports results to that thread without interrupting it).
 */
#ifndef MS_BASE_OS_URING_H
#define MS_BASE_OS_URING_H

#include "memscale/base.h"

typedef struct ms__uring {
    int fd; /* -1: not open */
    uint32_t depth;
    bool is_disabled; /* until its thread uses it first */
    void *rings;
    size_t rings_bytes;
    void *entries; /* of the submission queue */
    size_t entries_bytes;
    void *completions;
    _Atomic uint32_t *submit_head, *submit_tail, *complete_head, *complete_tail;
    uint32_t submit_mask, complete_mask;
} ms__uring;

typedef struct ms__uring_transfer {
    int fd;
    bool is_write;
    bool is_registered; /* the memory lies in the registered buffer */
    void *memory;
    uint32_t bytes;
    uint64_t position;
    uint64_t tag; /* handed back with the result */
} ms__uring_transfer;

/* A ring for at most `depth` transfers at a time, with `bytes` at `buffer` registered
 * (pinned in memory). MS_ENOTSUP with the errno where the kernel has no io_uring,
 * forbids it, or does not let us pin the buffer. */
MS_NODISCARD int ms__uring_open(ms__uring *ring, uint32_t depth, void *buffer, size_t bytes, ms_error *err);

/* With nothing under way. Also right in a forked child, which inherits descriptor and
 * maps: the parent's ring lives on. */
void ms__uring_close(ms__uring *ring);

/* Queues one transfer; at most `depth` queued or under way. */
void ms__uring_queue(ms__uring *ring, const ms__uring_transfer *transfer);

/* Gives the kernel what is queued and waits until there is a result. 0, or the errno
 * of a failed call: then some of what was queued may not have been accepted. */
int ms__uring_enter(ms__uring *ring);

/* Takes back the transfer queued last that the kernel has not accepted. */
bool ms__uring_unqueue(ms__uring *ring, uint64_t *tag);

/* The next result: bytes moved or a negative errno. */
bool ms__uring_next(ms__uring *ring, uint64_t *tag, int32_t *result);

#endif
