/*
 * library.h - the functions of a shared library, found at run time: neither building nor running requires it. Used by
 * device/libcuda.c, device/libhip.c and libzstd.c.
 * Tests: tests/c/device/test_libcuda.c, test_libhip.c.
 */
#ifndef MS_BASE_LIBRARY_H
#define MS_BASE_LIBRARY_H

#include "base/thread.h"

typedef struct ms__library_function {
    const char *symbol;
    size_t offset; /* of the pointer in the table */
} ms__library_function;

/* One static object per library; `lock` starts as MS__MUTEX_INIT, `is_loaded` as false. */
typedef struct ms__library {
    const char *what; /* "CUDA driver", for errors */
    const ms__library_function *functions;
    size_t count;
    void *table; /* of function pointers; valid once loaded */
    ms__mutex lock;
    bool is_loaded;
} ms__library;

/* Fills the table from the library at `path`. The library is loaded once and never unloaded; after a failure the
 * next call tries again. MS_ENOTSUP if the library or a function is missing. Thread-safe. */
MS_NODISCARD int ms__library_load(ms__library *library, const char *path, ms_error *err);

/* Whether the process has loaded a library whose file name begins with `begin`; its path in `path`, cut to `size`. */
bool ms__library_is_in_process(const char *begin, char *path, size_t size);

#endif
