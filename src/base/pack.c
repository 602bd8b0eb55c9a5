/*
 * Bit packing: finds the two values, has the reference kernels, and chooses between kernels.
 */
#include "base/pack.h"

#include <string.h>

#include "base/units.h"

struct ms__packed {
    uint64_t bytes;
    uint64_t values[2];
    uint32_t width;
    unsigned char bits[];
};

/* Scanned before memory is allocated; a multiple of 8 words of any width. */
enum { PROBE_BYTES = 4096, COMPARED_AT_ONCE = 16384 };

/* ---- the reference ------------------------------------------------------------- */

static uint64_t word_at(const unsigned char *data, uint64_t index, uint32_t width)
{
    uint64_t word = 0;
    memcpy(&word, data + index * width, width);
    return word;
}

static bool pack_plain(const unsigned char *data, uint64_t count, uint32_t width, const uint64_t values[2],
                       unsigned char *bits)
{
    memset(bits, 0, ms__div_up(count, 8));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t word = word_at(data, i, width);
        if (word != values[0]) {
            if (word != values[1]) {
                return false;
            }
            bits[i / 8] |= (unsigned char)(1u << i % 8);
        }
    }
    return true;
}

static void unpack_plain(const unsigned char *bits, uint64_t count, uint32_t width, const uint64_t values[2],
                         unsigned char *data)
{
    for (uint64_t i = 0; i < count; i++) {
        memcpy(data + i * width, &values[bits[i / 8] >> i % 8 & 1], width);
    }
}

const ms__pack_kernels ms__pack_plain = {.pack = pack_plain, .unpack = unpack_plain};

const ms__pack_kernels *ms__pack_select(void)
{
#ifdef MS_BASE_X86
    if (__builtin_cpu_supports("avx2")) {
        return &ms__pack_avx2;
    }
#endif
    return &ms__pack_plain;
}

/* ---- finding the two values ------------------------------------------------------ */

/* The first word that differs from word 0, or `count`. Data that equals itself shifted by one word has one value;
 * memcmp() finds that fastest. */
static uint64_t find_other(const unsigned char *data, uint64_t count, uint32_t width)
{
    uint64_t at = 1;
    while (at < count) {
        uint64_t words = ms__min_u64(count - at, COMPARED_AT_ONCE / width);
        const unsigned char *from = data + at * width;
        if (memcmp(from - width, from, words * width) != 0) {
            break;
        }
        at += words;
    }
    uint64_t first = word_at(data, 0, width);
    while (at < count && word_at(data, at, width) == first) {
        at++;
    }
    return at;
}

/* The two values of words of this width, provided that the words around the first change have no third. */
static bool find_values(const unsigned char *data, uint64_t bytes, uint32_t width, uint64_t values[2])
{
    unsigned char bits[PROBE_BYTES / 8];
    if (bytes < width || bytes % width != 0) {
        return false;
    }
    uint64_t count = bytes / width;
    uint64_t other = find_other(data, count, width);
    values[0] = word_at(data, 0, width);
    values[1] = other < count ? word_at(data, other, width) : values[0];
    uint64_t probed = ms__min_u64(count - other, PROBE_BYTES / width);
    return pack_plain(data + other * width, probed, width, values, bits);
}

/* Wide words first: they give the fewest bits. */
static const uint32_t widths[] = {8, 4, 2, 1};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

bool ms__pack_may(const void *data, uint64_t bytes)
{
    uint64_t values[2];
    for (int i = 0; i < WIDTHS; i++) {
        if (find_values(data, bytes, widths[i], values)) {
            return true;
        }
    }
    return false;
}

/* ---- packing ----------------------------------------------------------------------- */

static ms__packed *pack_words(const unsigned char *data, uint64_t bytes, uint32_t width, const uint64_t values[2])
{
    uint64_t count = bytes / width;
    ms__packed *packed = ms_malloc(sizeof *packed + ms__div_up(count, 8));
    if (packed == NULL) {
        return NULL;
    }
    packed->bytes = bytes;
    packed->values[0] = values[0];
    packed->values[1] = values[1];
    packed->width = width;
    if (!ms__pack_select()->pack(data, count, width, values, packed->bits)) {
        ms_free(packed);
        return NULL;
    }
    return packed;
}

ms__packed *ms__pack(const void *data, uint64_t bytes)
{
    for (int i = 0; i < WIDTHS; i++) {
        uint64_t values[2];
        ms__packed *packed =
            find_values(data, bytes, widths[i], values) ? pack_words(data, bytes, widths[i], values) : NULL;
        if (packed != NULL) {
            return packed;
        }
    }
    return NULL;
}

void ms__packed_free(ms__packed *packed)
{
    ms_free(packed);
}

void ms__unpack(const ms__packed *packed, void *data)
{
    ms__pack_select()->unpack(packed->bits, packed->bytes / packed->width, packed->width, packed->values, data);
}

uint64_t ms__packed_bytes(const ms__packed *packed)
{
    return sizeof *packed + ms__div_up(packed->bytes / packed->width, 8);
}
