/*
 * engine.h - the internals of an ms_offload, shared by the files that implement it.
 *
 *   engine.c       open, close, statistics
 *   request.c      the calls: store, fetch, wait, drop, reap, quiesce
 *   transfer.c     the choice of the next piece, and the end of a transfer
 *   joining.c      the choice of pieces that share a request
 *   worker.c       the threads that drive the backend's lanes
 *   compression.c  the choice of pieces to compress
 *   fork.c         engines when the process forks or exits
 *
 * Why it never deadlocks. Four things are scarce: slots, room in lanes, space of the
 * tier, and the lock.
 *
 *   1. A lane's transfers end without help: finish() waits for the kernel (or copies) and
 *      for nothing of the engine. Each lane owns one bounce slot per transfer, so a fetch
 *      never needs a shared slot. Pieces that share a request (joining.c) were all ready
 *      when it started, so it waits for none of them.
 *   2. A shared slot, or room in one, is held either by a caller that is copying into it,
 *      which waits for nothing, or by a ready piece. A ready piece is in a queue or in a
 *      lane; lanes take from the queues whenever they have room, and 1 gives them room.
 *      So every slot is freed, whatever callers do. If more threads store than slots
 *      exist, each has ready pieces in all its slots, none waits for a slot while holding
 *      an empty one, and a store of any size needs a single slot. Pieces that share a slot
 *      count as if each had its own, so they take none from others.
 *   3. A free slot goes to the first thread that wakes. A caller may be overtaken, but
 *      only by stores, each of which is finite; its wait also has a deadline.
 *   4. No call waits for space: a full tier refuses the store (MS_ENOSPC) and the caller
 *      keeps its bytes. So no store waits for a drop, which only the caller could make.
 *   5. Under the lock, only conditions are waited for, which release it. It is the
 *      innermost lock except the backend's own (space of the tier), which takes no other.
 *      Before a fork the registry's lock is taken first, then the engines' in its order.
 *   6. Memory is bounded: copies fill the slab at most, a caller that is faster than the
 *      tier waits in the store call (back-pressure), and direct stores use no slot. Only
 *      the table of tickets grows, with the tickets that live at the same time.
 *
 * If a device hangs, 1 fails. Then only two promises remain: waits end at their deadline
 * with MS_ETIMEDOUT, and memory that a lane may still write to is never freed.
 *
 * One lock guards the second part of struct ms_offload. It is held for bookkeeping only:
 * never while bytes are copied, hashed or moved, while the backend is called (except to
 * release an orphan's extent), or while a line is logged (a sink may wait for a lock that
 * another caller holds).
 *
 * Tests: tests/c/offload/ (test_transfers.c, test_order.c, test_joining.c, test_limits.c,
 * test_hang.c, test_process.c, test_random.c, explore/).
 */
#ifndef MS_OFFLOAD_ENGINE_H
#define MS_OFFLOAD_ENGINE_H

#include <stdatomic.h>

#include "base/checksum.h"
#include "base/thread.h"
#include "offload/codec.h"
#include "offload/slots.h"
#include "offload/tickets.h"

/* In the order in which lanes look for work. */
typedef enum ms__queue {
    MS__QUEUE_URGENT, /* a caller waits for it; the latest caller's comes first */
    MS__QUEUE_FETCH,
    MS__QUEUE_STORE,
    MS__QUEUE_COUNT
} ms__queue;

/* A request in a lane: a piece, or neighbouring tickets of one piece each. */
typedef struct ms__job {
    ms__io io; /* first: finish() returns this address */
    ms__ticket *ticket; /* and those joined to it, in the order of their positions */
    uint32_t piece;
    uint32_t stall_count;    /* consecutive answers without progress */
    uint64_t bytes;          /* of the piece, without padding */
    unsigned char *memory;   /* the request's start; io.memory advances */
    unsigned char *bounce;   /* a private slot, for destinations that are not direct */
    uint64_t started_ns;
    uint64_t moved_bytes;    /* to move in all: compressed, padding included */
    uint64_t codec_ns;       /* processor time of the codec */
    bool is_hashed;          /* by the caller, while it copied the piece into a slot */
    bool is_running;
} ms__job;

typedef struct ms__worker {
    ms_offload *engine;
    ms__lane *lane;
    ms__job *jobs; /* [backend->lane_depth] */
    uint32_t running_count;
    ms__codec *codec; /* NULL: the engine compresses nothing */
    ms__thread thread;
} ms__worker;

/* Bytes that passed the codecs, and the processor time for them. */
typedef struct ms__codec_cost {
    uint64_t bytes;
    uint64_t ns;
} ms__codec_cost;

typedef struct ms__compression {
    bool is_on;
    bool is_always;   /* whatever it costs */
    uint64_t link_ns; /* to move COMPRESSION_UNIT_BYTES down and up; 0: unknown */
    /* Guarded by the engine's lock once it is open. */
    ms__codec_cost down, up;
    bool is_told;
} ms__compression;

struct ms_offload {
    ms__backend *backend;
    ms__slab slab;
    ms__worker *workers;
    uint32_t worker_count;
    uint64_t slot_bytes;
    uint64_t timeout_ns;
    ms_tier tier; /* as requested */
    ms__checksum_fn checksum; /* NULL: nothing is verified */
    ms__checksum_copy_fn checksum_copy;
    ms__compression compression;
    char description[MS__DESCRIPTION_MAX];
    ms__link registry_link; /* of fork.c */
    _Atomic size_t ended_count; /* stores that ms_offload_reap() has to return */

    ms__mutex lock; /* ---- guards all that follows ---- */
    ms__cond work_ready; /* lanes wait here */
    ms__cond changed;    /* callers wait here: a transfer ended, a slot came free */
    ms__slots slots;
    ms__tickets tickets;
    ms__link queues[MS__QUEUE_COUNT];
    ms__link ended;         /* these stores, oldest first */
    uint32_t waiting_count; /* pieces in queues */
    uint32_t running_count; /* pieces in lanes */
    uint32_t free_places;   /* requests that lanes could start now */
    uint32_t busy_count;    /* tickets storing or fetching */
    uint32_t caller_count;  /* threads that wait in a call */
    bool is_paused;         /* a fork or exit is in progress: lanes start nothing */
    bool is_closing;
    bool is_forked;         /* a child's copy: no lane exists */
    ms_offload_stats stats;
};

/* ---- transfer.c; the caller holds the lock ---- */

/* Lets lanes take `piece_count` more of the ticket's pieces. */
void ms__transfer_enqueue(ms_offload *engine, ms__ticket *ticket, uint32_t piece_count);

/* Puts the ticket first in the urgent queue. */
void ms__transfer_promote(ms_offload *engine, ms__ticket *ticket);

/* The ticket whose piece is moved next, or NULL. */
ms__ticket *ms__transfer_first(ms_offload *engine);

/* Takes that piece; false if there is none. */
bool ms__transfer_take(ms_offload *engine, ms__ticket **ticket, uint32_t *piece);

/* Called when a taken piece has ended. */
void ms__transfer_piece_ended(ms_offload *engine, ms__ticket *ticket, uint32_t piece, const ms__failure *failure);

/* Starts no further piece; once the running ones have ended, the transfer fails with
 * MS_ECANCELED. */
void ms__transfer_stop(ms_offload *engine, ms__ticket *ticket);

/* The same for a ticket that its owner has released: its end is not reported. */
void ms__transfer_cancel(ms_offload *engine, ms__ticket *ticket);

/* Ends the transfer if no piece of it is left. */
void ms__transfer_settle(ms_offload *engine, ms__ticket *ticket);

/* Starts fetching a stored, idle ticket into `memory`, after `mark`. */
void ms__transfer_start_fetch(ms_offload *engine, ms__ticket *ticket, unsigned char *memory, uint64_t capacity,
                              void *mark);

/* Returns a mark to the backend that made it; NULL is allowed. */
void ms__transfer_forget_ends(ms_offload *engine, ms__ticket *ticket);
void ms__transfer_unmark(ms_offload *engine, void **mark);

uint64_t ms__piece_bytes(const ms_offload *engine, const ms__ticket *ticket, uint32_t piece);

/* Fills `err` with the failure of the ticket's transfer and returns its code. */
int ms__transfer_error(const ms_offload *engine, const ms__ticket *ticket, ms_error *err);

/* ---- joining.c; the caller holds the lock ---- */

/* Joins to a job's piece, just taken, the pieces that wait behind it and fit the same
 * request, as long as every lane keeps a piece to take. */
void ms__job_take_along(ms_offload *engine, ms__job *job);

/* ---- request.c ---- */

/* Removes an idle ticket from all lists and ends its number; the caller releases the
 * extent in the backend. Under the lock. */
void ms__ticket_retire(ms_offload *engine, ms__ticket *ticket);

/* ---- worker.c ---- */

/* Allocates lane and jobs; `first_slot` is the first of its private slots. */
int ms__worker_open(ms__worker *worker, ms_offload *engine, uint32_t first_slot, ms_error *err);
/* Call after the thread has ended, or in a forked child, which has no such thread. */
void ms__worker_close(ms__worker *worker);
/* Body of the worker's thread: runs until the engine closes. */
void ms__worker_run(void *worker);

/* ---- compression.c; without the lock ---- */

/* Decides whether this engine compresses anything, from the link's rates and the codec's
 * measured cost; logs the decision unless the options fix it. Called before workers are opened. */
int ms__compression_open(ms_offload *engine, const ms_offload_options *options, ms_error *err);

/* Whether a piece of so many bytes may be compressed before it is written. */
bool ms__compression_may(const ms_offload *engine, uint64_t bytes);

/* Before a piece is written: compresses it into the job's bounce slot if that saves time. */
void ms__compression_compress(ms__worker *worker, ms__job *job);

/* After a compressed piece was read: decompresses it to `to`. False if the bytes differ from
 * those written. */
bool ms__compression_decompress(ms__worker *worker, ms__job *job, unsigned char *to);

/* Called when a piece that passed the codec has ended. Under the lock; true if the caller has to
 * call ms__compression_report(), without the lock. */
bool ms__compression_count(ms_offload *engine, const ms__job *job);
void ms__compression_report(ms_offload *engine);

/* ---- fork.c ---- */

/* Installs the process's handlers, before its first engine: without them a fork in the middle of
 * a read would corrupt the child's pages. Fails only without memory. */
int ms__fork_prepare(ms_error *err);
/* From register to unregister the engine pauses for forks and is unusable in children. */
void ms__fork_register(ms_offload *engine);
void ms__fork_unregister(ms_offload *engine);

#endif
