/*
 * The fake allocator libraries of fake_c10.c, loaded and called, and queries of the process.
 */
#ifndef MS_TEST_HOSTMEM_FAKE_H
#define MS_TEST_HOSTMEM_FAKE_H

#include <dlfcn.h>

#include "memscale/hostmem.h"
#include "test_common.h"

#define MIB ((size_t)1 << 20)

/* Sanitizers replace the allocator's functions by their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_OWN_ALLOCATOR 1
#else
#define TEST_OWN_ALLOCATOR 0
#endif

/* A small seeded generator, so that a failure can be repeated. */
static inline uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

typedef struct fake {
    const char *path;
    int (*alloc_aligned)(void **out, size_t alignment, size_t bytes);
    void (*free)(void *block);
} fake;

/* The build that the environment variable names. */
static inline fake fake_load(const char *variable)
{
    fake library = {.path = getenv(variable)};
    if (library.path == NULL) {
        fail_msg("%s is not set: run through meson test", variable);
    }
    void *handle = dlopen(library.path, RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) {
        fail_msg("%s", dlerror());
    }
    *(void **)&library.alloc_aligned = dlsym(handle, "fake_alloc_aligned");
    *(void **)&library.free = dlsym(handle, "fake_free");
    assert_non_null(library.alloc_aligned);
    assert_non_null(library.free);
    return library;
}

static inline void *fake_alloc(const fake *library, size_t bytes)
{
    void *block = NULL;
    assert_int_equal(library->alloc_aligned(&block, 64, bytes), 0);
    assert_non_null(block);
    return block;
}

static inline ms_hostmem_stats stats_now(void)
{
    ms_hostmem_stats stats;
    ms_hostmem_get_stats(&stats);
    return stats;
}

static inline ms_hostmem_means install_into(const fake *library)
{
    ms_error err;
    ms_hostmem_means means = MS_HOSTMEM_NONE;
    assert_ms_ok(ms_hostmem_install(library->path, &means, &err), err);
    return means;
}

#endif
