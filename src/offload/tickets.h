/*
 * tickets.h - the table of tickets: the extent of each, and its transfer.
 *
 * A ticket number holds an index and a generation, so that a dropped number is recognised
 * and never means another ticket. Lanes point to the structs, so they keep their addresses
 * while the table grows. All calls are made under the engine's lock.
 *
 * Tests: tests/c/offload/test_tickets.c.
 */
#ifndef MS_OFFLOAD_TICKETS_H
#define MS_OFFLOAD_TICKETS_H

#include "offload/backend.h"
#include "offload/list.h"

/* A part of an extent that is hashed and ends as a unit: a slot's size, the last one shorter. */
typedef struct ms__piece {
    uint64_t checksum;            /* of the bytes that were stored */
    uint64_t compressed_checksum; /* of the compressed bytes on the tier */
    uint32_t compressed_bytes;    /* 0: the piece is not compressed */
    void *end;           /* ms__io.end of a fetch that is queued and may not have ended; else NULL */
    unsigned char *copy; /* a copied store's bytes in a slot, until they are written; else NULL */
} ms__piece;

/* The failure of a transfer; its text is written on request. */
typedef struct ms__failure {
    int code; /* MS_OK: it did not fail */
    int system_errno;
    ms__direction direction;
    uint64_t offset; /* of the piece in the extent */
} ms__failure;

typedef struct ms__ticket {
    ms_ticket id; /* 0: not in use */
    uint32_t generation;
    uint32_t index;

    /* The stored bytes. Fixed from ms_offload_store() to ms_offload_drop(). */
    uint64_t bytes;
    uint64_t extent_bytes; /* rounded up to the backend's block */
    uint64_t position;
    ms__piece *pieces;
    uint32_t piece_count;
    uint32_t piece_capacity;

    ms_ticket_state state;
    bool is_stored;   /* the tier has the bytes: a failed fetch may be tried again */
    bool is_filling;  /* a caller is still copying pieces into slots */
    bool is_canceled; /* dropped, or the engine closes: start no piece */
    bool is_orphan;   /* its owner gave up waiting: the end of the transfer releases it */
    bool is_urgent;       /* a caller waits for it */
    bool is_followed;     /* a caller has waited for the ends of its pieces, or ordered a stream after them */
    bool fetch_is_wanted; /* fetch it when the store has ended */

    /* The transfer in flight. */
    ms__direction direction;
    unsigned char *memory;
    uint64_t capacity;
    void *mark; /* from the backend, for device memory; else NULL */
    void *wanted_mark; /* these three: of the fetch that waits for the store */
    unsigned char *wanted_memory;
    uint64_t wanted_capacity;
    uint32_t ready_count;   /* pieces that may be taken */
    uint32_t next_piece;    /* first piece not taken */
    uint32_t running_count; /* pieces in lanes */
    uint32_t follower_count; /* callers that wait, without the lock, for queued ends of its pieces */
    struct ms__ticket *joined; /* in a lane: the next ticket in the same request */
    ms__failure failure;

    ms__link queue_link;
    ms__link reap_link;
} ms__ticket;

typedef struct ms__tickets {
    ms__ticket **all;
    uint32_t count;
    uint32_t capacity;
    uint32_t *free_list;
    uint32_t free_count;
} ms__tickets;

void ms__tickets_init(ms__tickets *tickets);
void ms__tickets_destroy(ms__tickets *tickets);

/* A ticket in use with room for `piece_count` pieces, otherwise all zeros; NULL when out of
 * memory. */
ms__ticket *ms__tickets_new(ms__tickets *tickets, uint32_t piece_count);

/* The ticket with this number; NULL if the number was never given out or was dropped. */
ms__ticket *ms__tickets_find(const ms__tickets *tickets, ms_ticket id);

/* Makes the number unknown; the struct is used again. */
void ms__tickets_release(ms__tickets *tickets, ms__ticket *ticket);

/* Neither storing nor fetching. */
static inline bool ms__ticket_is_idle(const ms__ticket *ticket)
{
    return ticket->state != MS_TICKET_STORING && ticket->state != MS_TICKET_FETCHING;
}

#endif
