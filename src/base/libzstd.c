/*
 * The loader of libzstd.h: dlopen and one row per function.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "base/fault.h"
#include "base/libzstd.h"
#include "base/thread.h"

#define LIBRARY "libzstd.so.1"

typedef struct function_row {
    const char *symbol;
    size_t offset; /* of the pointer in ms__libzstd */
} function_row;

static const function_row function_rows[] = {
    {"ZSTD_createCCtx", offsetof(ms__libzstd, compressor_create)},
    {"ZSTD_freeCCtx", offsetof(ms__libzstd, compressor_free)},
    {"ZSTD_CCtx_setParameter", offsetof(ms__libzstd, set_parameter)},
    {"ZSTD_compress2", offsetof(ms__libzstd, compress)},
    {"ZSTD_createDCtx", offsetof(ms__libzstd, decompressor_create)},
    {"ZSTD_freeDCtx", offsetof(ms__libzstd, decompressor_free)},
    {"ZSTD_decompressDCtx", offsetof(ms__libzstd, decompress)},
    {"ZSTD_isError", offsetof(ms__libzstd, is_error)},
};

static ms__mutex load_lock = MS__MUTEX_INIT;
static ms__libzstd functions;
static bool is_loaded;

static int resolve_all(void *library, ms_error *err)
{
    ms__libzstd found;
    for (size_t i = 0; i < sizeof function_rows / sizeof function_rows[0]; i++) {
        void *address = dlsym(library, function_rows[i].symbol);
        if (address == NULL) {
            return ms_fail(err, MS_ENOTSUP, "%s has no %s", LIBRARY, function_rows[i].symbol);
        }
        memcpy((char *)&found + function_rows[i].offset, &address, sizeof address);
    }
    functions = found;
    return MS_OK;
}

static int load(ms_error *err)
{
    if (ms__fault(MS_FAULT_DRIVER, NULL)) {
        return ms_fail(err, MS_ENOTSUP, "loading %s failed as a test asked", LIBRARY);
    }
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        return ms_fail(err, MS_ENOTSUP, "no zstd: %s", dlerror());
    }
    int rc = resolve_all(library, err);
    if (rc == MS_OK) {
        is_loaded = true;
    } else {
        dlclose(library);
    }
    return rc;
}

int ms__libzstd_get(const ms__libzstd **out, ms_error *err)
{
    ms__mutex_lock(&load_lock);
    int rc = is_loaded ? MS_OK : load(err);
    ms__mutex_unlock(&load_lock);
    if (rc == MS_OK) {
        *out = &functions;
    }
    return rc;
}
