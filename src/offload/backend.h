/*
 * backend.h - the backends, which move the bytes: one table of functions per kind of tier.
 *
 * The engine owns everything that all tiers share: tickets, queues, order, slots,
 * checksums, resumption of short transfers, errors, threads. A backend owns the space of
 * its tier and one operation: moving bytes between memory and a position. To add a backend,
 * fill in a table and name it in ms__backend_choose(); the tests in tests/c/offload run on
 * every backend.
 *
 * Lanes. Each of the engine's threads has a lane of the backend and runs this loop: start
 * transfers while the lane has room and pieces wait, then finish one. A backend that moves
 * bytes in the calling thread (memory, file) has lane_depth 1 and works in finish(). A
 * backend that submits to a device's stream has lane_depth N: start() queues, finish()
 * submits the queued transfers and blocks until one has ended. In both cases `depth`
 * transfers are in flight, over several lanes or within one. The loop sees new pieces only
 * when finish() returns; a piece takes milliseconds, so nothing interrupts finish().
 *
 * Rules for every function of a table:
 *   - start() and finish() take no lock that a lane or a caller holds while it
 *     waits, and wait only for started transfers;
 *   - finish() returns each transfer exactly once, also a failed one;
 *   - a transfer that moved less than requested is not an error: the engine resumes it;
 *   - no retry, no checksum, no log: the engine does these (device memory excepted);
 *   - every system call or driver call has a fault point.
 */
#ifndef MS_OFFLOAD_BACKEND_H
#define MS_OFFLOAD_BACKEND_H

#include "base/checksum.h"
#include "memscale/offload.h"

enum { MS__DESCRIPTION_MAX = MS_ERROR_TEXT_MAX };

typedef enum ms__direction { MS__WRITE, MS__READ } ms__direction;

/* One transfer of at most a slot's bytes. The engine fills the first part and keeps the
 * struct and the memory alive until finish() has returned it. */
typedef struct ms__io {
    ms__direction direction;
    unsigned char *memory; /* a multiple of address_alignment */
    uint64_t bytes;        /* a multiple of block_bytes, not 0 */
    uint64_t position;     /* in the tier: reserve()'s answer plus a multiple of block_bytes */

    /* For backends with device_memory, which move a piece completely or not at all. */
    uint64_t payload_bytes; /* the extent's part of `bytes`; the rest may not be touched */
    uint64_t checksum;      /* of the payload: computed by a write, compared by a read */
    unsigned char *staging; /* a private slot of the slab */
    void *mark;             /* mark()'s result for the transfer, or NULL */

    uint64_t moved_bytes;  /* result: bytes moved from the front */
    int system_errno;      /* result: 0, or the reason for stopping; EBADMSG: the checksum differs */
    void *end;             /* result of a read that is verified and queued, but may not have ended, for await(),
                            * order() and then unmark(); else NULL */

    struct ms__io *next;   /* for the backend, between start() and finish() */
} ms__io;

typedef struct ms__backend_options {
    ms_tier tier;
    bool from_device;       /* callers' memory is a GPU's */
    const char *dir;        /* of the spill file, or NULL */
    uint64_t cap_bytes;     /* reserve() beyond it fails; UINT64_MAX: no cap */
    bool no_direct_io;
    uint32_t depth;         /* transfers to keep in flight; >= 1 */
    unsigned char *slab;    /* the slots' memory, for backends that pin it */
    uint64_t slab_bytes;
    /* For a GPU's engine only; see ms_offload_options. */
    ms_device_kind device_kind;
    uint32_t device;
    uint64_t pinned_bytes;
    uint64_t pageable_write_bytes_per_s, pageable_read_bytes_per_s;
    uint64_t disk_cap_bytes;
    uint32_t stream_count;
    ms__checksum_fn checksum; /* NULL: nothing is verified */
} ms__backend_options;

typedef struct ms__backend_ops ms__backend_ops;

/* The first member of every backend's struct; filled by its open(). */
typedef struct ms__backend {
    const ms__backend_ops *ops;
    uint64_t block_bytes;       /* extents, positions and transfers are multiples of it */
    uint64_t address_alignment; /* of memory that a transfer may name */
    uint32_t lane_depth;        /* transfers that one lane may have in flight; >= 1 */
    uint32_t lane_max;          /* more lanes gain nothing */
    bool joins_neighbours;      /* extents may be neighbours, and one transfer over several of them
                                   costs less than one for each */
    bool device_memory;         /* callers' addresses are a device's: the backend verifies; the engine
                                   does not copy or hash */
    char place[MS__DESCRIPTION_MAX];       /* for errors: "disk tier in /var/tmp" */
    char description[MS__DESCRIPTION_MAX]; /* one line for people */
} ms__backend;

/* The first member of a backend's lane, if it needs more than this. */
typedef struct ms__lane {
    ms__backend *backend;
    ms__io *started; /* for lanes of depth 1 */
} ms__lane;

struct ms__backend_ops {
    const char *name;

    int (*open)(const ms__backend_options *options, ms__backend **backend, ms_error *err);
    /* Called when all lanes are closed and no transfer is in flight. */
    void (*close)(ms__backend *backend);
    /* Instead of close() in a forked child: frees the child's copies (file descriptors, heap) and does
     * not touch the rest (maps, threads, the tier). */
    void (*forget)(ms__backend *backend);

    /* Reserves `bytes` (a multiple of block_bytes) in the tier; from any thread. MS_ENOSPC, before
     * anything is written, if the cap is reached or the tier is full. */
    int (*reserve)(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err);
    void (*release)(ms__backend *backend, uint64_t position, uint64_t bytes);

    /* Called by the threads that open and close the engine. In between only the lane's own thread
     * uses the lane; it has ended before lane_close() (a forked child never had it). */
    int (*lane_open)(ms__backend *backend, ms__lane **lane, ms_error *err);
    void (*lane_close)(ms__lane *lane);

    /* NULL unless callers' memory is a device's. mark(), called in the caller's thread, notes the work
     * queued on its stream; a transfer with the mark begins after that work. unmark() frees the mark
     * once no transfer uses it. */
    int (*mark)(ms__backend *backend, void *stream, void **mark, ms_error *err);
    void (*unmark)(ms__backend *backend, void *mark);
    /* For io.end, from any thread. await() waits until the read has ended, at most until the deadline
     * (MS_ETIMEDOUT); order() makes the stream's later work wait for it, or waits itself if the driver refuses. */
    int (*await)(ms__backend *backend, void *end, uint64_t deadline_ns, ms_error *err);
    int (*order)(ms__backend *backend, void *stream, void *end, uint64_t deadline_ns, ms_error *err);
    /* The tier of an extent; NULL if all are on the requested tier. */
    ms_tier (*tier_of)(uint64_t position);

    /* Accepts a transfer; at most lane_depth transfers are started and not finished. */
    void (*start)(ms__lane *lane, ms__io *io);
    /* Blocks until a started transfer has ended and returns it. */
    ms__io *(*finish)(ms__lane *lane);
};

extern const ms__backend_ops ms__backend_memory;
extern const ms__backend_ops ms__backend_file;
extern const ms__backend_ops ms__backend_device;

/* The backend for these options; NULL if this build has none for the tier. */
const ms__backend_ops *ms__backend_choose(const ms__backend_options *options);

/* Whether a transfer may name this memory; true for a device's memory, which only the backend can reach. */
static inline bool ms__memory_is_direct(const ms__backend *backend, const void *memory, uint64_t padded_bytes,
                                        uint64_t capacity_bytes)
{
    return backend->device_memory ||
           ((uintptr_t)memory % backend->address_alignment == 0 && padded_bytes <= capacity_bytes);
}

/* lane_open(), lane_close() and start() of backends that do the work in finish(). */
int ms__plain_lane_open(ms__backend *backend, ms__lane **lane, ms_error *err);
void ms__plain_lane_close(ms__lane *lane);
void ms__plain_start(ms__lane *lane, ms__io *io);

#endif
