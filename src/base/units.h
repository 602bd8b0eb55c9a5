/*
 * Arithmetic on bytes and nanoseconds without wrap-around, and their texts. Allocates nothing.
 * Tests: tests/c/base/test_units.c.
 */
#ifndef MS_BASE_UNITS_H
#define MS_BASE_UNITS_H

#include "memscale/base.h"

/* a + b, or UINT64_MAX if that does not fit. */
static inline uint64_t ms__add_sat(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* a - b, or 0 if b is larger. */
static inline uint64_t ms__sub_sat(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* a * b, or UINT64_MAX if that does not fit. */
static inline uint64_t ms__mul_sat(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* a * b. False, with `*out` unchanged, if the product does not fit. */
static inline MS_NODISCARD bool ms__mul_checked(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

/* a * b / c rounded down, with a product of 128 bits; UINT64_MAX if the quotient
 * does not fit or c is 0. */
uint64_t ms__mul_div(uint64_t a, uint64_t b, uint64_t c);

/* The same, rounded up. */
uint64_t ms__mul_div_up(uint64_t a, uint64_t b, uint64_t c);

/* a / b rounded up; b is not 0. */
static inline uint64_t ms__div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* The smallest multiple of `alignment` (not 0, any number) that is >= value, or
 * UINT64_MAX if that does not fit. */
static inline uint64_t ms__align_up(uint64_t value, uint64_t alignment)
{
    return ms__mul_sat(ms__div_up(value, alignment), alignment);
}

static inline uint64_t ms__align_down(uint64_t value, uint64_t alignment)
{
    return value - value % alignment;
}

/* Compares a / b with c / d without rounding: below 0, 0 or above 0, as for qsort(). */
static inline int ms__compare_quotients(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    __extension__ typedef unsigned __int128 wide;
    wide left = (wide)a * d, right = (wide)c * b;
    return (left > right) - (left < right);
}

static inline uint64_t ms__min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t ms__max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Room for every text below. */
typedef struct ms__unit_text {
    char text[24];
} ms__unit_text;

/* "512 B", "25.20 MB", "4.00 GB": powers of 1000, two decimals, rounded half up,
 * the same in every locale. */
ms__unit_text ms__text_bytes(uint64_t bytes);

/* As ms__text_bytes(), rounded up: for minimum requirements. */
ms__unit_text ms__text_bytes_up(uint64_t bytes);

/* "850 ns", "12.00 us", "1.50 ms", "2.05 s". */
ms__unit_text ms__text_ns(uint64_t ns);

#endif
