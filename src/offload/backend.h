/*
 * backend.h - what moves the bytes: one table of functions per kind of tier.
 *
 * The engine owns everything that is the same for all tiers: tickets, queues,
 * order, slots, checksums, resumption of short transfers, errors, threads. A
 * backend owns the space of its tier and one operation: move this much between
 * memory and a position. To add a backend, fill in a table and name it in
 * ms__backend_choose(); the tests in tests/c/offload run on every one.
 *
 * Lanes. The engine runs `lane_count` threads, each with a lane of the backend
 * and this loop: start transfers while the lane has room and pieces are waiting,
 * then finish one. A backend that moves bytes in the calling thread (memory,
 * file) has lane_depth 1 and does the work in finish(). One that submits (to a
 * device's stream) has lane_depth N: start() queues, finish() submits what is queued and blocks until any one has ended. How many transfers are to be
 * under way at a time (`depth`) is the same for both: in lanes, or within one. New work is seen when
 * finish() returns, so it need not be interruptible: a piece takes milliseconds.
 *
 * Rules for every function of a table:
 *   - start() and finish() take no lock that another lane or a caller holds while
 *     it waits, and never wait for anything but the transfers that were started;
 *   - whatever happens to a transfer, finish() returns it exactly once;
 *   - a transfer that moved less than asked is no error: the engine resumes it;
 *   - no retry, no checksum, no log: the engine does these;
 *   - every system call or driver call stands behind a fault point.
 */
#ifndef MS_OFFLOAD_BACKEND_H
#define MS_OFFLOAD_BACKEND_H

#include "base/checksum.h"
#include "memscale/offload.h"

enum { MS__DESCRIPTION_MAX = MS_ERROR_TEXT_MAX };

typedef enum ms__direction { MS__WRITE, MS__READ } ms__direction;

/* One transfer of at most a slot's bytes. The engine fills the first part and
 * keeps the struct and the memory alive until finish() has returned it. */
typedef struct ms__io {
    ms__direction direction;
    unsigned char *memory; /* a multiple of address_alignment */
    uint64_t bytes;        /* a multiple of block_bytes, not 0 */
    uint64_t position;     /* in the tier: reserve()'s answer plus a multiple of block_bytes */

    /* For backends with device_memory, which do all or nothing of a piece. */
    uint64_t payload_bytes; /* of `bytes`, those of the extent; the rest may not be touched */
    uint64_t checksum;      /* of the payload: told by a write, held against it by a read */
    unsigned char *staging; /* a slot of the slab that is this transfer's alone */
    void *mark;             /* what mark() gave for the transfer, or NULL */

    uint64_t moved_bytes;  /* the answer: bytes moved from the front ... */
    int system_errno;      /* ... and 0, or why it stopped; EBADMSG: the checksum differs */

    struct ms__io *next;   /* the backend's, between start() and finish() */
} ms__io;

typedef struct ms__backend_options {
    ms_tier tier;
    bool from_device;       /* callers' memory is a GPU's */
    const char *dir;        /* of the spill file; NULL where there is none */
    uint64_t cap_bytes;     /* reserve() beyond it fails; UINT64_MAX: none */
    bool no_direct_io;
    uint32_t depth;         /* transfers to have under way at a time; >= 1 */
    unsigned char *slab;    /* where the slots lie, for backends that pin it */
    uint64_t slab_bytes;
    /* Of a GPU's engine only; see ms_offload_options. */
    ms_device_kind device_kind;
    uint32_t device;
    uint64_t pinned_bytes;
    uint64_t disk_cap_bytes;
    uint32_t stream_count;
    ms__checksum_fn checksum; /* NULL: nothing is verified */
} ms__backend_options;

typedef struct ms__backend_ops ms__backend_ops;

/* The first member of every backend's own struct; filled by its open(). */
typedef struct ms__backend {
    const ms__backend_ops *ops;
    uint64_t block_bytes;       /* extents, positions and transfers are multiples of it */
    uint64_t address_alignment; /* of memory that a transfer may name */
    uint32_t lane_depth;        /* transfers that one lane may have under way; >= 1 */
    uint32_t lane_max;          /* more lanes than this bring nothing */
    bool joins_neighbours;      /* extents may lie side by side, and one transfer over several of
                                   them costs less than one for each */
    bool device_memory;         /* addresses of callers are not the CPU's: the engine neither
                                   copies nor hashes; the backend verifies on its own */
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
    /* All lanes are closed and no transfer is under way. */
    void (*close)(ms__backend *backend);
    /* Instead of close() in a forked child: gives back what the child inherited (file
     * descriptors, heap) and leaves alone what it did not (maps, threads, the tier). */
    void (*forget)(ms__backend *backend);

    /* Space for `bytes` (a multiple of block_bytes) in the tier; from any thread.
     * MS_ENOSPC where the cap or the tier is reached: nothing was written then. */
    int (*reserve)(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err);
    void (*release)(ms__backend *backend, uint64_t position, uint64_t bytes);

    /* Opened by the thread that opens the engine, then used by its own thread only;
     * closed by whoever closes the engine, after that thread has ended (in a forked
     * child: where that thread does not exist). */
    int (*lane_open)(ms__backend *backend, ms__lane **lane, ms_error *err);
    void (*lane_close)(ms__lane *lane);

    /* Where callers' memory is a device's, else NULL. mark() notes, in the thread of the
     * caller, what is queued on its stream now; a transfer with the mark begins after that.
     * unmark() gives the mark back once no transfer with it is under way. */
    int (*mark)(ms__backend *backend, void *stream, void **mark, ms_error *err);
    void (*unmark)(ms__backend *backend, void *mark);
    /* The tier of an extent; NULL where all are on the one that was asked for. */
    ms_tier (*tier_of)(uint64_t position);

    /* Accepts a transfer; at most lane_depth are started and not finished. */
    void (*start)(ms__lane *lane, ms__io *io);
    /* Blocks until one of the started transfers has ended and returns it. */
    ms__io *(*finish)(ms__lane *lane);
};

extern const ms__backend_ops ms__backend_memory;
extern const ms__backend_ops ms__backend_file;
extern const ms__backend_ops ms__backend_device;

/* The backend for these options; NULL where this build has none for the tier. */
const ms__backend_ops *ms__backend_choose(const ms__backend_options *options);

/* May a transfer name this memory? Where only the backend can reach it, it must. */
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
