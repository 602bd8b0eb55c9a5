/*
 * Refuses documents that are too long before they are parsed, because their tree would take gigabytes. Counts only
 * the objects of one top-level list and the commas; the parser checks everything else.
 */
#include <string.h>

#include "base/json.h"

/* The closing quote of the string that begins at `at`, or the end of the text. */
static const char *string_end(const char *at)
{
    while (*at != '\0' && *at != '"') {
        at += *at == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return at;
}

static bool range_equals(const char *begin, const char *end, const char *text)
{
    size_t length = strlen(text);
    return (size_t)(end - begin) == length && memcmp(begin, text, length) == 0;
}

int ms__json_check_extent(const char *json, const char *name, const ms__json_extent *most, ms_error *err)
{
    size_t depth = 0, items = 0, values = 0, line = 1;
    bool is_named = false, is_in_list = false; /* the last string was the member's name; the member's list is open */
    for (const char *at = json; *at != '\0'; at++) {
        if (*at == '"') {
            const char *end = string_end(at + 1);
            is_named = depth == 1 && range_equals(at + 1, end, most->member);
            at = *end != '\0' ? end : end - 1;
        } else if (*at == '[' || *at == '{') {
            is_in_list = depth == 1 ? is_named && *at == '[' : is_in_list;
            items += *at == '{' && depth == 2 && is_in_list;
            depth++;
        } else {
            depth -= depth > 0 && (*at == ']' || *at == '}');
            values += *at == ',';
            line += *at == '\n';
        }
        if (items > most->items) {
            return ms_fail(err, MS_EFORMAT, "%s: line %zu: more than %zu %s", name, line, most->items, most->member);
        }
        if (values > most->values) {
            return ms_fail(err, MS_EFORMAT, "%s: line %zu: more than %zu values", name, line, most->values);
        }
    }
    return MS_OK;
}
