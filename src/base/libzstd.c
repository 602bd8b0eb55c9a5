/*
 * The table of the zstd library's functions; library.c loads them.
 */
#include "base/libzstd.h"

#include <stddef.h>

#include "base/library.h"

static const ms__library_function function_rows[] = {
    {"ZSTD_createCCtx", offsetof(ms__libzstd, compressor_create)},
    {"ZSTD_freeCCtx", offsetof(ms__libzstd, compressor_free)},
    {"ZSTD_CCtx_setParameter", offsetof(ms__libzstd, set_parameter)},
    {"ZSTD_compress2", offsetof(ms__libzstd, compress)},
    {"ZSTD_createDCtx", offsetof(ms__libzstd, decompressor_create)},
    {"ZSTD_freeDCtx", offsetof(ms__libzstd, decompressor_free)},
    {"ZSTD_decompressDCtx", offsetof(ms__libzstd, decompress)},
    {"ZSTD_isError", offsetof(ms__libzstd, is_error)},
};

static ms__libzstd functions;

static ms__library library = {
    .what = "zstd",
    .functions = function_rows,
    .count = sizeof function_rows / sizeof function_rows[0],
    .table = &functions,
    .lock = MS__MUTEX_INIT,
};

int ms__libzstd_get(const ms__libzstd **out, ms_error *err)
{
    int rc = ms__library_load(&library, "libzstd.so.1", err);
    if (rc == MS_OK) {
        *out = &functions;
    }
    return rc;
}
