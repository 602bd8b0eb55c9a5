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
 * Why the engine never deadlocks. Four things are scarce: slots, room in lanes, space of
 * the tier, and the lock.
 *
 *   1. A lane's transfers end without help: finish() waits only for the kernel (or copies).
 *      Each lane owns one bounce slot per transfer, so a fetch never needs a shared slot.
 *      Pieces that share a request (joining.c) were all ready when it started, so it waits
 *      for none of them.
 *      A store from a device waits in its lane for the device's compute. So one lane of such an
 *      engine takes fetches only, and passes a wake-up for a store on to the others.
 *   2. A shared slot, or room in one, is held by a caller that copies into it and waits for
 *      nothing, or by a ready piece. A ready piece is in a queue or in a lane. Lanes take
 *      from the queues whenever they have room, and by 1 they get room. So every slot is
 *      freed, whatever callers do. If more threads store than slots exist, each thread has
 *      ready pieces in all its slots, and no thread holds an empty slot while it waits for
 *      another. A store of any size needs only one slot. Pieces that share a slot count as
 *      if each had its own, so they take no slot from others.
 *   3. A free slot goes to the first thread that wakes. A caller may be overtaken, but
 *      only by stores, each of which is finite; its wait also has a deadline.
 *   4. No call waits for space: a full tier refuses the store (MS_ENOSPC) and the caller
 *      keeps its bytes. So no store waits for a drop, which only the caller could make.
 *   5. Under the lock, threads wait only for conditions, which release it. Only the
 *      backend's lock (space of the tier) may be taken under it, and no lock under that.
 *      A fork first takes the registry's lock, then the engines' locks in its order.
 *   6. Memory is bounded: copies fill at most the slab, a caller that is faster than the
 *      tier waits in the store call (back-pressure), and direct stores use no slot. Only
 *      the table of tickets grows, with the number of live tickets.
 *
 * If a device hangs, 1 fails. Then only two promises remain: waits end at their deadline
 * with MS_ETIMEDOUT, and memory that a lane may still write to is never freed.
 *
 * One lock guards the second part of struct ms_offload. It is held only for bookkeeping:
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
    MS__QUEUE_URGENT, /* a caller waits for the ticket; the latest caller's ticket comes first */
    MS__QUEUE_FETCH,
    MS__QUEUE_STORE,
    MS__QUEUE_COUNT
} ms__queue;

/* A request in a lane: a piece, or neighbouring tickets of one piece each. */
typedef struct ms__job {
    ms__io io; /* first: finish() returns this address */
    ms__ticket *ticket; /* the first; tickets joined to it follow in order of position */
    uint32_t piece;
    uint32_t stall_count;    /* consecutive results without progress */
    uint64_t bytes;          /* of the piece, without padding */
    unsigned char *memory;   /* the request's start; io.memory advances */
    unsigned char *bounce;   /* a private slot, for destinations that are not direct */
    uint64_t started_ns;
    uint64_t moved_bytes;    /* total to move: compressed, padding included */
    uint64_t codec_ns;       /* processor time of the codec */
    bool is_hashed;          /* the caller hashed the piece while it copied it into a slot */
    bool is_running;
} ms__job;

typedef struct ms__worker {
    ms_offload *engine;
    ms__lane *lane;
    ms__job *jobs; /* [backend->lane_depth] */
    uint32_t running_count;
    bool only_fetches; /* takes no store, which may wait for the device's compute while a fetch is needed */
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
    bool is_always;   /* whatever the cost */
    uint64_t link_ns; /* time to move COMPRESSION_UNIT_BYTES down and up; 0: unknown */
    /* Guarded by the engine's lock once the engine is open. */
    ms__codec_cost down, up;
    bool is_told;
} ms__compression;

struct ms_offload {
    ms__backend *backend;
    ms__slab slab;
    ms__worker *workers;
    uint32_t worker_count;
    bool has_fetcher; /* the worker that takes only fetches has started; under the lock */
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
    ms__link ended;         /* the stores of `ended_count`, oldest first */
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

/* Lets lanes take `piece_count` more pieces of the ticket. */
void ms__transfer_enqueue(ms_offload *engine, ms__ticket *ticket, uint32_t piece_count);

/* Puts the ticket first in the urgent queue. */
void ms__transfer_promote(ms_offload *engine, ms__ticket *ticket);

/* The pieces that a worker takes. */
typedef enum ms__wish { MS__WISH_ANY, MS__WISH_FETCH, MS__WISH_STORE } ms__wish;

/* The ticket whose piece is moved next, or NULL. */
ms__ticket *ms__transfer_first(ms_offload *engine, ms__wish wish);

/* Takes that piece; false if there is none. */
bool ms__transfer_take(ms_offload *engine, ms__wish wish, ms__ticket **ticket, uint32_t *piece);

/* Called when a taken piece has ended. */
void ms__transfer_piece_ended(ms_offload *engine, ms__ticket *ticket, uint32_t piece, const ms__failure *failure);

/* Starts no further piece; once the running pieces have ended, the transfer fails with
 * MS_ECANCELED. */
void ms__transfer_stop(ms_offload *engine, ms__ticket *ticket);

/* The same for a ticket that its owner has released: its end is not reported. */
void ms__transfer_cancel(ms_offload *engine, ms__ticket *ticket);

/* Ends the transfer if none of its pieces is left. */
void ms__transfer_settle(ms_offload *engine, ms__ticket *ticket);

/* Starts fetching a stored, idle ticket into `memory`, after `mark`. */
void ms__transfer_start_fetch(ms_offload *engine, ms__ticket *ticket, unsigned char *memory, uint64_t capacity,
                              void *mark);

/* Returns the ends of the ticket's pieces to the backend. */
void ms__transfer_forget_ends(ms_offload *engine, ms__ticket *ticket);
/* Returns *mark to the backend that made it, and sets it to NULL; accepts NULL. */
void ms__transfer_unmark(ms_offload *engine, void **mark);

uint64_t ms__piece_bytes(const ms_offload *engine, const ms__ticket *ticket, uint32_t piece);

/* Fills `err` with the failure of the ticket's transfer and returns its code. */
int ms__transfer_error(const ms_offload *engine, const ms__ticket *ticket, ms_error *err);

/* ---- joining.c; the caller holds the lock ---- */

/* Joins to the piece that a job has just taken the pieces that wait behind it and fit the
 * same request, but leaves one piece for every lane. */
void ms__job_take_along(ms_offload *engine, ms__job *job);

/* ---- request.c ---- */

/* Removes an idle ticket from all lists and makes its number unknown; the caller releases
 * the extent in the backend. Under the lock. */
void ms__ticket_retire(ms_offload *engine, ms__ticket *ticket);

/* ---- worker.c ---- */

/* Allocates lane and jobs; `first_slot` is the first of its private slots. */
int ms__worker_open(ms__worker *worker, ms_offload *engine, uint32_t first_slot, ms_error *err);
/* Call after the thread has ended, or in a forked child, which has no such thread. */
void ms__worker_close(ms__worker *worker);
/* The worker's thread: runs until the engine closes. */
void ms__worker_run(void *worker);

/* ---- compression.c; without the lock ---- */

/* Decides whether this engine compresses anything, from the link's rates and the codec's
 * measured cost; logs the decision unless the options fix it. Called before workers are opened. */
int ms__compression_open(ms_offload *engine, const ms_offload_options *options, ms_error *err);

/* Whether a piece of `bytes` may be compressed before it is written. */
bool ms__compression_may(const ms_offload *engine, uint64_t bytes);

/* Before a piece is written: compresses it into the job's bounce slot if that saves time. */
void ms__compression_compress(ms__worker *worker, ms__job *job);

/* After a compressed piece was read: decompresses it to `to`. False if the bytes differ from
 * the written ones. */
bool ms__compression_decompress(ms__worker *worker, ms__job *job, unsigned char *to);

/* Called under the lock when a piece that passed the codec has ended. If true, the caller must call
 * ms__compression_report() without the lock. */
bool ms__compression_count(ms_offload *engine, const ms__job *job);
void ms__compression_report(ms_offload *engine);

/* ---- fork.c ---- */

/* Installs the process's handlers, before its first engine: without them a fork in the middle of
 * a read would corrupt the child's pages. Fails only when out of memory. */
int ms__fork_prepare(ms_error *err);
/* From register to unregister the engine pauses for forks and is unusable in children. */
void ms__fork_register(ms_offload *engine);
void ms__fork_unregister(ms_offload *engine);

#endif
