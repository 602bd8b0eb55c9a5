/*
 * The writing half of json.h: building a document and turning it into text.
 * Called by every room that saves a document; never writes files itself.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_setup.h"
#include "base/thread.h"

static _Thread_local bool ran_out_of_memory;

static void *allocate_for_jansson(size_t size_bytes)
{
    void *block = ms_malloc(size_bytes);
    ran_out_of_memory = ran_out_of_memory || block == NULL;
    return block;
}

static void route_allocations(void)
{
    json_set_alloc_funcs(allocate_for_jansson, ms_free);
}

void ms__json_setup(void)
{
    static ms__once once = MS__ONCE_INIT;
    ms__once_run(&once, route_allocations);
}

bool ms__json_ran_out_of_memory(void)
{
    bool answer = ran_out_of_memory;
    ran_out_of_memory = false;
    return answer;
}

/* ---- building ----------------------------------------------------------- */

static void writer_fail(ms__json_writer *writer, int code, const char *name)
{
    if (writer->code == MS_OK) {
        writer->code = code;
        writer->name = name;
    }
}

json_t *ms__json_new(ms__json_writer *writer)
{
    ms__json_setup();
    json_t *tree = json_object();
    if (tree == NULL) {
        writer_fail(writer, MS_ENOMEM, "$");
    }
    return tree;
}

void ms__json_put_value(ms__json_writer *writer, json_t *object, const char *name, json_t *value)
{
    if (writer->code != MS_OK || object == NULL) {
        json_decref(value);
        return;
    }
    /* jansson takes the reference even when it fails; NULL fails. */
    if (json_object_set_new(object, name, value) != 0) {
        writer_fail(writer, MS_ENOMEM, name);
    }
}

static void add_value(ms__json_writer *writer, json_t *array, json_t *value)
{
    if (writer->code != MS_OK || array == NULL) {
        json_decref(value);
        return;
    }
    if (json_array_append_new(array, value) != 0) {
        writer_fail(writer, MS_ENOMEM, "item");
    }
}

/* A JSON integer, or NULL with the failure remembered. */
static json_t *new_u64(ms__json_writer *writer, const char *name, uint64_t value)
{
    if (value > INT64_MAX) {
        writer_fail(writer, MS_EOVERFLOW, name);
        return NULL;
    }
    return json_integer((json_int_t)value);
}

/* Length of the UTF-8 sequence at `text`, or 0 if the bytes are not UTF-8. */
static size_t utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
    for (size_t extra = 0; extra < 4; extra++) {
        if ((text[0] & forms[extra].mask) != forms[extra].lead) {
            continue;
        }
        uint32_t code = text[0] & (unsigned char)~forms[extra].mask;
        for (size_t i = 1; i <= extra; i++) {
            if ((text[i] & 0xC0) != 0x80) {
                return 0;
            }
            code = code << 6 | (text[i] & 0x3F);
        }
        bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        return code >= forms[extra].least && code <= 0x10FFFF && !surrogate ? extra + 1 : 0;
    }
    return 0;
}

/* Names of modules and files may hold any bytes. */
static json_t *new_string(const char *text)
{
    if (text == NULL) {
        return json_null();
    }
    json_t *value = json_string(text);
    if (value != NULL) {
        return value;
    }
    char *clean = ms_strdup(text);
    if (clean == NULL) {
        return NULL;
    }
    for (size_t i = 0; clean[i] != '\0';) {
        size_t length = utf8_length((const unsigned char *)clean + i);
        if (length == 0) {
            clean[i] = '?';
            length = 1;
        }
        i += length;
    }
    value = json_string(clean);
    ms_free(clean);
    return value;
}

void ms__json_put_u64(ms__json_writer *writer, json_t *object, const char *name, uint64_t value)
{
    ms__json_put_value(writer, object, name, new_u64(writer, name, value));
}

void ms__json_put_saturated(ms__json_writer *writer, json_t *object, const char *name, uint64_t value)
{
    ms__json_put_u64(writer, object, name, value < INT64_MAX ? value : INT64_MAX);
}

void ms__json_put_u64_or_null(ms__json_writer *writer, json_t *object, const char *name, uint64_t value, uint64_t none)
{
    if (value == none) {
        ms__json_put_null(writer, object, name);
    } else {
        ms__json_put_u64(writer, object, name, value);
    }
}

void ms__json_put_f64(ms__json_writer *writer, json_t *object, const char *name, double value)
{
    if (!isfinite(value)) {
        writer_fail(writer, MS_EINVAL, name);
        return;
    }
    ms__json_put_value(writer, object, name, json_real(value));
}

void ms__json_put_bool(ms__json_writer *writer, json_t *object, const char *name, bool value)
{
    ms__json_put_value(writer, object, name, json_boolean(value));
}

void ms__json_put_string(ms__json_writer *writer, json_t *object, const char *name, const char *text)
{
    ms__json_put_value(writer, object, name, new_string(text));
}

void ms__json_put_null(ms__json_writer *writer, json_t *object, const char *name)
{
    ms__json_put_value(writer, object, name, json_null());
}

json_t *ms__json_put_object(ms__json_writer *writer, json_t *object, const char *name)
{
    ms__json_put_value(writer, object, name, json_object());
    return writer->code == MS_OK ? json_object_get(object, name) : NULL;
}

json_t *ms__json_put_array(ms__json_writer *writer, json_t *object, const char *name)
{
    ms__json_put_value(writer, object, name, json_array());
    return writer->code == MS_OK ? json_object_get(object, name) : NULL;
}

static json_t *last_item(const ms__json_writer *writer, const json_t *array)
{
    size_t count = json_array_size(array);
    return writer->code == MS_OK && count > 0 ? json_array_get(array, count - 1) : NULL;
}

void ms__json_add_u64(ms__json_writer *writer, json_t *array, uint64_t value)
{
    add_value(writer, array, new_u64(writer, "item", value));
}

void ms__json_add_string(ms__json_writer *writer, json_t *array, const char *text)
{
    add_value(writer, array, new_string(text));
}

json_t *ms__json_add_object(ms__json_writer *writer, json_t *array)
{
    add_value(writer, array, json_object());
    return last_item(writer, array);
}

json_t *ms__json_add_array(ms__json_writer *writer, json_t *array)
{
    add_value(writer, array, json_array());
    return last_item(writer, array);
}

/* ---- text --------------------------------------------------------------- */

enum { DIGITS_LEAST = 15, DIGITS_MOST = 17 };

static int digits_of_number(double value)
{
    char text[40];
    for (int digits = DIGITS_LEAST; digits < DIGITS_MOST; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) { // NOLINT: the question is whether the bits return
            return digits;
        }
    }
    return DIGITS_MOST;
}

/* The fewest digits with which every real number of the tree reads back as the same value: 15 for numbers that
 * people write ("0.85"), 17 for computed ones. The documents are flat, so recursion is shallow. */
static int digits_of_tree(const json_t *value)
{
    int most = DIGITS_LEAST;
    if (json_is_real(value)) {
        return digits_of_number(json_real_value(value));
    }
    for (size_t i = 0; i < json_array_size(value) && most < DIGITS_MOST; i++) {
        int digits = digits_of_tree(json_array_get(value, i));
        most = digits > most ? digits : most;
    }
    json_t *object = (json_t *)(uintptr_t)value;
    for (void *it = json_object_iter(object); it != NULL && most < DIGITS_MOST;
         it = json_object_iter_next(object, it)) {
        int digits = digits_of_tree(json_object_iter_value(it));
        most = digits > most ? digits : most;
    }
    return most;
}

char *ms__json_text(const json_t *value, bool compact)
{
    ms__json_setup();
    size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits_of_tree(value));
    (void)ms__json_ran_out_of_memory();
    char *text = json_dumps(value, flags | (compact ? JSON_COMPACT : JSON_INDENT(2)));
    /* If its buffer can't grow, jansson drops a key and continues. */
    if (ms__json_ran_out_of_memory()) {
        ms_free(text);
        return NULL;
    }
    if (text == NULL || compact) {
        return text;
    }
    size_t length = strlen(text);
    char *with_newline = ms_realloc_array(text, length + 2, 1);
    if (with_newline == NULL) {
        ms_free(text);
        return NULL;
    }
    memcpy(with_newline + length, "\n", 2);
    return with_newline;
}

int ms__json_finish(ms__json_writer *writer, json_t *tree, const char *what, char **text, ms_error *err)
{
    if (writer->code == MS_OK) {
        char *finished = ms__json_text(tree, false);
        if (finished != NULL) {
            *text = finished;
        } else {
            writer_fail(writer, MS_ENOMEM, "$");
        }
    }
    json_decref(tree);
    if (writer->code != MS_OK) {
        return ms_fail(err, writer->code, "%s: writing \"%s\": %s", what, writer->name, ms_error_text(writer->code));
    }
    return MS_OK;
}
