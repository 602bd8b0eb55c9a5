/*
 * uring.h on Linux. The kernel and we share two rings of indices; each side writes its
 * own ends only, with release stores that the other reads with acquire loads.
 */
#include "base/os/uring.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/units.h"

/* ---- the three calls: a result or a negative errno ------------------------- */

static int injected(void)
{
    int failure = EIO;
    if (!ms__fault(MS_FAULT_URING, &failure)) {
        return 0;
    }
    return failure != 0 ? failure : EIO;
}

static int call_setup(uint32_t depth, struct io_uring_params *params)
{
    int failure = injected();
    long fd = failure == 0 ? syscall(__NR_io_uring_setup, depth, params) : -1;
    return fd >= 0 ? (int)fd : -(failure != 0 ? failure : errno);
}

static int call_register(int fd, unsigned what, void *argument, unsigned count)
{
    int failure = injected();
    long rc = failure == 0 ? syscall(__NR_io_uring_register, fd, what, argument, count) : -1;
    return rc >= 0 ? 0 : -(failure != 0 ? failure : errno);
}

static int call_enter(int fd, uint32_t submit_count, uint32_t wait_count)
{
    int failure = injected();
    long rc =
        failure == 0 ? syscall(__NR_io_uring_enter, fd, submit_count, wait_count, IORING_ENTER_GETEVENTS, NULL, 0) : -1;
    return rc >= 0 ? 0 : -(failure != 0 ? failure : errno);
}

/* ---- opening ----------------------------------------------------------------- */

/* Kernels before 6.1 lack the flags that spare interruptions: a ring without them
 * works as well. */
static int set_up(ms__uring *ring, uint32_t depth, struct io_uring_params *params)
{
    const uint32_t quiet = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED;
    *params = (struct io_uring_params){.flags = quiet};
    ring->is_disabled = true;
    int fd = call_setup(depth, params);
    if (fd == -EINVAL) {
        *params = (struct io_uring_params){0};
        ring->is_disabled = false;
        fd = call_setup(depth, params);
    }
    return fd;
}

static void *map_part(int fd, size_t bytes, uint64_t offset)
{
    int failure = ENOMEM;
    if (ms__fault(MS_FAULT_MAP, &failure)) {
        errno = failure;
        return NULL;
    }
    void *part = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)offset);
    return part != MAP_FAILED ? part : NULL;
}

/* 0 or a positive errno. */
static int map_rings(ms__uring *ring, const struct io_uring_params *params)
{
    if ((params->features & IORING_FEAT_SINGLE_MMAP) == 0) {
        return ENOSYS; /* before 5.4: without reads and writes of plain memory as well */
    }
    const struct io_sqring_offsets *submit = &params->sq_off;
    const struct io_cqring_offsets *complete = &params->cq_off;
    ring->rings_bytes = ms__max_u64(submit->array + params->sq_entries * sizeof(uint32_t),
                                    complete->cqes + params->cq_entries * sizeof(struct io_uring_cqe));
    ring->entries_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
    ring->rings = map_part(ring->fd, ring->rings_bytes, IORING_OFF_SQ_RING);
    if (ring->rings == NULL) {
        return errno;
    }
    ring->entries = map_part(ring->fd, ring->entries_bytes, IORING_OFF_SQES);
    if (ring->entries == NULL) {
        return errno;
    }
    unsigned char *base = ring->rings;
    ring->submit_head = (void *)(base + submit->head);
    ring->submit_tail = (void *)(base + submit->tail);
    ring->complete_head = (void *)(base + complete->head);
    ring->complete_tail = (void *)(base + complete->tail);
    ring->completions = base + complete->cqes;
    ring->submit_mask = params->sq_entries - 1;
    ring->complete_mask = params->cq_entries - 1;
    /* Entry n of the queue is always entry n of the array. */
    uint32_t *array = (void *)(base + submit->array);
    for (uint32_t i = 0; i < params->sq_entries; i++) {
        array[i] = i;
    }
    return 0;
}

/* 0 or a positive errno. */
static int open_parts(ms__uring *ring, uint32_t depth, void *buffer, size_t bytes)
{
    struct io_uring_params params;
    int fd = set_up(ring, depth, &params);
    if (fd < 0) {
        return -fd;
    }
    ring->fd = fd;
    ring->depth = depth;
    int failure = map_rings(ring, &params);
    if (failure != 0) {
        return failure;
    }
    struct iovec whole = {.iov_base = buffer, .iov_len = bytes};
    return -call_register(fd, IORING_REGISTER_BUFFERS, &whole, 1);
}

int ms__uring_open(ms__uring *ring, uint32_t depth, void *buffer, size_t bytes, ms_error *err)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = -1;
    int failure = open_parts(ring, depth, buffer, bytes);
    if (failure != 0) {
        ms__uring_close(ring);
        ms_fail_errno(err, MS_ENOTSUP, failure, "an io_uring with %s of fixed memory", ms__text_bytes(bytes).text);
        return MS_ENOTSUP; /* whatever the number: there is none */
    }
    return MS_OK;
}

void ms__uring_close(ms__uring *ring)
{
    if (ring->entries != NULL) {
        munmap(ring->entries, ring->entries_bytes);
    }
    if (ring->rings != NULL) {
        munmap(ring->rings, ring->rings_bytes);
    }
    if (ring->fd >= 0) {
        close(ring->fd);
    }
    memset(ring, 0, sizeof *ring);
    ring->fd = -1;
}

/* ---- transfers ---------------------------------------------------------------- */

static uint8_t opcode_of(const ms__uring_transfer *transfer)
{
    if (transfer->is_registered) {
        return transfer->is_write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
    }
    return transfer->is_write ? IORING_OP_WRITE : IORING_OP_READ;
}

void ms__uring_queue(ms__uring *ring, const ms__uring_transfer *transfer)
{
    uint32_t tail = atomic_load_explicit(ring->submit_tail, memory_order_relaxed);
    struct io_uring_sqe *entry = (struct io_uring_sqe *)ring->entries + (tail & ring->submit_mask);
    *entry = (struct io_uring_sqe){
        .opcode = opcode_of(transfer),
        .fd = transfer->fd,
        .off = transfer->position,
        .addr = (uintptr_t)transfer->memory,
        .len = transfer->bytes,
        .user_data = transfer->tag,
    };
    atomic_store_explicit(ring->submit_tail, tail + 1, memory_order_release);
}

static uint32_t queued_count(const ms__uring *ring)
{
    return atomic_load_explicit(ring->submit_tail, memory_order_relaxed) -
           atomic_load_explicit(ring->submit_head, memory_order_acquire);
}

/* The kernel takes the thread that does this for the ring's one user. */
static int enable(ms__uring *ring)
{
    int rc = call_register(ring->fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    ring->is_disabled = rc != 0;
    return -rc;
}

int ms__uring_enter(ms__uring *ring)
{
    int failure = ring->is_disabled ? enable(ring) : 0;
    return failure != 0 ? failure : -call_enter(ring->fd, queued_count(ring), 1);
}

bool ms__uring_unqueue(ms__uring *ring, uint64_t *tag)
{
    if (queued_count(ring) == 0) {
        return false;
    }
    /* The kernel looks at the end of the queue in call_enter() only. */
    uint32_t last = atomic_load_explicit(ring->submit_tail, memory_order_relaxed) - 1;
    *tag = ((struct io_uring_sqe *)ring->entries)[last & ring->submit_mask].user_data;
    atomic_store_explicit(ring->submit_tail, last, memory_order_release);
    return true;
}

bool ms__uring_next(ms__uring *ring, uint64_t *tag, int32_t *result)
{
    uint32_t head = atomic_load_explicit(ring->complete_head, memory_order_relaxed);
    if (head == atomic_load_explicit(ring->complete_tail, memory_order_acquire)) {
        return false;
    }
    const struct io_uring_cqe *entry = (const struct io_uring_cqe *)ring->completions + (head & ring->complete_mask);
    *tag = entry->user_data;
    *result = entry->res;
    atomic_store_explicit(ring->complete_head, head + 1, memory_order_release);
    return true;
}
