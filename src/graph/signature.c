/*
 * Input signatures: finds the plan for inputs of new shapes. Called when a training forward sees them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "memscale/graph.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads the number at *text and moves past it. Overlong numbers saturate. */
static uint64_t take_number(const char **text)
{
    char *end;
    uint64_t value = strtoull(*text, &end, 10);
    *text = end;
    return value;
}

bool ms_signature_covers(const char *larger, const char *smaller)
{
    bool in_sizes = false;
    while (*larger != '\0' && *smaller != '\0') {
        if (in_sizes && is_digit(*larger) && is_digit(*smaller)) {
            if (take_number(&smaller) > take_number(&larger)) {
                return false;
            }
            continue;
        }
        if (*larger != *smaller) {
            return false;
        }
        in_sizes = *larger == '[' || (in_sizes && *larger != ']');
        larger++;
        smaller++;
    }
    return *larger == *smaller;
}

size_t ms_signature_find(const char *const *known, size_t count, const char *signature)
{
    size_t covering = count;
    for (size_t i = count; i-- > 0;) {
        if (strcmp(known[i], signature) == 0) {
            return i;
        }
        if (ms_signature_covers(known[i], signature)) {
            covering = i;
        }
    }
    return covering;
}

/* How far ahead to go: 3/16 of the power of two below it. Sizes that differ a little (a length, and that without
 * its last token) grow alike. Saturates, as take_number() does. */
static uint64_t grown_size(uint64_t size)
{
    uint64_t power = 1;
    while (power <= size / 2) {
        power *= 2;
    }
    uint64_t growth = power / 8 + power / 16;
    return ms__add_sat(size, growth > 0 ? growth : 1);
}

/* `signature` with larger sizes wherever it has grown since `smaller`, which it covers. */
static char *with_grown_sizes(const char *signature, const char *smaller)
{
    size_t room = 2 * strlen(signature) + 1; /* a size gets at most one digit more */
    char *text = ms_malloc(room), *to = text;
    bool in_sizes = false;
    while (text != NULL && *signature != '\0') {
        if (in_sizes && is_digit(*signature)) {
            uint64_t size = take_number(&signature);
            size = size > take_number(&smaller) ? grown_size(size) : size;
            to += snprintf(to, room - (size_t)(to - text), "%" PRIu64, size);
            continue;
        }
        in_sizes = *signature == '[' || (in_sizes && *signature != ']');
        *to++ = *signature++;
        smaller++;
    }
    if (text != NULL) {
        *to = '\0';
    }
    return text;
}

char *ms_signature_ahead(const char *const *known, size_t count, const char *signature)
{
    size_t growths = 0;
    const char *smaller = NULL;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(known[i], signature) != 0 && ms_signature_covers(signature, known[i])) {
            smaller = known[i];
            growths++;
        }
    }
    return growths < MS_SIGNATURE_GROWTHS ? NULL : with_grown_sizes(signature, smaller);
}

/* Length of the number at `text` if that is a whole value, else 0. */
static size_t number_length(const char *text)
{
    size_t length = 0;
    if (!is_digit(text[0]) && !(text[0] == '-' && is_digit(text[1]))) {
        return 0;
    }
    while (text[length] != '\0' && strchr("0123456789.eE+-", text[length]) != NULL) {
        length++;
    }
    return text[length] == ',' || text[length] == '\0' ? length : 0;
}

/* Length of an argument's name and '=' at `text`, or 0. */
static size_t name_length(const char *text)
{
    size_t length = strcspn(text, ",=:'");
    return text[length] == '=' ? length + 1 : 0;
}

/* True if `signature` has an argument of this name (with its '=') and value. */
static bool has_value(const char *signature, const char *name, size_t name_size, const char *value, size_t value_size)
{
    bool in_text = false;
    bool is_start = true;
    for (const char *at = signature; *at != '\0'; at++) {
        if (is_start && strncmp(at, name, name_size) == 0 && strncmp(at + name_size, value, value_size) == 0 &&
            (at[name_size + value_size] == ',' || at[name_size + value_size] == '\0')) {
            return true;
        }
        in_text ^= *at == '\'';
        is_start = !in_text && (*at == ',' || *at == ' ');
    }
    return false;
}

/* True if the number is to be dropped: always if `other` is NULL, else if `other` has '#' or, with `different`,
 * another value for it. */
static bool is_dropped(const char *other, bool different, const char *name, size_t name_size, size_t value_size)
{
    if (other == NULL) {
        return true;
    }
    return different ? !has_value(other, name, name_size, name + name_size, value_size)
                     : has_value(other, name, name_size, "#", 1);
}

static void drop_numbers(char *signature, const char *other, bool different)
{
    char *to = signature;
    bool in_text = false;
    bool is_start = true;
    for (const char *from = signature; *from != '\0';) {
        size_t name_size = is_start ? name_length(from) : 0;
        size_t value_size = name_size > 0 ? number_length(from + name_size) : 0;
        if (value_size > 0 && is_dropped(other, different, from, name_size, value_size)) {
            memmove(to, from, name_size);
            to += name_size;
            *to++ = '#';
            from += name_size + value_size;
            is_start = false;
            continue;
        }
        in_text ^= *from == '\'';
        is_start = !in_text && (*from == ',' || *from == ' ');
        *to++ = *from++;
    }
    *to = '\0';
}

void ms_signature_drop_numbers(char *signature, const char *dropped)
{
    drop_numbers(signature, dropped, false);
}

void ms_signature_drop_different(char *signature, const char *other)
{
    drop_numbers(signature, other, true);
}

bool ms_signature_learn(char *signature, const ms_graph *graph, const char *other, const ms_graph *other_graph)
{
    if (!ms_graph_same_step(graph, other_graph)) {
        return false;
    }
    ms_signature_drop_different(signature, other);
    return true;
}
