/*
 * list.h - a doubly linked list whose links are inside its members: for the engine's queues
 * and its list of ended stores. Allocates nothing, so nothing can fail.
 *
 * Tests: tests/c/offload/test_order.c.
 */
#ifndef MS_OFFLOAD_LIST_H
#define MS_OFFLOAD_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ms__link {
    struct ms__link *prev, *next;
} ms__link;

#define MS__LIST_MEMBER(link, type, field) ((type *)(void *)((char *)(link) - offsetof(type, field)))

static inline void ms__list_init(ms__link *list)
{
    list->prev = list->next = list;
}

static inline bool ms__list_empty(const ms__link *list)
{
    return list->next == list;
}

/* A link that is in no list has NULL in `next`. */
static inline bool ms__list_linked(const ms__link *link)
{
    return link->next != NULL;
}

static inline void ms__list_insert(ms__link *before, ms__link *link)
{
    link->prev = before->prev;
    link->next = before;
    before->prev->next = link;
    before->prev = link;
}

static inline void ms__list_append(ms__link *list, ms__link *link)
{
    ms__list_insert(list, link);
}

static inline void ms__list_prepend(ms__link *list, ms__link *link)
{
    ms__list_insert(list->next, link);
}

/* Does nothing for a link that is in no list. */
static inline void ms__list_remove(ms__link *link)
{
    if (link->next == NULL) {
        return;
    }
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->prev = link->next = NULL;
}

#endif
