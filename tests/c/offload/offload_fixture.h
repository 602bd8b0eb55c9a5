/*
 * Shared by the tests of the offload room: engines of every backend, memory with
 * known contents, and a main() that runs a list of tests on each backend.
 */
#ifndef MS_TEST_OFFLOAD_FIXTURE_H
#define MS_TEST_OFFLOAD_FIXTURE_H

#include "test_common.h"

#include "cuda_double.h"
#include "memscale/offload.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

typedef struct backend_case {
    const char *name;
    ms_tier tier;
    bool no_direct_io;
    bool from_device; /* pages are the double's device memory */
    bool no_pinning;  /* its driver refuses to register any */
    bool compresses;  /* every piece that gets smaller, as pattern()'s bytes do */
} backend_case;

/* The backend that the tests run on now. */
extern const backend_case *tested;

/* A GPU's bytes in host memory are not hashed. */
static inline bool is_hashed(void)
{
    return !tested->from_device || tested->tier == MS_TIER_DISK;
}

/* A fresh directory on disk for all files of the tests. */
extern char spill_dir[4096];

/* The backend's number and a directory, for a child process of a test. */
size_t backend_number(void);
void choose_backend(size_t number, const char *dir);

/* The number of the threads' private slots on the current backend. */
uint64_t tested_private_slots(uint32_t pieces);
/* Skips the test if pages are device memory. */
#define HOST_MEMORY_ONLY() \
    do { \
        if (tested->from_device) { \
            skip(); \
        } \
    } while (0)

/* Options of the current backend: no cap, 8 slots of 64 KiB, two pieces at a time. */
ms_offload_options small_options(void);

/* Makes the next engine open as on a file system without O_TMPFILE. */
void refuse_unnamed_files(void);
ms_offload *open_engine(const ms_offload_options *options);

/* Page-aligned memory of whole pages; device memory if the backend is a GPU's, so only these functions
 * may touch it. pattern() fills it from `seed`, fill() with one byte. */
unsigned char *pages_new(uint64_t bytes);
void pages_free(unsigned char *pages, uint64_t bytes);
void fill(unsigned char *memory, int value, uint64_t bytes);
bool is_filled(const unsigned char *memory, int value, uint64_t bytes);
void pattern(unsigned char *memory, uint64_t bytes, uint64_t seed);
bool has_pattern(const unsigned char *memory, uint64_t bytes, uint64_t seed);

/* Stores, checks and drops something, so that a test can show that an engine still works after a
 * failure. */
void assert_engine_works(ms_offload *engine);

/* Entries of a directory, without "." and "..". */
size_t count_entries(const char *dir);
/* Entries of /proc/self/fd. */
size_t count_fds(void);
/* Entries of /proc/self/task, without the kernel's threads and ended ones: an entry disappears a
 * little after its thread was joined. count_threads() waits, with a limit, until there are `expected`. */
size_t count_threads_now(void);
size_t count_threads(size_t expected);

/* The double: control and entry points, of the library in MEMSCALE_TEST_LIBCUDA. */
typedef struct double_api {
    void (*reset)(void);
    void (*schedule)(uint64_t seed, uint64_t most_ns);
    void (*break_call)(const char *function, uint64_t nth, int result);
    void (*hang)(int hangs);
    void (*limit_registered)(size_t bytes);
    void (*copy_engines)(int count);
    uint64_t (*violations)(char *text, size_t size);
    void (*count)(cuda_double_counts *counts);
    int (*launch)(void *stream, unsigned long long pointer, size_t bytes, int writes, cuda_double_kernel *kernel,
                  void *argument);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*alloc)(unsigned long long *pointer, size_t bytes);
    int (*free)(unsigned long long pointer);
    int (*to_device)(unsigned long long to, const void *from, size_t bytes);
    int (*to_host)(void *to, unsigned long long from, size_t bytes);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
} double_api;
const double_api *the_double(void);
/* Make device 0's context current for the calls between them. */
void enter_device(void);
void leave_device(void);

/* Runs the tests once per backend that this machine allows; returns the number of failures. Every
 * test starts and must end with no fault armed and no memory of the library in use. */
int run_on_every_backend(const char *topic, const struct CMUnitTest *tests, size_t count);
/* Runs the tests on the backend of this name only. */
int run_on_backend(const char *name, const char *topic, const struct CMUnitTest *tests, size_t count);

/* cmocka's setup and teardown of each test: see run_on_every_backend(). */
int fixture_setup(void **state);
int fixture_teardown(void **state);
#define OFFLOAD_TEST(body) cmocka_unit_test_setup_teardown(body, fixture_setup, fixture_teardown)

#endif
