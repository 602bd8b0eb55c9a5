/*
 * The codec of codec.h.
 *
 * Compressed data is: width, mask, and for each block of BLOCK_BYTES the copied planes (a plane
 * is one byte of each number), then the compressed ones, each behind its size; last the bytes
 * after the last whole number. A block's planes fit a core's cache.
 */
#include "offload/codec.h"

#include <string.h>

#include "base/fault.h"
#include "base/libzstd.h"
#include "base/units.h"

enum {
    WIDTH_MAX = 8,
    BLOCK_BYTES = 256 << 10,
    /* The sample: stretches of the data, evenly spread. */
    STRETCHES = 4,
    STRETCH_BYTES = 4096,
    SAMPLE_BYTES = STRETCHES * STRETCH_BYTES,
    /* A plane is compressed if that saves at least one part in this many. */
    PLANE_GAIN = 16,
    /* Exponents have few values and no order, so entropy coding gives the whole gain. Searching
     * for repetitions, which this level nearly skips, doubles the time and compresses worse
     * (docs/results). */
    LEVEL = -100,
    HEADER_BYTES = 2,
    SIZE_BYTES = sizeof(uint32_t)
};

static const uint32_t widths[] = {4, 2, 8, 1};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

struct ms__codec {
    const ms__libzstd *zstd;
    void *compressor;
    void *decompressor;
    unsigned char planes[BLOCK_BYTES];
    unsigned char sample[SAMPLE_BYTES];
    unsigned char scrap[2 * SAMPLE_BYTES]; /* the compressed sample */
};

int ms__codec_open(ms__codec **codec, ms_error *err)
{
    const ms__libzstd *zstd = NULL;
    int rc = ms__libzstd_get(&zstd, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__codec *made = ms_malloc(sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for a codec");
    }
    bool is_refused = ms__fault(MS_FAULT_ALLOC, NULL); /* the library has its own allocator */
    made->zstd = zstd;
    made->compressor = is_refused ? NULL : zstd->compressor_create();
    made->decompressor = is_refused ? NULL : zstd->decompressor_create();
    if (made->compressor == NULL || made->decompressor == NULL) {
        ms__codec_close(made);
        return ms_fail(err, MS_ENOMEM, "no memory for a codec of zstd");
    }
    (void)zstd->set_parameter(made->compressor, MS__ZSTD_COMPRESSION_LEVEL, LEVEL);
    (void)zstd->set_parameter(made->compressor, MS__ZSTD_LITERAL_COMPRESSION, 1);
    *codec = made;
    return MS_OK;
}

void ms__codec_close(ms__codec *codec)
{
    if (codec == NULL) {
        return;
    }
    (void)codec->zstd->compressor_free(codec->compressor);
    (void)codec->zstd->decompressor_free(codec->decompressor);
    ms_free(codec);
}

/* ---- planes -------------------------------------------------------------------- */

/* One number at a time, its bytes by shifts: loops that compilers vectorise. Splitting and joining
 * agree on the plane of each byte, whatever the byte order. */
#define DEFINE_SHUFFLE(W, TYPE) \
    static void split_##W(const unsigned char *restrict data, uint64_t count, unsigned char *const planes[]) \
    { \
        for (uint32_t p = 0; p < (W); p++) { \
            unsigned char *restrict plane = planes[p]; \
            for (uint64_t i = 0; i < count; i++) { \
                TYPE number; \
                memcpy(&number, data + i * (W), (W)); \
                plane[i] = (unsigned char)(number >> 8 * p); \
            } \
        } \
    }
DEFINE_SHUFFLE(2, uint16_t)
DEFINE_SHUFFLE(4, uint32_t)
DEFINE_SHUFFLE(8, uint64_t)

static void join_2(const unsigned char *const planes[], uint64_t count, unsigned char *restrict data)
{
    const unsigned char *restrict a = planes[0], *restrict b = planes[1];
    for (uint64_t i = 0; i < count; i++) {
        uint16_t number = (uint16_t)(a[i] | b[i] << 8);
        memcpy(data + i * 2, &number, 2);
    }
}

static void join_4(const unsigned char *const planes[], uint64_t count, unsigned char *restrict data)
{
    const unsigned char *restrict a = planes[0], *restrict b = planes[1];
    const unsigned char *restrict c = planes[2], *restrict d = planes[3];
    for (uint64_t i = 0; i < count; i++) {
        uint32_t number = (uint32_t)a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
        memcpy(data + i * 4, &number, 4);
    }
}

static void join_8(const unsigned char *const planes[], uint64_t count, unsigned char *restrict data)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t number = 0;
        for (uint32_t p = 0; p < 8; p++) {
            number |= (uint64_t)planes[p][i] << 8 * p;
        }
        memcpy(data + i * 8, &number, 8);
    }
}

static void planes_split(const unsigned char *data, uint64_t count, uint32_t width, unsigned char *const planes[])
{
    switch (width) {
    case 8:
        split_8(data, count, planes);
        break;
    case 4:
        split_4(data, count, planes);
        break;
    case 2:
        split_2(data, count, planes);
        break;
    default:
        memcpy(planes[0], data, count);
        break;
    }
}

static void planes_join(const unsigned char *const planes[], uint64_t count, uint32_t width, unsigned char *data)
{
    switch (width) {
    case 8:
        join_8(planes, count, data);
        break;
    case 4:
        join_4(planes, count, data);
        break;
    case 2:
        join_2(planes, count, data);
        break;
    default:
        memcpy(data, planes[0], count);
        break;
    }
}

static bool is_compressed(uint32_t mask, uint32_t plane)
{
    return mask >> plane & 1;
}

/* ---- sampling ------------------------------------------------------------------ */

static uint64_t take_sample(ms__codec *codec, const unsigned char *data, uint64_t bytes)
{
    if (bytes <= SAMPLE_BYTES) {
        memcpy(codec->sample, data, bytes);
        return bytes;
    }
    for (uint64_t i = 0; i < STRETCHES; i++) {
        uint64_t at = ms__align_down((bytes - STRETCH_BYTES) / (STRETCHES - 1) * i, WIDTH_MAX);
        memcpy(codec->sample + i * STRETCH_BYTES, data + at, STRETCH_BYTES);
    }
    return SAMPLE_BYTES;
}

/* The sample's compressed bytes with numbers of this width. */
static uint64_t judge_width(ms__codec *codec, uint64_t sample_bytes, uint32_t width, uint32_t *mask)
{
    unsigned char *planes[WIDTH_MAX];
    uint64_t count = sample_bytes / width, sum = sample_bytes % width;
    for (uint32_t p = 0; p < width; p++) {
        planes[p] = codec->planes + p * count;
    }
    planes_split(codec->sample, count, width, planes);
    *mask = 0;
    for (uint32_t p = 0; p < width; p++) {
        size_t compressed =
            codec->zstd->compress(codec->compressor, codec->scrap, sizeof codec->scrap, planes[p], count);
        bool gains = !codec->zstd->is_error(compressed) && compressed <= count - count / PLANE_GAIN;
        *mask |= (uint32_t)gains << p;
        sum += gains ? compressed : count;
    }
    return sum;
}

void ms__codec_look(ms__codec *codec, const void *data, uint64_t bytes, ms__codec_view *view)
{
    uint64_t sample_bytes = take_sample(codec, data, bytes), least = sample_bytes;
    *view = (ms__codec_view){.expected_bytes = bytes};
    for (int i = 0; i < WIDTHS; i++) {
        uint32_t mask = 0;
        uint64_t sum = judge_width(codec, sample_bytes, widths[i], &mask);
        if (mask != 0 && sum < least) {
            least = sum;
            view->width = widths[i];
            view->mask = mask;
        }
    }
    if (view->mask != 0) {
        view->expected_bytes = ms__mul_div_up(bytes, least, sample_bytes);
    }
}

/* ---- compression ------------------------------------------------------------------- */

/* Appends one block; returns the bytes written, or 0 if `room` is too small. */
static uint64_t compress_block(ms__codec *codec, const ms__codec_view *view, const unsigned char *data, uint64_t count,
                               unsigned char *compressed, uint64_t room)
{
    unsigned char *planes[WIDTH_MAX];
    uint64_t copied_bytes = 0;
    for (uint32_t p = 0; p < view->width; p++) {
        bool is_copied = !is_compressed(view->mask, p);
        planes[p] = is_copied ? compressed + copied_bytes : codec->planes + p * count;
        copied_bytes += is_copied ? count : 0;
    }
    if (copied_bytes > room) {
        return 0;
    }
    planes_split(data, count, view->width, planes);
    uint64_t at = copied_bytes;
    for (uint32_t p = 0; p < view->width; p++) {
        if (!is_compressed(view->mask, p)) {
            continue;
        }
        if (room - at < SIZE_BYTES) {
            return 0;
        }
        size_t size = codec->zstd->compress(codec->compressor, compressed + at + SIZE_BYTES, room - at - SIZE_BYTES,
                                            planes[p], count);
        if (codec->zstd->is_error(size)) {
            return 0;
        }
        memcpy(compressed + at, &(uint32_t){(uint32_t)size}, SIZE_BYTES);
        at += SIZE_BYTES + size;
    }
    return at;
}

uint64_t ms__codec_compress(ms__codec *codec, const ms__codec_view *view, const void *data, uint64_t bytes,
                            void *compressed, uint64_t room)
{
    const unsigned char *from = data;
    unsigned char *to = compressed;
    uint64_t at = HEADER_BYTES;
    if (view->mask == 0 || room < HEADER_BYTES) {
        return 0;
    }
    to[0] = (unsigned char)view->width;
    to[1] = (unsigned char)view->mask;
    while (bytes >= view->width) {
        uint64_t count = ms__min_u64(bytes, BLOCK_BYTES) / view->width;
        uint64_t size = compress_block(codec, view, from, count, to + at, room - at);
        if (size == 0) {
            return 0;
        }
        at += size;
        from += count * view->width;
        bytes -= count * view->width;
    }
    if (room - at < bytes) {
        return 0;
    }
    memcpy(to + at, from, bytes);
    return at + bytes;
}

/* ---- decompressing ----------------------------------------------------------------- */

/* Reads one block; returns the bytes read, or 0 if they are not a block. */
static uint64_t decompress_block(ms__codec *codec, const ms__codec_view *view, const unsigned char *compressed,
                                 uint64_t left, unsigned char *data, uint64_t count)
{
    const unsigned char *planes[WIDTH_MAX];
    uint64_t at = 0;
    for (uint32_t p = 0; p < view->width; p++) {
        if (!is_compressed(view->mask, p)) {
            if (left - at < count) {
                return 0;
            }
            planes[p] = compressed + at;
            at += count;
        }
    }
    for (uint32_t p = 0; p < view->width; p++) {
        uint32_t size;
        if (!is_compressed(view->mask, p)) {
            continue;
        }
        if (left - at < SIZE_BYTES) {
            return 0;
        }
        memcpy(&size, compressed + at, SIZE_BYTES);
        at += SIZE_BYTES;
        if (left - at < size || codec->zstd->decompress(codec->decompressor, codec->planes + p * count, count,
                                                        compressed + at, size) != count) {
            return 0;
        }
        planes[p] = codec->planes + p * count;
        at += size;
    }
    planes_join(planes, count, view->width, data);
    return at;
}

static bool is_width(uint32_t width)
{
    return width == 1 || width == 2 || width == 4 || width == 8;
}

bool ms__codec_decompress(ms__codec *codec, const void *compressed, uint64_t compressed_bytes, void *data,
                          uint64_t bytes)
{
    const unsigned char *from = compressed;
    unsigned char *to = data;
    if (compressed_bytes < HEADER_BYTES || !is_width(from[0]) || from[1] == 0) {
        return false;
    }
    const ms__codec_view view = {.width = from[0], .mask = from[1]};
    from += HEADER_BYTES;
    compressed_bytes -= HEADER_BYTES;
    while (bytes >= view.width) {
        uint64_t count = ms__min_u64(bytes, BLOCK_BYTES) / view.width;
        uint64_t size = decompress_block(codec, &view, from, compressed_bytes, to, count);
        if (size == 0) {
            return false;
        }
        from += size;
        compressed_bytes -= size;
        to += count * view.width;
        bytes -= count * view.width;
    }
    if (compressed_bytes != bytes) {
        return false;
    }
    memcpy(to, from, bytes);
    return true;
}
