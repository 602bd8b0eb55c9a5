/*
 * The choice of pieces that share a request. One transfer writes or reads several small
 * extents that are neighbours on the tier, at nearly the cost of one: a system call, an
 * interrupt and a switch of threads are paid once.
 *
 * Called by a worker that has just taken a piece. Owns nothing: links tickets into the
 * worker's job, from which each ends separately, with its own checksum and destination. If
 * the transfer fails, each of them fails. A ticket cancelled meanwhile is moved anyway and
 * does not affect the others.
 *
 * No transfer waits for others to join it. A store wakes a worker, which starts it at once. A
 * worker takes neighbours along only if more pieces wait than lanes have places; it takes
 * them in the order of the queues, and leaves a piece for each place. Joined pieces end
 * together: the first ends later than alone, at most by the time to move and check
 * REQUEST_BYTES_MAX. A piece that a caller waits for is moved alone.
 */
#include "base/units.h"
#include "offload/engine.h"

/* Moving this much takes about as long as starting any transfer. */
#define SMALL_BYTES (UINT64_C(64) << 10)
#define REQUEST_BYTES_MAX (UINT64_C(256) << 10)

/* A ticket of one small, uncompressed piece. */
static bool may_join(const ms_offload *engine, const ms__ticket *ticket)
{
    if (ticket->is_urgent || ticket->piece_count != 1 || ticket->extent_bytes > SMALL_BYTES) {
        return false;
    }
    return ticket->direction == MS__READ
               ? ticket->pieces[0].compressed_bytes == 0
               : ticket->pieces[0].copy != NULL && !ms__compression_may(engine, ticket->bytes);
}

/* Whether `next` begins at the end of `ticket`: on the tier, and for a write also in memory. A
 * joined read passes through a bounce slot, so its destination does not matter. */
static bool is_followed_by(const ms__ticket *ticket, const ms__ticket *next)
{
    return next->direction == ticket->direction && next->position == ticket->position + ticket->extent_bytes &&
           (ticket->direction == MS__READ || next->pieces[0].copy == ticket->pieces[0].copy + ticket->extent_bytes);
}

void ms__job_take_along(ms_offload *engine, ms__job *job)
{
    uint64_t bytes = job->ticket->extent_bytes;
    uint64_t most_bytes = ms__min_u64(REQUEST_BYTES_MAX, engine->slot_bytes);
    ms__ticket *last = job->ticket;
    if (!engine->backend->joins_neighbours || !may_join(engine, job->ticket)) {
        return;
    }
    while (engine->waiting_count > engine->free_places) {
        ms__ticket *next = ms__transfer_first(engine, MS__WISH_ANY);
        uint32_t piece;
        bytes += next->extent_bytes;
        if (bytes > most_bytes || !may_join(engine, next)) {
            return;
        }
        bool is_behind = is_followed_by(last, next);
        if (!is_behind && !is_followed_by(next, job->ticket)) { /* backward fetches in reverse order */
            return;
        }
        (void)ms__transfer_take(engine, MS__WISH_ANY, &next, &piece);
        if (is_behind) {
            last = last->joined = next;
        } else {
            next->joined = job->ticket;
            job->ticket = next;
        }
    }
}
