/*
 * The tables of json_fields.h. Called by the readers and writers of plans and machines.
 */
#include "base/json_fields.h"

#include <string.h>

enum { WORDS_MOST = 64, NAMES_MOST = 32 };

static void put_field(ms__json_writer *writer, json_t *object, const ms__json_field *field, const char *at)
{
    switch (field->kind) {
    case MS__FIELD_U64:
        ms__json_put_saturated(writer, object, field->name, *(const uint64_t *)(const void *)at);
        break;
    case MS__FIELD_U32:
        ms__json_put_u64(writer, object, field->name, *(const uint32_t *)(const void *)at);
        break;
    case MS__FIELD_BOOL:
        ms__json_put_bool(writer, object, field->name, *(const bool *)(const void *)at);
        break;
    case MS__FIELD_WORD:
        ms__json_put_string(writer, object, field->name, field->word(*(const uint32_t *)(const void *)at));
        break;
    case MS__FIELD_IF_ANY:
        if (*(const uint64_t *)(const void *)at > 0) {
            ms__json_put_saturated(writer, object, field->name, *(const uint64_t *)(const void *)at);
        }
        break;
    case MS__FIELD_IF_SET:
        if (*(const bool *)(const void *)at) {
            ms__json_put_bool(writer, object, field->name, true);
        }
        break;
    case MS__FIELD_LIMIT:
        ms__json_put_u64_or_null(writer, object, field->name, *(const uint64_t *)(const void *)at, UINT64_MAX);
        break;
    case MS__FIELD_TEXT:
        ms__json_put_string(writer, object, field->name, at);
        break;
    }
}

void ms__json_put_fields(ms__json_writer *writer, json_t *object, const ms__json_field *fields, size_t count,
                         const void *base)
{
    for (size_t i = 0; i < count; i++) {
        put_field(writer, object, &fields[i], (const char *)base + fields[i].offset);
    }
}

static int read_word(const ms__json_at *object, const ms__json_field *field, uint32_t *value)
{
    const char *words[WORDS_MOST];
    size_t count = field->most < WORDS_MOST ? (size_t)field->most : WORDS_MOST, index = 0;
    for (size_t i = 0; i < count; i++) {
        words[i] = field->word((uint32_t)i);
    }
    int rc = ms__json_enum(object, field->name, words, count, &index);
    *value = (uint32_t)index;
    return rc;
}

/* null means UINT64_MAX; the member itself is required. */
static int read_limit(const ms__json_at *object, const ms__json_field *field, uint64_t most, uint64_t *value)
{
    if (json_is_null(json_object_get(object->value, field->name))) {
        *value = UINT64_MAX;
        return MS_OK;
    }
    return ms__json_u64(object, field->name, field->least, most, value);
}

static int read_text(const ms__json_at *object, const ms__json_field *field, char *to)
{
    const char *text = "";
    int rc = ms__json_string(object, field->name, &text);
    size_t length = strlen(text);
    if (rc == MS_OK && length >= field->most) {
        return ms__json_fail(object, MS_EFORMAT, "\"%s\" is longer than %zu bytes", field->name,
                             (size_t)field->most - 1);
    }
    if (rc == MS_OK) {
        memcpy(to, text, length + 1);
    }
    return rc;
}

static int read_field(const ms__json_at *object, const ms__json_field *field, char *at)
{
    uint64_t most = field->most > 0 ? field->most : INT64_MAX;
    uint32_t most_32 = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
    switch (field->kind) {
    case MS__FIELD_U64:
        return ms__json_u64(object, field->name, field->least, most, (uint64_t *)(void *)at);
    case MS__FIELD_U32:
        return ms__json_u32(object, field->name, (uint32_t)field->least, most_32, (uint32_t *)(void *)at);
    case MS__FIELD_BOOL:
        return ms__json_bool(object, field->name, (bool *)(void *)at);
    case MS__FIELD_IF_ANY:
        return ms__json_u64_or(object, field->name, field->least, most, 0, (uint64_t *)(void *)at);
    case MS__FIELD_IF_SET:
        *(bool *)(void *)at = false;
        return ms__json_has(object, field->name) ? ms__json_bool(object, field->name, (bool *)(void *)at) : MS_OK;
    case MS__FIELD_LIMIT:
        return read_limit(object, field, most, (uint64_t *)(void *)at);
    case MS__FIELD_TEXT:
        return read_text(object, field, at);
    default:
        return read_word(object, field, (uint32_t *)(void *)at);
    }
}

int ms__json_read_fields(const ms__json_at *object, const ms__json_field *fields, size_t count, void *base)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = read_field(object, &fields[i], (char *)base + fields[i].offset);
    }
    return rc;
}

int ms__json_read_only_fields(const ms__json_at *object, const ms__json_field *fields, size_t count,
                              const char *const *others, void *base)
{
    const char *names[NAMES_MOST];
    size_t name_count = 0;
    for (; name_count < count && name_count < NAMES_MOST; name_count++) {
        names[name_count] = fields[name_count].name;
    }
    for (; *others != NULL && name_count < NAMES_MOST; others++) {
        names[name_count++] = *others;
    }
    int rc = ms__json_only(object, names, name_count);
    return rc == MS_OK ? ms__json_read_fields(object, fields, count, base) : rc;
}

int ms__json_only_count(const ms__json_at *object, size_t count)
{
    return ms__json_count(object) == count ? MS_OK
                                           : ms__json_fail(object, MS_EFORMAT, "has members that are not known");
}
