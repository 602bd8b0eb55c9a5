/*
 * Which pieces go in one request. Small extents that lie side by side in the tier are
 * written or read by one transfer, whose cost is nearly that of one of them: so they pay
 * for a system call, an interrupt and a switch of threads once.
 *
 * Called by a worker that has just taken a piece. Owns nothing: links tickets into the
 * worker's job, from which each is ended on its own, with its own checksum and its own
 * destination; a transfer that fails, fails each of them. One that is cancelled there goes
 * along without a purpose and leaves the others alone.
 *
 * What it promises to those who wait: nothing is held back for company. A store wakes a worker
 * and is started by it whether or not neighbours are about to come. Only where more
 * pieces wait than lanes have places for does whoever takes one take its neighbours along,
 * which would have waited, in the order of the queues, leaving a piece for each place. The
 * first of them ends with the others: later than alone by what it takes to move and check
 * REQUEST_BYTES_MAX at most. What a caller waits for goes alone.
 */
#include "base/units.h"
#include "offload/engine.h"

/* Moving so much takes about as long as any transfer takes to begin. */
#define SMALL_BYTES (UINT64_C(64) << 10)
#define REQUEST_BYTES_MAX (UINT64_C(256) << 10)

/* A ticket of one small piece that is moved as it is. */
static bool may_join(const ms_offload *engine, const ms__ticket *ticket)
{
    if (ticket->is_urgent || ticket->piece_count != 1 || ticket->extent_bytes > SMALL_BYTES) {
        return false;
    }
    return ticket->direction == MS__READ
               ? ticket->pieces[0].compressed_bytes == 0
               : ticket->pieces[0].copy != NULL && !ms__compression_may(engine, ticket->bytes);
}

/* Whether `next` goes on where `ticket` ends: in the tier, and where a write takes it from. What is
 * read comes by a bounce slot, wherever it goes then. */
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
        ms__ticket *next = ms__transfer_first(engine);
        uint32_t piece;
        bytes += next->extent_bytes;
        if (bytes > most_bytes || !may_join(engine, next)) {
            return;
        }
        bool is_behind = is_followed_by(last, next);
        if (!is_behind && !is_followed_by(next, job->ticket)) { /* backward asks for the last first */
            return;
        }
        (void)ms__transfer_take(engine, &next, &piece);
        if (is_behind) {
            last = last->joined = next;
        } else {
            next->joined = job->ticket;
            job->ticket = next;
        }
    }
}
