/*
 * library.h - a shared library's functions, found at run time: nothing has to be there to
 * build, and a machine without it does without what it is for. Used by device/libcuda.c and libzstd.c.
 */
#ifndef MS_BASE_LIBRARY_H
#define MS_BASE_LIBRARY_H

#include "base/thread.h"

typedef struct ms__library_function {
    const char *symbol;
    size_t offset; /* of the pointer in the table */
} ms__library_function;

/* A static object each; `lock` is MS__MUTEX_INIT, `is_loaded` false. */
typedef struct ms__library {
    const char *what; /* "CUDA driver", for errors */
    const ms__library_function *functions;
    size_t count;
    void *table; /* of function pointers; to be read once loaded */
    ms__mutex lock;
    bool is_loaded;
} ms__library;

/* Fills the table from the library at `path`. Loaded at most once and never unloaded; a failed
 * try is repeated by the next call. MS_ENOTSUP where the library or a function is missing.
 * Thread-safe. */
MS_NODISCARD int ms__library_load(ms__library *library, const char *path, ms_error *err);

#endif
