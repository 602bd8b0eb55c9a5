/*
 * The zstd library, found at run time: building does not need it, and without it nothing is compressed. Used by the
 * offload engine's codec.
 * Tests: tests/c/offload/test_codec.c.
 */
#ifndef MS_BASE_LIBZSTD_H
#define MS_BASE_LIBZSTD_H

#include "memscale/base.h"

/* Parameters of a compression context, as the library's ABI has them since 1.4. */
enum {
    MS__ZSTD_COMPRESSION_LEVEL = 100,
    MS__ZSTD_LITERAL_COMPRESSION = 1002, /* experimental: a refusal is ignored */
};

typedef struct ms__libzstd {
    void *(*compressor_create)(void);
    size_t (*compressor_free)(void *compressor);
    size_t (*set_parameter)(void *compressor, int parameter, int value);
    size_t (*compress)(void *compressor, void *to, size_t room, const void *from, size_t bytes);
    void *(*decompressor_create)(void);
    size_t (*decompressor_free)(void *decompressor);
    size_t (*decompress)(void *decompressor, void *to, size_t room, const void *from, size_t bytes);
    unsigned (*is_error)(size_t result);
} ms__libzstd;

/* The functions of libzstd.so.1. The library is loaded once and never unloaded; after a failure the next call
 * tries again. MS_ENOTSUP if the library or a function is missing. Thread-safe. */
MS_NODISCARD int ms__libzstd_get(const ms__libzstd **out, ms_error *err);

#endif
