/*
 * engine.h - the inside of an ms_offload, shared by the files that implement it.
 *
 *   engine.c    open, close, statistics
 *   request.c   the calls: store, fetch, wait, drop, reap, quiesce
 *   transfer.c  which piece is next, and when a transfer has ended
 *   joining.c   which pieces go in one request
 *   worker.c    the threads that drive the backend's lanes
 *   compression.c  which pieces are compressed on their way
 *   fork.c      what happens to engines when the process forks or exits
 *
 * Why it always goes on. Four things are scarce: slots, room in lanes, space of the
 * tier, and the lock.
 *
 *   1. A lane's transfers end by themselves: finish() waits for the kernel (or copies)
 *      and for nothing of ours. Bounce slots are a lane's own, one for each transfer it
 *      can have, so a fetch never asks for a slot. Pieces that go in one request
 *      (joining.c) were all ready when it was started and end with it: it waits for none.
 *   2. A shared slot, or room in one, is held either by a caller that is copying into it,
 *      which waits for nothing, or by a piece that is ready. A ready piece is in a queue or
 *      in a lane; lanes take from the queues whenever they have room, and room comes by 1.
 *      So all that was taken comes back, whatever callers do: also where more threads
 *      store at the same time than there are slots, each has pieces ready for all slots
 *      it holds, none waits for a slot while keeping one back, and a store of any size
 *      goes through a single slot. Those who share a slot count as if each had its own, so
 *      they keep none from others.
 *   3. Slots are given to whoever wakes first. A caller may be overtaken, but only by
 *      stores, each of which is finite; its wait has a deadline besides.
 *   4. Space is never waited for: a full tier refuses the store (MS_ENOSPC) and the
 *      caller keeps its bytes. So no store waits for a drop, which only the caller
 *      could make.
 *   5. Under the lock nothing is waited for but conditions, which give it up. It is the
 *      innermost but for the backend's own (space of the tier), which holds no other;
 *      before a fork the registry's lock comes first, then the engines', in its order.
 *   6. Memory is bounded: the slab is all that copies can fill, a caller that outruns
 *      the tier waits in the store call (that is the back-pressure), and direct stores
 *      take none. What grows is the table of tickets: with the tickets that live at the
 *      same time, not with those that were ever made.
 *
 * Where a device hangs, 1 fails, and with it every promise but this: waits end at their
 * deadline with MS_ETIMEDOUT, and memory that a lane may still write to is kept.
 *
 * One lock guards everything below the line in struct ms_offload. It is held for
 * bookkeeping only: never while bytes are copied, hashed or moved, while the
 * backend is called (but for the release of an orphan's extent), or while a line
 * is logged (a sink may wait for a lock that a caller of ours holds).
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
    MS__QUEUE_URGENT, /* somebody waits for it; the last to ask comes first */
    MS__QUEUE_FETCH,
    MS__QUEUE_STORE,
    MS__QUEUE_COUNT
} ms__queue;

/* A request in a lane: a piece, or neighbouring tickets of one piece each. */
typedef struct ms__job {
    ms__io io; /* first: finish() gives this address back */
    ms__ticket *ticket; /* and those that joined it, in the order of their positions */
    uint32_t piece;
    uint32_t stall_count;    /* answers without progress so far */
    uint64_t bytes;          /* of the piece's own, without padding */
    unsigned char *memory;   /* where the request begins; io.memory moves on */
    unsigned char *bounce;   /* a private slot, for destinations that are not direct */
    uint64_t started_ns;
    uint64_t moved_bytes;    /* to move in all: padding included, compressed */
    uint64_t codec_ns;       /* processor time that the codec took for it */
    bool is_hashed;          /* by the caller, who copied it into a slot */
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

/* Bytes that went through the codecs, and what that took. */
typedef struct ms__codec_cost {
    uint64_t bytes;
    uint64_t ns;
} ms__codec_cost;

typedef struct ms__compression {
    bool is_on;
    bool is_always;   /* whatever it costs */
    uint64_t link_ns; /* that COMPRESSION_UNIT_BYTES take down and up again; 0: not known */
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
    ms_tier tier; /* that was asked for */
    ms__checksum_fn checksum; /* NULL: nothing is verified */
    ms__checksum_copy_fn checksum_copy;
    ms__compression compression;
    char description[MS__DESCRIPTION_MAX];
    ms__link registry_link; /* of fork.c */
    _Atomic size_t ended_count; /* stores that ms_offload_reap() has to tell of */

    ms__mutex lock; /* ---- guards all that follows ---- */
    ms__cond work_ready; /* lanes wait here */
    ms__cond changed;    /* callers wait here: a transfer ended, a slot came free */
    ms__slots slots;
    ms__tickets tickets;
    ms__link queues[MS__QUEUE_COUNT];
    ms__link ended;         /* of those stores, oldest first */
    uint32_t waiting_count; /* pieces in queues */
    uint32_t running_count; /* pieces in lanes */
    uint32_t free_places;   /* requests that lanes could start now */
    uint32_t busy_count;    /* tickets storing or fetching */
    uint32_t caller_count;  /* threads that wait in a call */
    bool is_paused;         /* a fork is under way: lanes start nothing */
    bool is_closing;
    bool is_forked;         /* this is a child's copy: no lane exists */
    ms_offload_stats stats;
};

/* ---- transfer.c; the caller holds the lock ---- */

/* Lets lanes take so many more of the ticket's pieces. */
void ms__transfer_enqueue(ms_offload *engine, ms__ticket *ticket, uint32_t piece_count);

/* Makes it the next thing to be done. */
void ms__transfer_promote(ms_offload *engine, ms__ticket *ticket);

/* Whose piece is the next to move; NULL if there is none. */
ms__ticket *ms__transfer_first(ms_offload *engine);

/* Takes that piece; false if there is none. */
bool ms__transfer_take(ms_offload *engine, ms__ticket **ticket, uint32_t *piece);

/* A piece that was taken has ended. */
void ms__transfer_piece_ended(ms_offload *engine, ms__ticket *ticket, uint32_t piece, const ms__failure *failure);

/* Starts no further piece; the transfer ends, failed with MS_ECANCELED, once the running
 * ones have. */
void ms__transfer_stop(ms_offload *engine, ms__ticket *ticket);

/* The same for a ticket that its owner has given up: nobody is told. */
void ms__transfer_cancel(ms_offload *engine, ms__ticket *ticket);

/* Ends the transfer if nothing of it is left to do. */
void ms__transfer_settle(ms_offload *engine, ms__ticket *ticket);

/* Starts bringing a stored, idle ticket to `memory`, after `mark`. */
void ms__transfer_start_fetch(ms_offload *engine, ms__ticket *ticket, unsigned char *memory, uint64_t capacity,
                              void *mark);

/* Gives a mark back to the backend that made it; NULL is allowed. */
void ms__transfer_unmark(ms_offload *engine, void **mark);

uint64_t ms__piece_bytes(const ms_offload *engine, const ms__ticket *ticket, uint32_t piece);

/* Fills `err` with how the ticket's transfer failed and returns the code. */
int ms__transfer_error(const ms_offload *engine, const ms__ticket *ticket, ms_error *err);

/* ---- joining.c; the caller holds the lock ---- */

/* To a piece that was just taken: takes along those that wait behind it and can go in the
 * same request, where no lane is left without work for it. */
void ms__job_take_along(ms_offload *engine, ms__job *job);

/* ---- request.c ---- */

/* Takes an idle ticket out of all lists and ends its number; the caller gives the
 * extent back to the backend. Under the lock. */
void ms__ticket_retire(ms_offload *engine, ms__ticket *ticket);

/* ---- worker.c ---- */

/* Makes lane and jobs; `first_slot` is the first of its private slots. */
int ms__worker_open(ms__worker *worker, ms_offload *engine, uint32_t first_slot, ms_error *err);
/* The thread, if it was started, has ended (or exists in the parent only). */
void ms__worker_close(ms__worker *worker);
/* Body of its thread: runs until the engine closes. */
void ms__worker_run(void *worker);

/* ---- compression.c; without the lock ---- */

/* Decides whether this engine compresses anything, from the link's rates and what the codec
 * costs here; logs the decision where there was one to make. Before the workers are opened. */
int ms__compression_open(ms_offload *engine, const ms_offload_options *options, ms_error *err);

/* Whether a piece of so many bytes may be compressed before it is written. */
bool ms__compression_may(const ms_offload *engine, uint64_t bytes);

/* Before a piece is written: compresses it into the job's bounce slot if that pays. */
void ms__compression_compress(ms__worker *worker, ms__job *job);

/* After a compressed piece was read: rebuilds it at `to`. False where what was read is not what
 * was written. */
bool ms__compression_decompress(ms__worker *worker, ms__job *job, unsigned char *to);

/* A piece that went through the codec has ended. Under the lock; true when the caller is to
 * tell of it with ms__compression_tell(), without the lock. */
bool ms__compression_count(ms_offload *engine, const ms__job *job);
void ms__compression_tell(ms_offload *engine);

/* ---- fork.c ---- */

/* Before the first engine of a process: one that a fork could not bring to rest would have reads
 * land in its child's pages. Fails only without memory. */
int ms__fork_prepare(ms_error *err);
/* From register to unregister the engine is quiet across forks and dead in children. */
void ms__fork_register(ms_offload *engine);
void ms__fork_unregister(ms_offload *engine);

#endif
