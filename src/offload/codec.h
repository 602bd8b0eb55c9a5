/*
 * codec.h - lossless compression of numbers on their way to a slow tier. Bytes of the same
 * significance form a plane. zstd compresses the planes that gain (exponents, zeros); the
 * others are copied. A sample predicts the gain. Each of the engine's threads has its own
 * codec; it takes no lock and decides nothing.
 *
 * Tests: tests/c/offload/test_codec.c.
 */
#ifndef MS_OFFLOAD_CODEC_H
#define MS_OFFLOAD_CODEC_H

#include "memscale/base.h"

typedef struct ms__codec ms__codec;

/* MS_ENOTSUP if this machine has no zstd. */
int ms__codec_open(ms__codec **codec, ms_error *err);
void ms__codec_close(ms__codec *codec);

/* The prediction for some data. */
typedef struct ms__codec_view {
    uint64_t expected_bytes; /* predicted from a sample; `bytes` if compression gains nothing */
    uint32_t width;          /* bytes of a number */
    uint32_t mask;           /* bit p: the numbers' p-th bytes are compressed */
} ms__codec_view;

void ms__codec_look(ms__codec *codec, const void *data, uint64_t bytes, ms__codec_view *view);

/* Compresses as in `view`. Returns the number of compressed bytes, or 0 if it exceeds `room`. */
uint64_t ms__codec_compress(ms__codec *codec, const ms__codec_view *view, const void *data, uint64_t bytes,
                            void *compressed, uint64_t room);

/* Writes exactly `bytes` to `data`; false if `compressed` is not a result of ms__codec_compress() for
 * `bytes`. Safe for any contents of `compressed`. */
bool ms__codec_decompress(ms__codec *codec, const void *compressed, uint64_t compressed_bytes, void *data,
                          uint64_t bytes);

#endif
