/*
 * base.h - the foundation of every room: errors, counted memory, fault points, logging, counters, the clock.
 *
 * Every header of this library keeps the same conventions:
 *
 *   - A function that can fail returns an int: 0 (MS_OK) or one of the negative
 *     MS_E... codes below. It takes a `ms_error *err` as its last parameter,
 *     which may be NULL; on failure the error holds the code and one line of
 *     text: the operation, its object and the cause.
 *   - Out-parameters are written only on success.
 *   - The caller frees a returned `char *` with ms_free(). A returned `const char *`
 *     belongs to the library and lives as long as its object; texts of codes and
 *     names of enumerators live for ever.
 *   - Objects come in pairs: X_new/X_free for plain memory, X_open/X_close for objects that hold threads, files or
 *     maps. Free and close accept NULL.
 *   - Sizes are bytes and times are nanoseconds unless the name says otherwise.
 *   - One thread at a time may use an object, unless its declaration says otherwise. Any thread may call a function
 *     that takes no object.
 *   - Nothing here aborts, prints, or installs a signal handler.
 *
 * Tests: tests/c/base/.
 */
#ifndef MEMSCALE_BASE_H
#define MEMSCALE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
/* MS_API exports a symbol, MS_PRINTF checks arguments like printf's, MS_NODISCARD warns about an unused result. */
#define MS_API __attribute__((visibility("default")))
#define MS_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MS_NODISCARD __attribute__((warn_unused_result))
#else
#define MS_API
#define MS_PRINTF(fmt, args)
#define MS_NODISCARD
#endif

/* ---- version ------------------------------------------------------------ */

/* The library's version as "major.minor.patch". */
MS_API const char *ms_version(void);

/* ---- errors ------------------------------------------------------------- */

/*
 * The one table of error codes: name, value, the Python exception class that
 * the extension raises for it, and its text.
 */
#define MS_ERROR_TABLE(X) \
    X(MS_ENOMEM, -1, "MemScaleError", "out of memory") \
    X(MS_EINVAL, -2, "MemScaleError", "invalid argument") \
    X(MS_ESTATE, -3, "MemScaleError", "the call is not allowed in this state") \
    X(MS_EOVERFLOW, -4, "MemScaleError", "a size does not fit its type") \
    X(MS_ECONFIG, -5, "ConfigError", "a configuration value is not allowed") \
    X(MS_EFORMAT, -6, "MemScaleError", "a document is malformed") \
    X(MS_EVERSION, -7, "MemScaleError", "a document has an unknown version") \
    X(MS_EPROFILE, -8, "ProfileError", "the training step could not be profiled") \
    X(MS_EINFEASIBLE, -9, "BudgetInfeasibleError", "no plan fits the budget") \
    X(MS_EIO, -10, "OffloadError", "a transfer to or from a tier failed") \
    X(MS_ENOSPC, -11, "OffloadError", "a tier is full") \
    X(MS_ECHECKSUM, -12, "OffloadError", "an extent read back differs from the written one") \
    X(MS_ETIMEDOUT, -13, "OffloadError", "a transfer did not finish in time") \
    X(MS_ECANCELED, -14, "OffloadError", "the operation was cancelled") \
    X(MS_ENOTSUP, -15, "MemScaleError", "this machine or build does not support it") \
    X(MS_EREPLAY, -16, "IntegrationError", "a recomputed layer differs from its first forward") \
    X(MS_EINTEGRATION, -17, "IntegrationError", "another user of the same mechanism is active") \
    X(MS_ESYSTEM, -18, "MemScaleError", "a system call failed") \
    X(MS_EFALLBACK, -19, "PolicyFallbackNeeded", "the trained policy is not available")

enum {
    MS_OK = 0,
#define MS_ERROR_ENUM(name, value, exception, text) name = value,
    MS_ERROR_TABLE(MS_ERROR_ENUM)
#undef MS_ERROR_ENUM
};

enum { MS_ERROR_TEXT_MAX = 512 };

/* A failure, filled by the callee. `system_errno` is 0 if no system call was involved. `hint_bytes` is 0, except
 * with MS_EINFEASIBLE: then it is the smallest budget that fits. */
typedef struct ms_error {
    int code;
    int system_errno;
    uint64_t hint_bytes;
    char text[MS_ERROR_TEXT_MAX];
} ms_error;

/* Name ("MS_EIO"), general text and Python exception class of a code; "MS_OK",
 * "no error" and "" for 0, and a fixed "unknown" answer for any other number. */
MS_API const char *ms_error_name(int code);
MS_API const char *ms_error_text(int code);
MS_API const char *ms_error_exception(int code);

/* Fills `err` (may be NULL) and returns `code`, so that a failing function can
 * `return ms_fail(err, MS_EINVAL, "layer %u: ...", i)`. ms_fail_errno() adds
 * ": strerror (errno N)" and keeps the number; whatever `code` is, it returns
 * MS_ENOSPC for ENOSPC, EFBIG and EDQUOT, and MS_ENOMEM for ENOMEM. */
MS_API int ms_fail(ms_error *err, int code, const char *fmt, ...) MS_PRINTF(3, 4);
MS_API int ms_fail_errno(ms_error *err, int code, int system_errno, const char *fmt, ...) MS_PRINTF(4, 5);

/* ---- counted memory ----------------------------------------------------- */

/* The library's malloc, calloc, realloc, strdup and free. They count bytes and blocks; allocations pass a fault
 * point. ms_calloc() and ms_realloc_array() check the multiplication. NULL when out of memory. Thread-safe. */
MS_API void *ms_malloc(size_t size_bytes);
MS_API void *ms_calloc(size_t count, size_t size_bytes);
MS_API void *ms_realloc_array(void *block, size_t count, size_t size_bytes);
MS_API char *ms_strdup(const char *text);
MS_API void ms_free(void *block);

/* Bytes and blocks that the functions above allocated and that are not yet freed. */
MS_API uint64_t ms_memory_live_bytes(void);
MS_API uint64_t ms_memory_live_blocks(void);

/* ---- fault points (for tests) ------------------------------------------- */

/*
 * Every allocation, system call, driver call and thread start of the library
 * passes a fault point of one of these kinds. A test arms a kind: the Nth call
 * from now on (1 = the next) fails once with `system_errno`, or, for
 * MS_FAULT_SHORT and MS_FAULT_FLIP, misbehaves as described below. Arming with
 * nth = 0 disarms. Unarmed, a point costs one relaxed load.
 */
typedef enum ms_fault {
    MS_FAULT_ALLOC,  /* ms_malloc and its kin */
    MS_FAULT_MAP,    /* mmap, mprotect, mremap, madvise, mincore */
    MS_FAULT_OPEN,   /* open, ftruncate, fallocate, stat */
    MS_FAULT_WRITE,  /* pwrite */
    MS_FAULT_READ,   /* pread */
    MS_FAULT_SHORT,  /* the read or write moves only part of its bytes */
    MS_FAULT_FLIP,   /* one bit of the bytes read is flipped */
    MS_FAULT_THREAD, /* pthread_create */
    MS_FAULT_DRIVER, /* a call into libcuda or a system library opened by name */
    MS_FAULT_SYSTEM, /* any other system call: unlink, rename, fcntl, statx, getrlimit, getcpu,
                      * pthread_atfork, atexit. Calls that release (close, munmap, pthread_join) and
                      * calls that can't fail have no fault point. */
    MS_FAULT_COUNT
} ms_fault;

/* ms_fault_arm() arms one kind; ms_fault_disarm_all() disarms all kinds. */
MS_API void ms_fault_arm(ms_fault kind, uint64_t nth, int system_errno);
MS_API void ms_fault_disarm_all(void);
/* Calls that have passed a point of this kind since it was last armed. A test raises `nth` until the count stays
 * below `nth`. */
MS_API uint64_t ms_fault_passed(ms_fault kind);

/* ---- log ---------------------------------------------------------------- */

/* The severity of a line. */
typedef enum ms_log_level { MS_LOG_DEBUG, MS_LOG_INFO, MS_LOG_WARNING, MS_LOG_ERROR } ms_log_level;

/* Receives one line without a newline, from any thread; must not call back
 * into the library. */
typedef void (*ms_log_sink)(void *context, ms_log_level level, const char *line);

/* Sets the process's only sink. NULL, the initial value, drops every line. The previous sink is not called after
 * this returns. */
MS_API void ms_log_set_sink(ms_log_sink sink, void *context);
/* Formats one line and passes it to the sink. Thread-safe. */
MS_API void ms_log(ms_log_level level, const char *fmt, ...) MS_PRINTF(2, 3);

/* ---- counters ----------------------------------------------------------- */

/*
 * The counters: every room adds to them, observability exports them. They are cumulative, start at 0 and never fall.
 * A set belongs to one executor; adding is atomic and safe from any thread.
 */
#define MS_COUNTER_TABLE(X) \
    X(STEPS, "steps", "training steps finished") \
    X(RECOMPUTED_LAYERS, "recomputed_layers", "layer forwards replayed in backward") \
    X(REMADE_TENSORS, "remade_tensors", "saved tensors recomputed by single operators") \
    X(OFFLOADED_BYTES, "offloaded_bytes", "bytes of saved tensors sent to a lower tier") \
    X(FETCHED_BYTES, "fetched_bytes", "bytes of saved tensors brought back") \
    X(DISK_BYTES, "disk_bytes", "bytes written to the disk tier") \
    X(PACKED_BYTES, "packed_bytes", "bytes of saved tensors of two values that were kept as bits") \
    X(PACKED_INTO_BYTES, "packed_into_bytes", "bytes that those bits took") \
    X(KEPT_TENSORS, "kept_tensors", "saved tensors left in place") \
    X(OFFLOADED_STORAGES, "offloaded_storages", "storages sent to a lower tier") \
    X(FORWARD_STALL_NS, "forward_stall_ns", "time that forward waited for writes") \
    X(BACKWARD_STALL_NS, "backward_stall_ns", "time that backward waited for reads") \
    X(TIER_FALLBACKS, "tier_fallbacks", "tensors kept because a tier failed") \
    X(REPLANS, "replans", "plans made after the first")

typedef enum ms_counter {
#define MS_COUNTER_ENUM(id, name, text) MS_COUNTER_##id,
    MS_COUNTER_TABLE(MS_COUNTER_ENUM)
#undef MS_COUNTER_ENUM
        MS_COUNTER_COUNT
} ms_counter;

/* One set of counters. */
typedef struct ms_counters {
    uint64_t value[MS_COUNTER_COUNT]; /* use only ms_counter_add() and ms_counter_get() */
} ms_counters;

/* Name and text of a row of the table. */
MS_API const char *ms_counter_name(ms_counter id);
MS_API const char *ms_counter_text(ms_counter id);
/* Adds to a counter, or reads it. */
MS_API void ms_counter_add(ms_counters *set, ms_counter id, uint64_t amount);
MS_API uint64_t ms_counter_get(const ms_counters *set, ms_counter id);

/* ---- time --------------------------------------------------------------- */

/* Nanoseconds of a monotonic clock. */
MS_API uint64_t ms_now_ns(void);

/* ---- threads ------------------------------------------------------------ */

/* The number of threads that OpenMP would use if the calling thread opened a parallel region now; 0 if the process
 * has no OpenMP. The number may differ from torch.get_num_threads(): torch applies set_num_threads() to a thread
 * only when that thread first asks torch, and this function does not ask torch. */
MS_API uint32_t ms_team_threads(void);

#ifdef __cplusplus
}
#endif

#endif
