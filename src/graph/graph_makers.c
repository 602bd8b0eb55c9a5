/*
 * The makers of a profile, the operators that can recompute single tensors (graph.h): read, written, checked and
 * compared here. The tracer finds them; the planner uses them.
 */
#include <string.h>

#include "graph/graph_internal.h"

/* ---- writing -------------------------------------------------------------- */

static void put_operands(ms__json_writer *writer, json_t *maker, const uint32_t *operands, uint32_t count)
{
    json_t *out = ms__json_add_array(writer, maker);
    for (uint32_t i = 0; i < count; i++) {
        ms__json_add_u64(writer, out, operands[i]);
    }
}

void ms__makers_put(ms__json_writer *writer, json_t *profile, const ms_profile *from)
{
    if (from->maker_count == 0) {
        return;
    }
    json_t *out = ms__json_put_array(writer, profile, "makers");
    for (uint32_t i = 0; i < from->maker_count; i++) {
        const ms_maker *maker = &from->makers[i];
        const uint32_t *operands = &from->operands[maker->first];
        json_t *item = ms__json_add_array(writer, out);
        ms__json_add_u64(writer, item, maker->flops);
        ms__json_add_u64(writer, item, maker->bytes);
        put_operands(writer, item, operands, maker->input_count);
        put_operands(writer, item, operands + maker->input_count, maker->output_count);
        if (maker->evaluations != 0 || maker->precision != 0) {
            ms__json_add_u64(writer, item, maker->evaluations);
        }
        if (maker->precision != 0) {
            ms__json_add_u64(writer, item, maker->precision);
        }
    }
}

/* ---- reading -------------------------------------------------------------- */

static int no_memory(const ms__json_at *at)
{
    return ms__json_fail(at, MS_ENOMEM, "out of memory");
}

/* Counts the operands of all makers, for one allocation. */
static int count_operands(const ms__json_at *array, size_t *total)
{
    int rc = MS_OK;
    *total = 0;
    for (size_t i = 0; rc == MS_OK && i < ms__json_count(array); i++) {
        ms__json_at item, inputs, outputs;
        rc = ms__json_item_array(array, i, &item);
        if (rc == MS_OK && (ms__json_count(&item) < 4 || ms__json_count(&item) > 6)) {
            rc = ms__json_fail(&item, MS_EFORMAT,
                               "expected [flops, bytes, [inputs], [outputs], evaluations, precision]");
        }
        if (rc == MS_OK) {
            rc = ms__json_item_array(&item, 2, &inputs);
        }
        if (rc == MS_OK) {
            rc = ms__json_item_array(&item, 3, &outputs);
        }
        if (rc == MS_OK) {
            *total += ms__json_count(&inputs) + ms__json_count(&outputs);
        }
    }
    return rc;
}

static int read_operands(const ms__json_at *maker, size_t index, ms_profile *profile, uint32_t *count)
{
    ms__json_at array;
    int rc = ms__json_item_array(maker, index, &array);
    for (size_t i = 0; rc == MS_OK && i < ms__json_count(&array); i++) {
        uint64_t value = 0;
        rc = ms__json_item_u64(&array, i, 0, UINT32_MAX, &value);
        profile->operands[profile->operand_count++] = (uint32_t)value;
        ++*count;
    }
    return rc;
}

static int read_maker(const ms__json_at *item, ms_profile *profile, ms_maker *maker)
{
    maker->first = profile->operand_count;
    int rc = ms__json_item_u64(item, 0, 0, MS__GRAPH_NUMBER_MAX, &maker->flops);
    if (rc == MS_OK) {
        rc = ms__json_item_u64(item, 1, 0, MS__GRAPH_NUMBER_MAX, &maker->bytes);
    }
    if (rc == MS_OK) {
        rc = read_operands(item, 2, profile, &maker->input_count);
    }
    if (rc == MS_OK) {
        rc = read_operands(item, 3, profile, &maker->output_count);
    }
    if (rc == MS_OK && ms__json_count(item) > 4) {
        rc = ms__json_item_u64(item, 4, 0, MS__GRAPH_NUMBER_MAX, &maker->evaluations);
    }
    if (rc == MS_OK && ms__json_count(item) > 5) {
        rc = ms__graph_read_precision(item, 5, &maker->precision);
    }
    return rc;
}

int ms__makers_read(const ms__json_at *object, ms_profile *profile)
{
    ms__json_at array;
    size_t operands = 0;
    bool given = ms__json_has(object, "makers");
    int rc = given ? ms__json_array(object, "makers", &array) : MS_OK;
    if (rc == MS_OK && given) {
        rc = count_operands(&array, &operands);
    }
    size_t count = given && rc == MS_OK ? ms__json_count(&array) : 0;
    if (rc == MS_OK && (count >= UINT32_MAX || operands >= UINT32_MAX)) {
        return ms__json_fail(&array, MS_EFORMAT, "too many items");
    }
    if (rc != MS_OK) {
        return rc;
    }
    profile->makers = ms_calloc(count, sizeof *profile->makers);
    profile->operands = ms_calloc(operands, sizeof *profile->operands);
    if (profile->makers == NULL || profile->operands == NULL) {
        return no_memory(object);
    }
    profile->maker_count = (uint32_t)count;
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        ms__json_at item;
        rc = ms__json_item_array(&array, i, &item);
        if (rc == MS_OK) {
            rc = read_maker(&item, profile, &profile->makers[i]);
        }
    }
    return rc;
}

/* ---- checking ------------------------------------------------------------- */

enum { MADE = 1, READ = 2 };

static int maker_error(ms_error *err, uint32_t profile, uint32_t maker, uint32_t storage, const char *problem)
{
    return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].makers[%u]: storage %u: %s", (unsigned)profile,
                   (unsigned)maker, (unsigned)storage, problem);
}

/* `seen`: MADE or READ by an earlier maker; `allocated`: in the forward program. */
static const char *operand_problem(uint8_t seen, bool allocated, bool is_output)
{
    if (!is_output) {
        return NULL;
    }
    if (!allocated) {
        return "made, but not allocated in forward";
    }
    return seen & MADE ? "made a second time" : seen & READ ? "read before it is made" : NULL;
}

static int check_maker(const ms_profile *profile, uint32_t index, uint32_t number, const bool *allocated, uint8_t *seen,
                       ms_error *err)
{
    const ms_maker *maker = &profile->makers[number];
    uint64_t end = (uint64_t)maker->first + maker->input_count + maker->output_count;
    if (end > profile->operand_count || maker->output_count == 0 || maker->flops > MS__GRAPH_NUMBER_MAX ||
        maker->bytes > MS__GRAPH_NUMBER_MAX || maker->evaluations > MS__GRAPH_NUMBER_MAX) {
        return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].makers[%u]: no output, or a number is too large",
                       (unsigned)index, (unsigned)number);
    }
    for (uint32_t i = 0; i < maker->input_count + maker->output_count; i++) {
        uint32_t storage = profile->operands[maker->first + i];
        bool is_output = i >= maker->input_count;
        if (storage >= profile->storage_count) {
            return maker_error(err, index, number, storage, "there is no such storage");
        }
        const char *problem = operand_problem(seen[storage], allocated[storage], is_output);
        if (problem != NULL) {
            return maker_error(err, index, number, storage, problem);
        }
        seen[storage] |= is_output ? MADE : READ;
    }
    return MS_OK;
}

int ms__makers_check(const ms_profile *profile, uint32_t index, ms_error *err)
{
    if (profile->maker_count == 0) {
        return MS_OK;
    }
    uint8_t *seen = ms_calloc(profile->storage_count, 1);
    bool *allocated = ms_calloc(profile->storage_count, sizeof *allocated);
    int rc =
        seen == NULL || allocated == NULL ? ms_fail(err, MS_ENOMEM, "checking profile %u", (unsigned)index) : MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < profile->forward_count; i++) {
        if (profile->forward[i].kind == MS_EVENT_ALLOC) {
            allocated[profile->forward[i].storage] = true;
        }
    }
    for (uint32_t i = 0; rc == MS_OK && i < profile->maker_count; i++) {
        rc = check_maker(profile, index, i, allocated, seen, err);
    }
    ms_free(seen);
    ms_free(allocated);
    return rc;
}

bool ms__makers_equal(const ms_profile *a, const ms_profile *b)
{
    if (a->maker_count != b->maker_count || a->operand_count != b->operand_count) {
        return false;
    }
    for (uint32_t i = 0; i < a->maker_count; i++) {
        const ms_maker *left = &a->makers[i], *right = &b->makers[i];
        if (left->flops != right->flops || left->bytes != right->bytes || left->evaluations != right->evaluations ||
            left->precision != right->precision || left->first != right->first ||
            left->input_count != right->input_count || left->output_count != right->output_count) {
            return false;
        }
    }
    return a->operand_count == 0 || memcmp(a->operands, b->operands, a->operand_count * sizeof *a->operands) == 0;
}
