#include "store/steps.h"

#include <string.h>

#include "base/units.h"
#include "store/statements.h"

enum merge { LARGEST, MEAN };

static const char *const names[MSS_STEP_COLUMNS] = {
#define NAME(id, name, merge) name,
    MSS_STEP_TABLE(NAME)
#undef NAME
};

static const enum merge merges[MSS_STEP_COLUMNS] = {
#define MERGE(id, name, merge) merge,
    MSS_STEP_TABLE(MERGE)
#undef MERGE
};

const char *mss_step_column_name(mss_step_column column)
{
    return names[column];
}

/* ---- JSON in ------------------------------------------------------------------ */

static int read_value(const ms__json_at *column, size_t index, uint64_t *value)
{
    const json_t *item = json_array_get(column->value, index);
    if (json_is_null(item)) {
        *value = UINT64_MAX;
        return MS_OK;
    }
    *value = json_is_integer(item) ? (uint64_t)json_integer_value(item) : UINT64_MAX;
    return *value <= MSS_STEP_VALUE_MOST
               ? MS_OK
               : ms__json_fail(column, MS_EFORMAT, "item %zu: expected null or 0 to 2^62", index);
}

/* A column that is missing is known of no step. */
static int read_column(const ms__json_at *columns, int which, mss_steps *steps)
{
    ms__json_at column;
    if (!ms__json_has(columns, names[which])) {
        return MS_OK;
    }
    int rc = ms__json_array(columns, names[which], &column);
    if (rc == MS_OK && ms__json_count(&column) != steps->count) {
        rc = ms__json_fail(&column, MS_EFORMAT, "expected as many items as \"step\" has, %zu", steps->count);
    }
    for (size_t i = 0; rc == MS_OK && i < steps->count; i++) {
        rc = read_value(&column, i, &steps->items[i].value[which]);
    }
    return rc;
}

static int check_numbers(const ms__json_at *columns, const mss_steps *steps)
{
    uint64_t before = 0;
    for (size_t i = 0; i < steps->count; i++) {
        uint64_t number = steps->items[i].value[MSS_STEP_NUMBER];
        if (number == UINT64_MAX || number <= before) {
            return ms__json_fail(columns, MS_EFORMAT, "\"step\" must rise from 1 on: item %zu does not", i);
        }
        before = number;
    }
    return MS_OK;
}

/* So many steps of which nothing is known. */
static int begin_steps(const ms__json_at *columns, mss_steps *steps)
{
    ms__json_at numbers;
    int rc = ms__json_array(columns, names[MSS_STEP_NUMBER], &numbers);
    if (rc != MS_OK) {
        return rc;
    }
    size_t count = ms__json_count(&numbers);
    if (count < 1 || count > MSS_BATCH_STEPS_MOST) {
        return ms__json_fail(&numbers, MS_EFORMAT, "expected 1 to %d steps", MSS_BATCH_STEPS_MOST);
    }
    if (MS__ARRAY_RESERVE(steps, count) != MS_OK) {
        return ms__json_fail(&numbers, MS_ENOMEM, "out of memory for %zu steps", count);
    }
    memset(steps->items, 0xff, count * sizeof *steps->items);
    steps->count = count;
    return MS_OK;
}

int mss_steps_read(const ms__json_at *object, const char *name, mss_steps *steps)
{
    ms__json_at columns;
    int rc = ms__json_object(object, name, &columns);
    if (rc == MS_OK) {
        rc = ms__json_only(&columns, names, MSS_STEP_COLUMNS);
    }
    if (rc == MS_OK) {
        rc = begin_steps(&columns, steps);
    }
    for (int column = 0; rc == MS_OK && column < MSS_STEP_COLUMNS; column++) {
        rc = read_column(&columns, column, steps);
    }
    return rc == MS_OK ? check_numbers(&columns, steps) : rc;
}

/* ---- the stored form ------------------------------------------------------------ */

/* Unknown is 0, so that a column that nobody reports takes a byte per step. */
static uint64_t stored(uint64_t value)
{
    return value + 1;
}

static size_t put_varint(unsigned char *to, uint64_t value)
{
    size_t length = 0;
    for (; value >= 0x80; value >>= 7) {
        to[length++] = (unsigned char)(value | 0x80);
    }
    to[length++] = (unsigned char)value;
    return length;
}

/* Length of the number; 0 if it does not end within `bytes` or has more than 64 bits. */
static size_t get_varint(const unsigned char *from, size_t bytes, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < bytes && i < 10; i++) {
        *value |= (uint64_t)(from[i] & 0x7f) << (7 * i);
        if (from[i] < 0x80) {
            return i == 9 && from[i] > 1 ? 0 : i + 1;
        }
    }
    return 0;
}

int mss_steps_pack(const mss_steps *steps, unsigned char **data, size_t *bytes, ms_error *err)
{
    unsigned char *packed = ms_calloc(steps->count + 1, MSS_STEP_COLUMNS * 10);
    if (packed == NULL) {
        return ms_fail(err, MS_ENOMEM, "steps: out of memory for %zu", steps->count);
    }
    size_t length = 0;
    for (int column = 0; column < MSS_STEP_COLUMNS; column++) {
        uint64_t before = 0;
        for (size_t i = 0; i < steps->count; i++) {
            uint64_t value = stored(steps->items[i].value[column]);
            uint64_t difference = value - before; /* wraps around both ways */
            length += put_varint(packed + length, difference << 1 ^ (uint64_t)((int64_t)difference >> 63));
            before = value;
        }
    }
    *data = packed;
    *bytes = length;
    return MS_OK;
}

int mss_steps_unpack(const void *data, size_t bytes, size_t count, mss_steps *steps, ms_error *err)
{
    const unsigned char *from = data;
    size_t at = 0, first = steps->count;
    if (count > bytes || MS__ARRAY_RESERVE(steps, first + count) != MS_OK) {
        return ms_fail(err, count > bytes ? MS_EFORMAT : MS_ENOMEM, "steps: %zu in %zu bytes", count, bytes);
    }
    for (int column = 0; column < MSS_STEP_COLUMNS; column++) {
        uint64_t value = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t coded;
            size_t length = get_varint(from + at, bytes - at, &coded);
            if (length == 0) {
                return ms_fail(err, MS_EFORMAT, "steps: a damaged batch");
            }
            at += length;
            value += coded >> 1 ^ (0 - (coded & 1));
            steps->items[first + i].value[column] = value - 1;
        }
    }
    if (at != bytes) {
        return ms_fail(err, MS_EFORMAT, "steps: %zu bytes too many in a batch", bytes - at);
    }
    steps->count += count;
    return MS_OK;
}

int mss_steps_load(mss_sql *sql, const char *run, uint64_t after, mss_steps *steps, ms_error *err)
{
    mss_rows rows;
    bool has = true;
    int rc = mss_sql_query(sql, MSS_BATCH_LIST, MSS_WITH(MSS_TEXT(run), MSS_INT(after)), &rows, err);
    while (rc == MS_OK && (rc = mss_rows_next(&rows, &has, err)) == MS_OK && has) {
        size_t bytes;
        const void *data = mss_rows_blob(&rows, 1, &bytes);
        rc = mss_steps_unpack(data, bytes, (size_t)mss_rows_int(&rows, 0), steps, err);
    }
    mss_rows_end(&rows);
    size_t skip = 0;
    while (skip < steps->count && steps->items[skip].value[MSS_STEP_NUMBER] <= after) {
        skip++;
    }
    if (skip > 0) {
        memmove(steps->items, steps->items + skip, (steps->count - skip) * sizeof *steps->items);
        steps->count -= skip;
    }
    return rc;
}

/* ---- a batch in the database -------------------------------------------------------- */

/* What the steps change in their run's row. */
typedef struct summary {
    uint64_t sum_ns, peak, budget, predicted_peak, predicted_ns; /* UINT64_MAX: no step says */
} summary;

static summary summarize(const mss_steps *steps)
{
    summary s = {0, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < steps->count; i++) {
        const uint64_t *v = steps->items[i].value;
        s.sum_ns = v[MSS_STEP_NS] == UINT64_MAX ? s.sum_ns : ms__add_sat(s.sum_ns, v[MSS_STEP_NS]);
        if (v[MSS_STEP_PEAK] != UINT64_MAX) {
            s.peak = s.peak == UINT64_MAX ? v[MSS_STEP_PEAK] : ms__max_u64(s.peak, v[MSS_STEP_PEAK]);
        }
        s.budget = v[MSS_STEP_BUDGET] != UINT64_MAX ? v[MSS_STEP_BUDGET] : s.budget;
        s.predicted_peak = v[MSS_STEP_PREDICTED_PEAK] != UINT64_MAX ? v[MSS_STEP_PREDICTED_PEAK] : s.predicted_peak;
        s.predicted_ns = v[MSS_STEP_PREDICTED_NS] != UINT64_MAX ? v[MSS_STEP_PREDICTED_NS] : s.predicted_ns;
    }
    s.sum_ns = ms__min_u64(s.sum_ns, MSS_STEP_VALUE_MOST >> 16);
    return s;
}

int mss_run_append(mss_sql *sql, const char *run, uint64_t sequence, const mss_steps *steps, ms_error *err)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    summary s = summarize(steps);
    uint64_t first = steps->items[0].value[0], last = steps->items[steps->count - 1].value[0];
    int rc = mss_steps_pack(steps, &data, &bytes, err);
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_BATCH_ADD,
                         MSS_WITH(MSS_TEXT(run), MSS_INT(sequence), MSS_INT(first), MSS_INT(last),
                                  MSS_INT(steps->count), MSS_BLOB(data, bytes)),
                         NULL, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_RUN_APPENDED,
                         MSS_WITH(MSS_INT(sequence), MSS_INT(last), MSS_INT(steps->count), MSS_INT(s.sum_ns),
                                  MSS_U64_OR_NULL(s.peak), MSS_U64_OR_NULL(s.budget), MSS_U64_OR_NULL(s.predicted_peak),
                                  MSS_U64_OR_NULL(s.predicted_ns), MSS_INT(bytes), MSS_TEXT(run)),
                         NULL, err);
    }
    ms_free(data);
    return rc;
}

/* ---- points ------------------------------------------------------------------- */

static uint64_t merged(const mss_step *steps, size_t count, int column)
{
    uint64_t sum = 0, known = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t value = steps[i].value[column];
        if (value != UINT64_MAX) {
            known++;
            sum = ms__add_sat(sum, value);
            largest = ms__max_u64(largest, value);
        }
    }
    return known == 0 ? UINT64_MAX : merges[column] == MEAN ? sum / known : largest;
}

size_t mss_steps_thin(mss_steps *steps, size_t points)
{
    size_t each = (size_t)ms__max_u64(ms__div_up(steps->count, ms__max_u64(points, 1)), 1), made = 0;
    for (size_t from = 0; each > 1 && from < steps->count; from += each, made++) {
        mss_step point;
        size_t count = (size_t)ms__min_u64(each, steps->count - from);
        for (int column = 0; column < MSS_STEP_COLUMNS; column++) {
            point.value[column] = merged(&steps->items[from], count, column);
        }
        steps->items[made] = point;
    }
    steps->count = each > 1 ? made : steps->count;
    return each;
}

json_t *mss_steps_json(const mss_steps *steps)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    for (int column = 0; column < MSS_STEP_COLUMNS; column++) {
        json_t *array = ms__json_put_array(&writer, root, names[column]);
        for (size_t i = 0; array != NULL && i < steps->count; i++) {
            uint64_t value = steps->items[i].value[column];
            json_array_append_new(array, value == UINT64_MAX ? json_null() : json_integer((json_int_t)value));
        }
    }
    if (writer.code != MS_OK) {
        json_decref(root);
        return NULL;
    }
    return root;
}
