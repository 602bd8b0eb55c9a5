/*
 * Reads and writes JSON documents with jansson. The rooms' readers and writers (graph, hardware, config, plan) use
 * only these helpers, so that every error names the place in the document, and equal documents have equal bytes.
 *
 * Reading. A cursor is a value and its path in the document. Cursors live on the caller's stack; inner ones point to
 * outer ones:
 *
 *     ms__json_at root, layers, layer;
 *     json_t *tree;
 *     ms__json_parse(text, length, "graph", &tree, &root, err)      or return its code
 *     ms__json_version(&root, 1, 1, NULL)
 *     ms__json_array(&root, "layers", &layers)
 *     for (size_t i = 0; i < ms__json_count(&layers); i++) {
 *         ms__json_item_object(&layers, i, &layer)
 *         ms__json_u64(&layer, "bytes", 0, UINT64_MAX, &bytes)
 *         -> MS_EFORMAT "graph: $.layers[3].bytes: expected a non-negative integer"
 *     }
 *     json_decref(tree)                              frees the values of all cursors
 *
 * Writing. Callers do not check each field: the writer remembers its first failure, and ms__json_finish() reports it.
 * Tests: tests/c/base/test_json.c.
 */
#ifndef MS_BASE_JSON_H
#define MS_BASE_JSON_H

#include <jansson.h>

#include "memscale/base.h"

/* ---- reading ------------------------------------------------------------ */

typedef struct ms__json_at {
    const json_t *value;              /* borrowed; NULL for an optional member that is absent */
    const struct ms__json_at *parent; /* NULL at the root */
    const char *name;                 /* member name; at the root the document's name */
    size_t index;                     /* used if name is NULL */
    ms_error *err;                    /* receives failures; may be NULL */
} ms__json_at;

/* Parses `length` bytes of text. On success `*tree` owns the document (free it with json_decref) and `*root` is
 * the cursor at its top, which must be an object. `name` ("graph") begins every error text and must outlive the
 * cursors. If it names a kind of docs/formats, refuses a document that is clearly of another kind. MS_EFORMAT with
 * line and column for malformed text (duplicate members included), MS_ENOMEM. */
MS_NODISCARD int ms__json_parse(const char *text, size_t length, const char *name, json_t **tree, ms__json_at *root,
                                ms_error *err);

/* The largest document accepted: `items` objects in the root's list `member`, and a total of `values` values. */
typedef struct ms__json_extent {
    const char *member;
    size_t items, values;
} ms__json_extent;

/* MS_EFORMAT with the line at which the text exceeds `most`. Call it before ms__json_parse(), whose tree takes
 * many times the text's bytes. */
MS_NODISCARD int ms__json_check_extent(const char *json, const char *name, const ms__json_extent *most, ms_error *err);

/* MS_EFORMAT if the document is clearly of another kind than the root's name states (json_kind.c). */
MS_NODISCARD int ms__json_check_kind(const ms__json_at *root);

/* Fills the cursor's error with "name: $.path: text" and returns `code`. */
int ms__json_fail(const ms__json_at *at, int code, const char *fmt, ...) MS_PRINTF(3, 4);

/* Checks that member "version" is an integer in [oldest, newest]. MS_EFORMAT if it is missing or not an integer,
 * MS_EVERSION if it is another number. `version` may be NULL. */
MS_NODISCARD int ms__json_version(const ms__json_at *object, uint64_t oldest, uint64_t newest, uint64_t *version);

/* Fails with MS_EFORMAT on a member that is not among the `count` names. */
MS_NODISCARD int ms__json_only(const ms__json_at *object, const char *const names[], size_t count);

/* True if the member exists and is not null. */
bool ms__json_has(const ms__json_at *object, const char *name);

/*
 * Required members. MS_EFORMAT if the member is missing, has another type or lies outside
 * the bounds, which are inclusive. The parser refuses integers above INT64_MAX.
 */
MS_NODISCARD int ms__json_u64(const ms__json_at *object, const char *name, uint64_t least, uint64_t most,
                              uint64_t *out);
MS_NODISCARD int ms__json_u32(const ms__json_at *object, const char *name, uint32_t least, uint32_t most,
                              uint32_t *out);
/* Any JSON number, integer or not. */
MS_NODISCARD int ms__json_f64(const ms__json_at *object, const char *name, double least, double most, double *out);
MS_NODISCARD int ms__json_bool(const ms__json_at *object, const char *name, bool *out);
/* Borrowed: lives as long as the tree. UTF-8 without NUL. */
MS_NODISCARD int ms__json_string(const ms__json_at *object, const char *name, const char **out);
/* A copy; free it with ms_free(). MS_ENOMEM. */
MS_NODISCARD int ms__json_string_copy(const ms__json_at *object, const char *name, char **out);
/* The index in `names` of the member's string. The error lists `names`. */
MS_NODISCARD int ms__json_enum(const ms__json_at *object, const char *name, const char *const names[], size_t count,
                               size_t *out);
MS_NODISCARD int ms__json_array(const ms__json_at *object, const char *name, ms__json_at *out);
MS_NODISCARD int ms__json_object(const ms__json_at *object, const char *name, ms__json_at *out);

/* An optional member: `fallback` if it is absent or null, else as ms__json_u64(). */
MS_NODISCARD int ms__json_u64_or(const ms__json_at *object, const char *name, uint64_t least, uint64_t most,
                                 uint64_t fallback, uint64_t *out);

/* The number of items of an array or members of an object; 0 for any other value. */
size_t ms__json_count(const ms__json_at *at);

/* Allocates zeroed memory for the items of the required array `name`: `*count` items of `item_bytes` each. Free it
 * with ms_free(). On failure NULL, and `*rc` is MS_EFORMAT (the array is missing or has more than `most` items) or
 * MS_ENOMEM. */
MS_NODISCARD void *ms__json_items(const ms__json_at *object, const char *name, uint32_t most, size_t item_bytes,
                                  ms__json_at *array, uint32_t *count, int *rc);

/* Item `index` (< ms__json_count) of the array at the cursor. */
MS_NODISCARD int ms__json_item_u64(const ms__json_at *array, size_t index, uint64_t least, uint64_t most,
                                   uint64_t *out);
MS_NODISCARD int ms__json_item_string(const ms__json_at *array, size_t index, const char **out);
MS_NODISCARD int ms__json_item_array(const ms__json_at *array, size_t index, ms__json_at *out);
MS_NODISCARD int ms__json_item_object(const ms__json_at *array, size_t index, ms__json_at *out);

/* ---- writing ------------------------------------------------------------ */

/* All zero is a new writer. */
typedef struct ms__json_writer {
    int code;         /* of the first failure, or MS_OK */
    const char *name; /* of the member that failed */
} ms__json_writer;

/* A new empty document. The caller owns it until ms__json_finish() takes it. NULL when out of memory; the writer
 * remembers that failure. */
json_t *ms__json_new(ms__json_writer *writer);

/* Append a member to `object`. They do nothing if the writer has already failed or `object` is NULL. Sizes above
 * INT64_MAX fail with MS_EOVERFLOW, numbers that are not finite with MS_EINVAL. */
void ms__json_put_u64(ms__json_writer *writer, json_t *object, const char *name, uint64_t value);
/* As ms__json_put_u64(), but a value above INT64_MAX is written as INT64_MAX. */
void ms__json_put_saturated(ms__json_writer *writer, json_t *object, const char *name, uint64_t value);
/* Writes null if the value is `none` ("no limit", "not known"). */
void ms__json_put_u64_or_null(ms__json_writer *writer, json_t *object, const char *name, uint64_t value, uint64_t none);
void ms__json_put_f64(ms__json_writer *writer, json_t *object, const char *name, double value);
void ms__json_put_bool(ms__json_writer *writer, json_t *object, const char *name, bool value);
/* Writes null if `text` is NULL; replaces bytes that are not UTF-8 by "?". */
void ms__json_put_string(ms__json_writer *writer, json_t *object, const char *name, const char *text);
void ms__json_put_null(ms__json_writer *writer, json_t *object, const char *name);
/* The new child, borrowed from `object`; NULL after a failure. */
json_t *ms__json_put_object(ms__json_writer *writer, json_t *object, const char *name);
json_t *ms__json_put_array(ms__json_writer *writer, json_t *object, const char *name);
/* Puts any value and takes its reference, also on failure. */
void ms__json_put_value(ms__json_writer *writer, json_t *object, const char *name, json_t *value);

/* Append an item to `array` in the same way. */
void ms__json_add_u64(ms__json_writer *writer, json_t *array, uint64_t value);
void ms__json_add_string(ms__json_writer *writer, json_t *array, const char *text);
json_t *ms__json_add_object(ms__json_writer *writer, json_t *array);
json_t *ms__json_add_array(ms__json_writer *writer, json_t *array);

/* Frees `tree` (may be NULL). If the writer has not failed, `*text` receives the document: members in the order of
 * the calls, an indent of two spaces, a newline at the end, numbers in the fewest digits that read back as the same
 * value. Free it with ms_free(). `what` names the document in errors. */
MS_NODISCARD int ms__json_finish(ms__json_writer *writer, json_t *tree, const char *what, char **text, ms_error *err);

/* The text of a value, which the caller still owns; `compact` gives one line without
 * spaces or newline. NULL when out of memory. */
char *ms__json_text(const json_t *value, bool compact);

#endif
