/*
 * The storages of a profile of which operators leave a part untouched (graph.h): read, written,
 * checked and compared here, for the other files of graphs. What is untouched is the tracer's to
 * say.
 */
#include "core/graph_internal.h"

void ms__untouched_put(ms__json_writer *writer, json_t *profile, const ms_profile *from)
{
    if (from->untouched_count == 0) {
        return;
    }
    json_t *out = ms__json_put_array(writer, profile, "untouched");
    for (uint32_t i = 0; i < from->untouched_count; i++) {
        json_t *item = ms__json_add_array(writer, out);
        ms__json_add_u64(writer, item, from->untouched[i].storage);
        ms__json_add_u64(writer, item, from->untouched[i].bytes);
    }
}

static int read_one(const ms__json_at *array, size_t index, ms_untouched *one)
{
    ms__json_at item;
    uint64_t storage = 0, bytes = 0;
    int rc = ms__json_item_array(array, index, &item);
    if (rc == MS_OK && ms__json_count(&item) != 2) {
        rc = ms__json_fail(&item, MS_EFORMAT, "expected [storage, bytes]");
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&item, 0, 0, UINT32_MAX, &storage);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&item, 1, 1, MS__GRAPH_NUMBER_MAX, &bytes);
    }
    *one = (ms_untouched){(uint32_t)storage, bytes};
    return rc;
}

int ms__untouched_read(const ms__json_at *object, ms_profile *profile)
{
    ms__json_at array;
    bool given = ms__json_has(object, "untouched");
    int rc = given ? ms__json_array(object, "untouched", &array) : MS_OK;
    size_t count = given && rc == MS_OK ? ms__json_count(&array) : 0;
    if (rc == MS_OK && count > profile->storage_count) {
        rc = ms__json_fail(&array, MS_EFORMAT, "more than there are storages");
    }
    if (rc != MS_OK) {
        return rc;
    }
    profile->untouched = ms_calloc(count, sizeof *profile->untouched);
    if (profile->untouched == NULL) {
        return ms__json_fail(object, MS_ENOMEM, "out of memory");
    }
    profile->untouched_count = (uint32_t)count;
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = read_one(&array, i, &profile->untouched[i]);
    }
    return rc;
}

static const char *problem_of(const ms_profile *profile, uint32_t number)
{
    const ms_untouched *one = &profile->untouched[number];
    if (one->storage < profile->external_count || one->storage >= profile->storage_count) {
        return "is none of the node's own";
    }
    if (number > 0 && one->storage <= profile->untouched[number - 1].storage) {
        return "is out of order";
    }
    return one->bytes > 0 && one->bytes <= profile->storage_bytes[one->storage] ? NULL : "has not so many bytes";
}

int ms__untouched_check(const ms_profile *profile, uint32_t index, ms_error *err)
{
    for (uint32_t i = 0; i < profile->untouched_count; i++) {
        const char *problem = problem_of(profile, i);
        if (problem != NULL) {
            return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].untouched[%u]: storage %u %s", (unsigned)index,
                           (unsigned)i, (unsigned)profile->untouched[i].storage, problem);
        }
    }
    return MS_OK;
}

bool ms__untouched_equal(const ms_profile *a, const ms_profile *b)
{
    bool equal = a->untouched_count == b->untouched_count;
    for (uint32_t i = 0; equal && i < a->untouched_count; i++) {
        equal = a->untouched[i].storage == b->untouched[i].storage && a->untouched[i].bytes == b->untouched[i].bytes;
    }
    return equal;
}
