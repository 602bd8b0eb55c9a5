/*
 * Input signatures: which plan can serve inputs that no plan was made for. Called when a
 * training forward sees new shapes.
 */
#include <stdlib.h>

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
