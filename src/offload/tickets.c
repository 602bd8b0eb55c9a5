/*
 * An array of pointers to tickets and a stack of free indices.
 */
#include "offload/tickets.h"

#include <string.h>

enum { INDEX_BITS = 32 };

void ms__tickets_init(ms__tickets *tickets)
{
    memset(tickets, 0, sizeof *tickets);
}

void ms__tickets_destroy(ms__tickets *tickets)
{
    for (uint32_t i = 0; i < tickets->count; i++) {
        ms_free(tickets->all[i]->pieces);
        ms_free(tickets->all[i]);
    }
    ms_free(tickets->all);
    ms_free(tickets->free_list);
    ms__tickets_init(tickets);
}

/* The free list grows with the table, so that a release never needs memory. */
static bool tickets_make_room(ms__tickets *tickets)
{
    if (tickets->count < tickets->capacity) {
        return true;
    }
    if (tickets->capacity > UINT32_MAX / 4) {
        return false;
    }
    uint32_t capacity = tickets->capacity == 0 ? 64 : tickets->capacity * 2;
    ms__ticket **all = ms_realloc_array(tickets->all, capacity, sizeof(ms__ticket *));
    if (all == NULL) {
        return false;
    }
    tickets->all = all;
    uint32_t *free_list = ms_realloc_array(tickets->free_list, capacity, sizeof *free_list);
    if (free_list == NULL) {
        return false;
    }
    tickets->free_list = free_list;
    tickets->capacity = capacity;
    return true;
}

static ms__ticket *tickets_add(ms__tickets *tickets)
{
    if (!tickets_make_room(tickets)) {
        return NULL;
    }
    ms__ticket *ticket = ms_calloc(1, sizeof *ticket);
    if (ticket == NULL) {
        return NULL;
    }
    ticket->index = tickets->count;
    tickets->all[tickets->count++] = ticket;
    tickets->free_list[tickets->free_count++] = ticket->index;
    return ticket;
}

static bool reserve_pieces(ms__ticket *ticket, uint32_t piece_count)
{
    if (piece_count <= ticket->piece_capacity) {
        return true;
    }
    ms__piece *pieces = ms_realloc_array(ticket->pieces, piece_count, sizeof *pieces);
    if (pieces == NULL) {
        return false;
    }
    ticket->pieces = pieces;
    ticket->piece_capacity = piece_count;
    return true;
}

ms__ticket *ms__tickets_new(ms__tickets *tickets, uint32_t piece_count)
{
    if (tickets->free_count == 0 && tickets_add(tickets) == NULL) {
        return NULL;
    }
    ms__ticket *ticket = tickets->all[tickets->free_list[tickets->free_count - 1]];
    if (!reserve_pieces(ticket, piece_count)) {
        return NULL;
    }
    tickets->free_count--;
    *ticket = (ms__ticket){
        .generation = ticket->generation + 1,
        .index = ticket->index,
        .pieces = ticket->pieces,
        .piece_capacity = ticket->piece_capacity,
        .piece_count = piece_count,
    };
    ticket->id = (uint64_t)ticket->generation << INDEX_BITS | (ticket->index + UINT64_C(1));
    return ticket;
}

ms__ticket *ms__tickets_find(const ms__tickets *tickets, ms_ticket id)
{
    uint32_t number = (uint32_t)id;
    if (number == 0 || number > tickets->count) {
        return NULL;
    }
    ms__ticket *ticket = tickets->all[number - 1];
    return ticket->id == id ? ticket : NULL;
}

void ms__tickets_release(ms__tickets *tickets, ms__ticket *ticket)
{
    ticket->id = 0;
    tickets->free_list[tickets->free_count++] = ticket->index;
}
