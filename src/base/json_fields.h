/*
 * Writes the fields of a struct as members of a JSON object and reads them back, from one table. For documents
 * whose objects mirror a struct (plans, machines and their parts). Thread-safe.
 * Tests: tests/c/base/test_json_fields.c.
 */
#ifndef MS_BASE_JSON_FIELDS_H
#define MS_BASE_JSON_FIELDS_H

#include <stddef.h>

#include "base/json.h"

typedef enum ms__field_kind {
    MS__FIELD_U64,    /* uint64_t; a value above INT64_MAX is written as INT64_MAX */
    MS__FIELD_U32,    /* uint32_t */
    MS__FIELD_BOOL,   /* bool */
    MS__FIELD_WORD,   /* uint32_t, written as its word */
    MS__FIELD_IF_ANY, /* uint64_t; not written if 0, read as 0 if missing */
    MS__FIELD_IF_SET, /* bool; not written if false, read as false if missing */
    MS__FIELD_LIMIT,  /* uint64_t, null for UINT64_MAX */
    MS__FIELD_TEXT,   /* char[most], with its NUL */
} ms__field_kind;

typedef struct ms__json_field {
    const char *name;
    ms__field_kind kind;
    size_t offset;
    uint64_t least, most;          /* bounds of a number; most 0: all numbers of its type */
    const char *(*word)(uint32_t); /* of a WORD: the words of 0 to most - 1 */
} ms__json_field;

/* Rows of a table: the member of `type` with the same name. */
#define MS__FIELD(type, member, kind) {#member, MS__FIELD_##kind, offsetof(type, member), 0, 0, NULL}
#define MS__FIELD_NUMBER(type, member, kind, least, most) \
    {#member, MS__FIELD_##kind, offsetof(type, member), (least), (most), NULL}
#define MS__FIELD_WORDS(type, member, words, word) {#member, MS__FIELD_WORD, offsetof(type, member), 0, (words), (word)}
#define MS__FIELD_CHARS(type, member) \
    {#member, MS__FIELD_TEXT, offsetof(type, member), 0, sizeof((type *)0)->member, NULL}

/* Adds all fields of the struct at `base` to `object`, in the table's order. */
void ms__json_put_fields(ms__json_writer *writer, json_t *object, const ms__json_field *fields, size_t count,
                         const void *base);

/* Reads all fields into the struct at `base`. All are required, except IF_ANY and IF_SET. Returns the first failure,
 * with the codes of json.h's readers. */
MS_NODISCARD int ms__json_read_fields(const ms__json_at *object, const ms__json_field *fields, size_t count,
                                      void *base);

/* The same, and MS_EFORMAT for a member that is neither a field nor in `others` (ended by NULL). */
MS_NODISCARD int ms__json_read_only_fields(const ms__json_at *object, const ms__json_field *fields, size_t count,
                                           const char *const *others, void *base);

/* MS_EFORMAT unless the object has exactly `count` members. Called after `count` different members were read. */
MS_NODISCARD int ms__json_only_count(const ms__json_at *object, size_t count);

#endif
