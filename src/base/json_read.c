/*
 * The reading half of json.h: typed access to members and items, and errors
 * that name the place. Called by every room that loads a document.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/json_setup.h"
#include "base/os/file.h"

/* ---- errors with a path ------------------------------------------------- */

enum { PATH_DEPTH_MAX = 32 };

/* Writes a cursor's path as "name: $.a[3].b". Very deep paths lose their outer steps. */
static void write_path(const ms__json_at *at, char *out, size_t size)
{
    const ms__json_at *steps[PATH_DEPTH_MAX];
    size_t count = 0;
    const ms__json_at *step = at;
    for (; step->parent != NULL; step = step->parent) {
        if (count < PATH_DEPTH_MAX) {
            steps[count++] = step;
        }
    }
    size_t used = (size_t)snprintf(out, size, "%s: $", step->name);
    while (count > 0 && used < size) {
        step = steps[--count];
        int written = step->name != NULL ? snprintf(out + used, size - used, ".%s", step->name)
                                         : snprintf(out + used, size - used, "[%zu]", step->index);
        used += written > 0 ? (size_t)written : 0;
    }
}

int ms__json_fail(const ms__json_at *at, int code, const char *fmt, ...)
{
    if (at->err == NULL) {
        return code;
    }
    char path[256];
    char text[MS_ERROR_TEXT_MAX];
    write_path(at, path, sizeof path);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return ms_fail(at->err, code, "%s: %s", path, text);
}

/* ---- parsing ------------------------------------------------------------ */

int ms__json_parse(const char *text, size_t length, const char *name, json_t **tree, ms__json_at *root, ms_error *err)
{
    ms__json_setup();
    (void)ms__json_ran_out_of_memory();
    json_error_t problem;
    json_t *parsed = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    if (ms__json_ran_out_of_memory()) {
        json_decref(parsed);
        return ms_fail(err, MS_ENOMEM, "%s: out of memory while parsing", name);
    }
    if (parsed == NULL) {
        return ms_fail(err, MS_EFORMAT, "%s: line %d, column %d: %s", name, problem.line, problem.column, problem.text);
    }
    ms__json_at top = {.value = parsed, .name = name, .err = err};
    int rc = json_is_object(parsed) ? ms__json_check_kind(&top) : ms__json_fail(&top, MS_EFORMAT, "expected an object");
    if (rc != MS_OK) {
        json_decref(parsed);
        return rc;
    }
    *tree = parsed;
    *root = top;
    return MS_OK;
}

/* ---- cursors ------------------------------------------------------------ */

/* An absent member and null both give the value NULL. */
static ms__json_at member_of(const ms__json_at *object, const char *name)
{
    const json_t *value = json_object_get(object->value, name);
    return (ms__json_at){
        .value = json_is_null(value) ? NULL : value,
        .parent = object,
        .name = name,
        .err = object->err,
    };
}

static ms__json_at item_of(const ms__json_at *array, size_t index)
{
    return (ms__json_at){
        .value = json_array_get(array->value, index),
        .parent = array,
        .index = index,
        .err = array->err,
    };
}

size_t ms__json_count(const ms__json_at *at)
{
    return json_is_object(at->value) ? json_object_size(at->value) : json_array_size(at->value);
}

bool ms__json_has(const ms__json_at *object, const char *name)
{
    return member_of(object, name).value != NULL;
}

int ms__json_only(const ms__json_at *object, const char *const names[], size_t count)
{
    /* The iterator functions take a pointer to non-const and change nothing. */
    json_t *members = (json_t *)(uintptr_t)object->value;
    for (void *it = json_object_iter(members); it != NULL; it = json_object_iter_next(members, it)) {
        const char *name = json_object_iter_key(it);
        bool known = false;
        for (size_t i = 0; i < count && !known; i++) {
            known = strcmp(name, names[i]) == 0;
        }
        if (!known) {
            return ms__json_fail(object, MS_EFORMAT, "unknown member \"%.64s\"", name);
        }
    }
    return MS_OK;
}

int ms__json_version(const ms__json_at *object, uint64_t oldest, uint64_t newest, uint64_t *version)
{
    uint64_t found = 0;
    int rc = ms__json_u64(object, "version", 0, UINT64_MAX, &found);
    if (rc != MS_OK) {
        return rc;
    }
    if (found < oldest || found > newest) {
        ms__json_at at = member_of(object, "version");
        return ms__json_fail(&at, MS_EVERSION, "%llu is not known here (known: %llu to %llu)",
                             (unsigned long long)found, (unsigned long long)oldest, (unsigned long long)newest);
    }
    if (version != NULL) {
        *version = found;
    }
    return MS_OK;
}

/* ---- values at a cursor ------------------------------------------------- */

static int fail_missing(const ms__json_at *at, const char *expected)
{
    return ms__json_fail(at, MS_EFORMAT, "missing, expected %s", expected);
}

static int read_u64(const ms__json_at *at, uint64_t least, uint64_t most, uint64_t *out)
{
    if (at->value == NULL) {
        return fail_missing(at, "a non-negative integer");
    }
    if (!json_is_integer(at->value) || json_integer_value(at->value) < 0) {
        return ms__json_fail(at, MS_EFORMAT, "expected a non-negative integer");
    }
    uint64_t value = (uint64_t)json_integer_value(at->value);
    if (value < least || value > most) {
        return ms__json_fail(at, MS_EFORMAT, "expected an integer from %llu to %llu, found %llu",
                             (unsigned long long)least, (unsigned long long)most, (unsigned long long)value);
    }
    *out = value;
    return MS_OK;
}

static int read_f64(const ms__json_at *at, double least, double most, double *out)
{
    if (at->value == NULL) {
        return fail_missing(at, "a number");
    }
    if (!json_is_number(at->value)) {
        return ms__json_fail(at, MS_EFORMAT, "expected a number");
    }
    double value = json_number_value(at->value);
    if (!(value >= least && value <= most)) {
        return ms__json_fail(at, MS_EFORMAT, "expected a number from %g to %g, found %g", least, most, value);
    }
    *out = value;
    return MS_OK;
}

static int read_bool(const ms__json_at *at, bool *out)
{
    if (at->value == NULL) {
        return fail_missing(at, "true or false");
    }
    if (!json_is_boolean(at->value)) {
        return ms__json_fail(at, MS_EFORMAT, "expected true or false");
    }
    *out = json_is_true(at->value);
    return MS_OK;
}

static int read_string(const ms__json_at *at, const char **out)
{
    if (at->value == NULL) {
        return fail_missing(at, "a string");
    }
    if (!json_is_string(at->value)) {
        return ms__json_fail(at, MS_EFORMAT, "expected a string");
    }
    *out = json_string_value(at->value);
    return MS_OK;
}

static int check_container(const ms__json_at *at, json_type type, ms__json_at *out)
{
    const char *expected = type == JSON_ARRAY ? "an array" : "an object";
    if (at->value == NULL) {
        return fail_missing(at, expected);
    }
    if (json_typeof(at->value) != type) {
        return ms__json_fail(at, MS_EFORMAT, "expected %s", expected);
    }
    *out = *at;
    return MS_OK;
}

/* ---- required members --------------------------------------------------- */

int ms__json_u64(const ms__json_at *object, const char *name, uint64_t least, uint64_t most, uint64_t *out)
{
    ms__json_at at = member_of(object, name);
    return read_u64(&at, least, most, out);
}

int ms__json_u32(const ms__json_at *object, const char *name, uint32_t least, uint32_t most, uint32_t *out)
{
    uint64_t wide = 0;
    int rc = ms__json_u64(object, name, least, most, &wide);
    if (rc == MS_OK) {
        *out = (uint32_t)wide;
    }
    return rc;
}

int ms__json_f64(const ms__json_at *object, const char *name, double least, double most, double *out)
{
    ms__json_at at = member_of(object, name);
    return read_f64(&at, least, most, out);
}

int ms__json_bool(const ms__json_at *object, const char *name, bool *out)
{
    ms__json_at at = member_of(object, name);
    return read_bool(&at, out);
}

int ms__json_string(const ms__json_at *object, const char *name, const char **out)
{
    ms__json_at at = member_of(object, name);
    return read_string(&at, out);
}

int ms__json_string_copy(const ms__json_at *object, const char *name, char **out)
{
    const char *text = "";
    int rc = ms__json_string(object, name, &text);
    if (rc != MS_OK) {
        return rc;
    }
    char *copy = ms_strdup(text);
    if (copy == NULL) {
        return ms__json_fail(object, MS_ENOMEM, "out of memory");
    }
    *out = copy;
    return MS_OK;
}

int ms__json_enum(const ms__json_at *object, const char *name, const char *const names[], size_t count, size_t *out)
{
    ms__json_at at = member_of(object, name);
    const char *text = "";
    int rc = read_string(&at, &text);
    if (rc != MS_OK) {
        return rc;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return MS_OK;
        }
    }
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof known; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s\"%s\"", i ? ", " : "", names[i]);
    }
    return ms__json_fail(&at, MS_EFORMAT, "\"%.64s\" is not one of %s", text, known);
}

int ms__json_array(const ms__json_at *object, const char *name, ms__json_at *out)
{
    ms__json_at at = member_of(object, name);
    return check_container(&at, JSON_ARRAY, out);
}

int ms__json_object(const ms__json_at *object, const char *name, ms__json_at *out)
{
    ms__json_at at = member_of(object, name);
    return check_container(&at, JSON_OBJECT, out);
}

/* ---- optional members --------------------------------------------------- */

int ms__json_u64_or(const ms__json_at *object, const char *name, uint64_t least, uint64_t most, uint64_t fallback,
                    uint64_t *out)
{
    if (!ms__json_has(object, name)) {
        *out = fallback;
        return MS_OK;
    }
    return ms__json_u64(object, name, least, most, out);
}

/* ---- items -------------------------------------------------------------- */

void *ms__json_items(const ms__json_at *object, const char *name, uint32_t most, size_t item_bytes, ms__json_at *array,
                     uint32_t *count, int *rc)
{
    *count = 0;
    *rc = ms__json_array(object, name, array);
    size_t found = *rc == MS_OK ? ms__json_count(array) : 0;
    if (found > most) {
        *rc = ms__json_fail(array, MS_EFORMAT, "has %zu items, more than %u", found, most);
    }
    if (*rc != MS_OK) {
        return NULL;
    }
    void *items = ms_calloc(found, item_bytes);
    if (items == NULL) {
        *rc = ms__json_fail(array, MS_ENOMEM, "out of memory");
        return NULL;
    }
    *count = (uint32_t)found;
    return items;
}

int ms__json_item_u64(const ms__json_at *array, size_t index, uint64_t least, uint64_t most, uint64_t *out)
{
    ms__json_at at = item_of(array, index);
    return read_u64(&at, least, most, out);
}

int ms__json_item_string(const ms__json_at *array, size_t index, const char **out)
{
    ms__json_at at = item_of(array, index);
    return read_string(&at, out);
}

int ms__json_item_array(const ms__json_at *array, size_t index, ms__json_at *out)
{
    ms__json_at at = item_of(array, index);
    return check_container(&at, JSON_ARRAY, out);
}

int ms__json_item_object(const ms__json_at *array, size_t index, ms__json_at *out)
{
    ms__json_at at = item_of(array, index);
    return check_container(&at, JSON_OBJECT, out);
}
