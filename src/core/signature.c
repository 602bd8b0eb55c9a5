/*
 * Input signatures: which plan can serve inputs that no plan was made for. Called when a
 * training forward sees new shapes.
 */
#include <stdlib.h>
#include <string.h>

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

void ms_signature_drop_numbers(char *signature)
{
    char *to = signature;
    bool in_text = false;
    for (const char *from = signature; *from != '\0';) {
        in_text ^= *from == '\'';
        bool is_value = *from == '=' && !in_text;
        *to++ = *from++;
        size_t length = is_value ? number_length(from) : 0;
        if (length > 0) {
            *to++ = '#';
            from += length;
        }
    }
    *to = '\0';
}
