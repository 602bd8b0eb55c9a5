/*
 * The two-valued storages of a profile (graph.h): read, written, checked and compared here,
 * for the other files of graphs. Which storages these are is the tracer's to say.
 */
#include "core/graph_internal.h"

void ms__two_valued_put(ms__json_writer *writer, json_t *profile, const ms_profile *from)
{
    if (from->two_valued_count == 0) {
        return;
    }
    json_t *out = ms__json_put_array(writer, profile, "two_valued");
    for (uint32_t i = 0; i < from->two_valued_count; i++) {
        json_t *item = ms__json_add_array(writer, out);
        ms__json_add_u64(writer, item, from->two_valued[i].storage);
        ms__json_add_u64(writer, item, from->two_valued[i].value_bytes);
    }
}

static int read_one(const ms__json_at *array, size_t index, ms_two_valued *one)
{
    ms__json_at item;
    uint64_t storage = 0, value_bytes = 0;
    int rc = ms__json_item_array(array, index, &item);
    if (rc == MS_OK && ms__json_count(&item) != 2) {
        rc = ms__json_fail(&item, MS_EFORMAT, "expected [storage, bytes of an element]");
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&item, 0, 0, UINT32_MAX, &storage);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&item, 1, 1, 8, &value_bytes);
    }
    *one = (ms_two_valued){(uint32_t)storage, (uint32_t)value_bytes};
    return rc;
}

int ms__two_valued_read(const ms__json_at *object, ms_profile *profile)
{
    ms__json_at array;
    bool given = ms__json_has(object, "two_valued");
    int rc = given ? ms__json_array(object, "two_valued", &array) : MS_OK;
    size_t count = given && rc == MS_OK ? ms__json_count(&array) : 0;
    if (rc == MS_OK && count > profile->storage_count) {
        rc = ms__json_fail(&array, MS_EFORMAT, "more than there are storages");
    }
    if (rc != MS_OK) {
        return rc;
    }
    profile->two_valued = ms_calloc(count, sizeof *profile->two_valued);
    if (profile->two_valued == NULL) {
        return ms__json_fail(object, MS_ENOMEM, "out of memory");
    }
    profile->two_valued_count = (uint32_t)count;
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = read_one(&array, i, &profile->two_valued[i]);
    }
    return rc;
}

static bool is_saved(const ms_profile *profile, uint32_t storage)
{
    for (uint32_t i = 0; i < profile->forward_count; i++) {
        if (profile->forward[i].kind == MS_EVENT_SAVE && profile->forward[i].storage == storage) {
            return true;
        }
    }
    return false;
}

static const char *problem_of(const ms_profile *profile, uint32_t number)
{
    const ms_two_valued *one = &profile->two_valued[number];
    uint32_t bytes = one->value_bytes;
    if (one->storage < profile->external_count || one->storage >= profile->storage_count) {
        return "is none of the layer's own";
    }
    if (number > 0 && one->storage <= profile->two_valued[number - 1].storage) {
        return "is out of order";
    }
    if (bytes == 0 || bytes > 8 || (bytes & (bytes - 1)) != 0 || profile->storage_bytes[one->storage] % bytes != 0) {
        return "has no whole number of elements";
    }
    return is_saved(profile, one->storage) ? NULL : "is not saved";
}

int ms__two_valued_check(const ms_profile *profile, uint32_t index, ms_error *err)
{
    for (uint32_t i = 0; i < profile->two_valued_count; i++) {
        const char *problem = problem_of(profile, i);
        if (problem != NULL) {
            return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].two_valued[%u]: storage %u %s", (unsigned)index,
                           (unsigned)i, (unsigned)profile->two_valued[i].storage, problem);
        }
    }
    return MS_OK;
}

bool ms__two_valued_equal(const ms_profile *a, const ms_profile *b)
{
    bool equal = a->two_valued_count == b->two_valued_count;
    for (uint32_t i = 0; equal && i < a->two_valued_count; i++) {
        equal = a->two_valued[i].storage == b->two_valued[i].storage &&
                a->two_valued[i].value_bytes == b->two_valued[i].value_bytes;
    }
    return equal;
}
