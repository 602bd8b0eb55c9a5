/*
 * The optional members of a profile that list [storage, bytes] of local storages (graph.h): read, written, checked
 * and compared here. The tracer fills them.
 */
#include <stddef.h>

#include "graph/graph_internal.h"

typedef struct pair_list {
    const char *name, *item; /* of the member; the expected item */
    uint64_t most;           /* the second number's largest value; the least is 1 */
    size_t offset;           /* of the ms_storage_list */
    const char *(*problem_of)(const ms_profile *profile, const ms_storage_bytes *pair);
} pair_list;

static bool is_saved(const ms_profile *profile, uint32_t storage)
{
    for (uint32_t i = 0; i < profile->forward_count; i++) {
        if (profile->forward[i].kind == MS_EVENT_SAVE && profile->forward[i].storage == storage) {
            return true;
        }
    }
    return false;
}

static const char *two_valued_problem(const ms_profile *profile, const ms_storage_bytes *pair)
{
    uint64_t bytes = pair->bytes;
    if (bytes == 0 || bytes > 8 || (bytes & (bytes - 1)) != 0 || profile->storage_bytes[pair->storage] % bytes != 0) {
        return "has no whole number of elements";
    }
    return is_saved(profile, pair->storage) ? NULL : "is not saved";
}

static const char *untouched_problem(const ms_profile *profile, const ms_storage_bytes *pair)
{
    return pair->bytes > 0 && pair->bytes <= profile->storage_bytes[pair->storage] ? NULL : "has not so many bytes";
}

static const pair_list lists[] = {
    {"two_valued", "expected [storage, bytes of an element]", 8, offsetof(ms_profile, two_valued), two_valued_problem},
    {"untouched", "expected [storage, bytes]", MS__GRAPH_NUMBER_MAX, offsetof(ms_profile, untouched),
     untouched_problem},
};

enum { LIST_COUNT = sizeof lists / sizeof lists[0] };

static ms_storage_list *list_in(ms_profile *profile, const pair_list *which)
{
    return (ms_storage_list *)(void *)((char *)profile + which->offset);
}

static const ms_storage_list *list_of(const ms_profile *profile, const pair_list *which)
{
    return (const ms_storage_list *)(const void *)((const char *)profile + which->offset);
}

void ms__pairs_clear(ms_profile *profile)
{
    for (size_t i = 0; i < LIST_COUNT; i++) {
        ms_storage_list *list = list_in(profile, &lists[i]);
        ms_free(list->items);
        *list = (ms_storage_list){0};
    }
}

int ms__pairs_copy(const ms_profile *from, ms_profile *to)
{
    int rc = MS_OK;
    for (size_t i = 0; i < LIST_COUNT; i++) {
        const ms_storage_list *list = list_of(from, &lists[i]);
        ms_storage_bytes *items = ms_calloc(list->count, sizeof *items);
        for (uint32_t k = 0; items != NULL && k < list->count; k++) {
            items[k] = list->items[k];
        }
        *list_in(to, &lists[i]) = (ms_storage_list){items != NULL ? list->count : 0, items};
        rc = items != NULL ? rc : MS_ENOMEM;
    }
    return rc;
}

void ms__pairs_put(ms__json_writer *writer, json_t *profile, const ms_profile *from)
{
    for (size_t i = 0; i < LIST_COUNT; i++) {
        const ms_storage_list *list = list_of(from, &lists[i]);
        json_t *out = list->count > 0 ? ms__json_put_array(writer, profile, lists[i].name) : NULL;
        for (uint32_t k = 0; k < list->count; k++) {
            json_t *item = ms__json_add_array(writer, out);
            ms__json_add_u64(writer, item, list->items[k].storage);
            ms__json_add_u64(writer, item, list->items[k].bytes);
        }
    }
}

static int read_pair(const ms__json_at *array, size_t index, const pair_list *which, ms_storage_bytes *pair)
{
    ms__json_at item;
    uint64_t storage = 0, bytes = 0;
    int rc = ms__json_item_array(array, index, &item);
    if (rc == MS_OK && ms__json_count(&item) != 2) {
        rc = ms__json_fail(&item, MS_EFORMAT, which->item);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&item, 0, 0, UINT32_MAX, &storage);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&item, 1, 1, which->most, &bytes);
    }
    *pair = (ms_storage_bytes){(uint32_t)storage, bytes};
    return rc;
}

static int read_list(const ms__json_at *object, const pair_list *which, ms_profile *profile)
{
    ms__json_at array;
    ms_storage_list *list = list_in(profile, which);
    int rc;
    if (!ms__json_has(object, which->name)) {
        return MS_OK;
    }
    list->items =
        ms__json_items(object, which->name, profile->storage_count, sizeof *list->items, &array, &list->count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < list->count; i++) {
        rc = read_pair(&array, i, which, &list->items[i]);
    }
    return rc;
}

int ms__pairs_read(const ms__json_at *object, ms_profile *profile)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < LIST_COUNT; i++) {
        rc = read_list(object, &lists[i], profile);
    }
    return rc;
}

static const char *problem_of(const ms_profile *profile, const pair_list *which, uint32_t number)
{
    const ms_storage_bytes *pair = &list_of(profile, which)->items[number];
    if (pair->storage < profile->external_count || pair->storage >= profile->storage_count) {
        return "is not local to the node";
    }
    if (number > 0 && pair->storage <= (pair - 1)->storage) {
        return "is out of order";
    }
    return which->problem_of(profile, pair);
}

int ms__pairs_check(const ms_profile *profile, uint32_t index, ms_error *err)
{
    for (size_t i = 0; i < LIST_COUNT; i++) {
        const ms_storage_list *list = list_of(profile, &lists[i]);
        for (uint32_t k = 0; k < list->count; k++) {
            const char *problem = problem_of(profile, &lists[i], k);
            if (problem != NULL) {
                return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].%s[%u]: storage %u %s", (unsigned)index,
                               lists[i].name, (unsigned)k, (unsigned)list->items[k].storage, problem);
            }
        }
    }
    return MS_OK;
}

static bool equal_lists(const ms_storage_list *a, const ms_storage_list *b)
{
    bool equal = a->count == b->count;
    for (uint32_t i = 0; equal && i < a->count; i++) {
        equal = a->items[i].storage == b->items[i].storage && a->items[i].bytes == b->items[i].bytes;
    }
    return equal;
}

bool ms__pairs_equal(const ms_profile *a, const ms_profile *b)
{
    bool equal = true;
    for (size_t i = 0; equal && i < LIST_COUNT; i++) {
        equal = equal_lists(list_of(a, &lists[i]), list_of(b, &lists[i]));
    }
    return equal;
}
