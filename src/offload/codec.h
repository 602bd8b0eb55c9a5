/*
 * codec.h - lossless compression of numbers on their way to a slow tier: bytes of the same
 * significance are laid side by side, and those that give something (exponents, zeros)
 * go through zstd; the others are copied. What compression brings is found by looking at a
 * sample. Used by the engine's threads, one codec each; takes no lock, decides nothing.
 */
#ifndef MS_OFFLOAD_CODEC_H
#define MS_OFFLOAD_CODEC_H

#include "memscale/base.h"

typedef struct ms__codec ms__codec;

/* MS_ENOTSUP where this machine has no zstd. */
int ms__codec_open(ms__codec **codec, ms_error *err);
void ms__codec_close(ms__codec *codec);

/* How some data would be compressed. */
typedef struct ms__codec_view {
    uint64_t expected_bytes; /* judged by a sample; `bytes` where compression brings nothing */
    uint32_t width;          /* bytes of a number */
    uint32_t mask;           /* bit p: the numbers' p-th bytes are compressed */
} ms__codec_view;

void ms__codec_look(ms__codec *codec, const void *data, uint64_t bytes, ms__codec_view *view);

/* Compresses as the view says. The compressed bytes, or 0 where they would not fit `room`. */
uint64_t ms__codec_compress(ms__codec *codec, const ms__codec_view *view, const void *data, uint64_t bytes,
                            void *compressed, uint64_t room);

/* Writes exactly `bytes` to `data`; false where `compressed` is not what ms__codec_compress() made
 * of so many. Safe whatever `compressed` holds. */
bool ms__codec_decompress(ms__codec *codec, const void *compressed, uint64_t compressed_bytes, void *data,
                          uint64_t bytes);

#endif
