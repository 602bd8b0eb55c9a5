/*
 * The parts of units.h that are too long for a header: 128-bit scaling and the
 * texts of bytes and times.
 */
#include <stdio.h>

#include "base/units.h"

__extension__ typedef unsigned __int128 u128;

uint64_t ms__mul_div(uint64_t a, uint64_t b, uint64_t c)
{
    if (c == 0) {
        return UINT64_MAX;
    }
    u128 quotient = (u128)a * b / c;
    return quotient > UINT64_MAX ? UINT64_MAX : (uint64_t)quotient;
}

uint64_t ms__mul_div_up(uint64_t a, uint64_t b, uint64_t c)
{
    if (c == 0) {
        return UINT64_MAX;
    }
    u128 product = (u128)a * b;
    u128 quotient = product / c + (product % c != 0);
    return quotient > UINT64_MAX ? UINT64_MAX : (uint64_t)quotient;
}

/* Shows `value` in the largest unit of which it holds at least one. */
static ms__unit_text text_in_units(uint64_t value, const char *const names[], size_t count)
{
    ms__unit_text out;
    uint64_t unit = 1;
    size_t i = 0;
    /* 999.995 and more would be shown as 1000.00 of the smaller unit. */
    while (i + 1 < count && ms__mul_div_up(value, 1000, unit) >= UINT64_C(999995)) {
        unit *= 1000;
        i++;
    }
    if (unit == 1) {
        snprintf(out.text, sizeof out.text, "%llu %s", (unsigned long long)value, names[0]);
        return out;
    }
    uint64_t hundredths = ms__mul_div(ms__add_sat(value, unit / 200), 100, unit);
    snprintf(out.text, sizeof out.text, "%llu.%02u %s", (unsigned long long)(hundredths / 100),
             (unsigned)(hundredths % 100), names[i]);
    return out;
}

ms__unit_text ms__text_bytes(uint64_t bytes)
{
    static const char *const names[] = {"B", "kB", "MB", "GB", "TB"};
    return text_in_units(bytes, names, sizeof names / sizeof names[0]);
}

ms__unit_text ms__text_bytes_up(uint64_t bytes)
{
    uint64_t hundredth = 1;
    for (uint64_t unit = 1000; unit <= bytes && unit <= UINT64_C(1000000000000); unit *= 1000) {
        hundredth = unit / 100;
    }
    return ms__text_bytes(ms__align_up(bytes, hundredth));
}

ms__unit_text ms__text_ns(uint64_t ns)
{
    static const char *const names[] = {"ns", "us", "ms", "s"};
    return text_in_units(ns, names, sizeof names / sizeof names[0]);
}
