/*
 * The queues and the life of a transfer. A transfer is in one queue while it has pieces to
 * take; every lane takes the next piece of the first transfer. So several lanes share a
 * large transfer, and an urgent fetch overtakes a large store after one piece instead of
 * after all of it.
 */
#include "base/units.h"
#include "offload/engine.h"

#define TICKET_OF_QUEUE(link) MS__LIST_MEMBER(link, ms__ticket, queue_link)

uint64_t ms__piece_bytes(const ms_offload *engine, const ms__ticket *ticket, uint32_t piece)
{
    uint64_t offset = piece * engine->slot_bytes;
    return ms__min_u64(engine->slot_bytes, ticket->bytes - offset);
}

/* Wakes one worker per piece. A worker that is awake takes further pieces anyway, and one that
 * wakes for nothing costs the caller microseconds and uses a core. */
static void wake_workers(ms_offload *engine, uint32_t piece_count)
{
    if (piece_count >= engine->worker_count) {
        ms__cond_broadcast(&engine->work_ready);
        return;
    }
    for (uint32_t i = 0; i < piece_count; i++) {
        ms__cond_signal(&engine->work_ready);
    }
}

void ms__transfer_enqueue(ms_offload *engine, ms__ticket *ticket, uint32_t piece_count)
{
    ticket->ready_count += piece_count;
    engine->waiting_count += piece_count;
    if (!ms__list_linked(&ticket->queue_link)) {
        ms__queue queue = ticket->is_urgent               ? MS__QUEUE_URGENT
                          : ticket->direction == MS__READ ? MS__QUEUE_FETCH
                                                          : MS__QUEUE_STORE;
        ms__list_append(&engine->queues[queue], &ticket->queue_link);
    }
    wake_workers(engine, ticket->ready_count - ticket->next_piece);
}

void ms__transfer_promote(ms_offload *engine, ms__ticket *ticket)
{
    ticket->is_urgent = true;
    if (ms__list_linked(&ticket->queue_link)) {
        ms__list_remove(&ticket->queue_link);
        ms__list_prepend(&engine->queues[MS__QUEUE_URGENT], &ticket->queue_link);
    }
}

static bool is_wished(const ms__ticket *ticket, ms__wish wish)
{
    return wish == MS__WISH_ANY || (ticket->direction == MS__READ) == (wish == MS__WISH_FETCH);
}

ms__ticket *ms__transfer_first(ms_offload *engine, ms__wish wish)
{
    int queue_count = wish == MS__WISH_FETCH ? MS__QUEUE_STORE : MS__QUEUE_COUNT;
    for (int queue = 0; queue < queue_count && !engine->is_paused; queue++) {
        const ms__link *head = &engine->queues[queue];
        for (ms__link *link = head->next; link != head; link = link->next) {
            ms__ticket *ticket = TICKET_OF_QUEUE(link);
            if (is_wished(ticket, wish)) {
                return ticket;
            }
        }
    }
    return NULL;
}

bool ms__transfer_take(ms_offload *engine, ms__wish wish, ms__ticket **ticket, uint32_t *piece)
{
    ms__ticket *first = ms__transfer_first(engine, wish);
    if (first == NULL) {
        return false;
    }
    *ticket = first;
    *piece = first->next_piece++;
    if (first->next_piece == first->ready_count) {
        ms__list_remove(&first->queue_link);
    }
    first->running_count++;
    engine->running_count++;
    engine->waiting_count--;
    return true;
}

static void give_slot_back(ms_offload *engine, ms__piece *piece)
{
    if (piece->copy != NULL) {
        ms__slots_give(&engine->slots, piece->copy);
        piece->copy = NULL;
        ms__cond_broadcast(&engine->changed);
    }
}

static void abandon_waiting_pieces(ms_offload *engine, ms__ticket *ticket)
{
    ms__list_remove(&ticket->queue_link);
    engine->waiting_count -= ticket->ready_count - ticket->next_piece;
    for (; ticket->next_piece < ticket->ready_count; ticket->next_piece++) {
        give_slot_back(engine, &ticket->pieces[ticket->next_piece]);
    }
}

static void end_store(ms_offload *engine, ms__ticket *ticket)
{
    engine->stats.storing_bytes -= ticket->bytes;
    ticket->is_stored = ticket->failure.code == MS_OK;
    ticket->state = ticket->is_stored ? MS_TICKET_STORED : MS_TICKET_FAILED;
    if (!ticket->is_canceled) {
        ms__list_append(&engine->ended, &ticket->reap_link);
        atomic_fetch_add(&engine->ended_count, 1);
    }
}

void ms__transfer_unmark(ms_offload *engine, void **mark)
{
    if (*mark != NULL) {
        engine->backend->ops->unmark(engine->backend, *mark);
        *mark = NULL;
    }
}

void ms__transfer_forget_ends(ms_offload *engine, ms__ticket *ticket)
{
    for (uint32_t i = 0; i < ticket->piece_count; i++) {
        ms__transfer_unmark(engine, &ticket->pieces[i].end);
    }
    ticket->is_followed = false;
}

static void end_transfer(ms_offload *engine, ms__ticket *ticket)
{
    ms__transfer_unmark(engine, &ticket->mark);
    engine->busy_count--;
    if (ticket->direction == MS__WRITE) {
        end_store(engine, ticket);
    } else {
        engine->stats.fetching_bytes -= ticket->bytes;
        ticket->state = ticket->failure.code == MS_OK ? MS_TICKET_FETCHED : MS_TICKET_FAILED;
    }
    bool fetch_follows = ticket->fetch_is_wanted && ticket->state == MS_TICKET_STORED;
    ticket->fetch_is_wanted = false;
    if (fetch_follows) {
        void *mark = ticket->wanted_mark;
        ticket->wanted_mark = NULL;
        ms__transfer_start_fetch(engine, ticket, ticket->wanted_memory, ticket->wanted_capacity, mark);
        return;
    }
    ms__transfer_unmark(engine, &ticket->wanted_mark);
    ticket->is_urgent = false;
    if (ticket->is_orphan) {
        ms__ticket_retire(engine, ticket);
        engine->backend->ops->release(engine->backend, ticket->position, ticket->extent_bytes);
    }
    ms__cond_broadcast(&engine->changed);
}

void ms__transfer_settle(ms_offload *engine, ms__ticket *ticket)
{
    bool is_cut_short = ticket->is_canceled || ticket->failure.code != MS_OK;
    if (is_cut_short) {
        abandon_waiting_pieces(engine, ticket);
    }
    bool is_all_taken = is_cut_short || ticket->next_piece == ticket->piece_count;
    if (is_all_taken && ticket->running_count == 0 && !ticket->is_filling) {
        end_transfer(engine, ticket);
    }
}

void ms__transfer_piece_ended(ms_offload *engine, ms__ticket *ticket, uint32_t piece, const ms__failure *failure)
{
    ticket->running_count--;
    engine->running_count--;
    if (ticket->joined != NULL) { /* it has one piece: no other lane reads the field */
        ticket->joined = NULL;
    }
    if (ticket->direction == MS__WRITE) {
        give_slot_back(engine, &ticket->pieces[piece]);
    }
    if (failure->code != MS_OK && ticket->failure.code == MS_OK) {
        ticket->failure = *failure;
    }
    if (engine->running_count == 0) { /* a fork or a close may wait for it */
        ms__cond_broadcast(&engine->changed);
    }
    ms__transfer_settle(engine, ticket);
}

void ms__transfer_stop(ms_offload *engine, ms__ticket *ticket)
{
    ticket->fetch_is_wanted = false;
    if (ticket->failure.code == MS_OK) {
        ticket->failure.code = MS_ECANCELED;
    }
    ms__transfer_settle(engine, ticket);
}

void ms__transfer_cancel(ms_offload *engine, ms__ticket *ticket)
{
    ticket->is_canceled = true;
    ms__transfer_stop(engine, ticket);
}

void ms__transfer_start_fetch(ms_offload *engine, ms__ticket *ticket, unsigned char *memory, uint64_t capacity,
                              void *mark)
{
    ms__transfer_forget_ends(engine, ticket);
    ticket->mark = mark;
    ticket->state = MS_TICKET_FETCHING;
    ticket->direction = MS__READ;
    ticket->memory = memory;
    ticket->capacity = capacity;
    ticket->ready_count = 0;
    ticket->next_piece = 0;
    ticket->failure = (ms__failure){0};
    engine->busy_count++;
    engine->stats.fetching_bytes += ticket->bytes;
    engine->stats.fetched_bytes += ticket->bytes;
    ms__transfer_enqueue(engine, ticket, ticket->piece_count);
}

int ms__transfer_error(const ms_offload *engine, const ms__ticket *ticket, ms_error *err)
{
    const ms__failure *failure = &ticket->failure;
    const char *place = engine->backend->place;
    ms__unit_text size = ms__text_bytes(ticket->bytes);
    if (failure->code == MS_ECANCELED) {
        return ms_fail(err, MS_ECANCELED, "%s: a transfer of %s was cancelled", place, size.text);
    }
    if (failure->code == MS_ECHECKSUM) {
        return ms_fail(err, MS_ECHECKSUM, "%s: the bytes read back at offset %llu of %s differ from the stored ones",
                       place, (unsigned long long)failure->offset, size.text);
    }
    const char *verb = failure->direction == MS__WRITE ? "write" : "read";
    return ms_fail_errno(err, failure->code, failure->system_errno, "%s: %s of %s failed", place, verb, size.text);
}
