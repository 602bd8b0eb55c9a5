/*
 * cuda_double.h - controls of the double of the CUDA driver library, for tests: set its schedule, make
 * calls fail, count violations. Loaded through MEMSCALE_LIBCUDA, or linked to a test.
 *
 * The double is stricter than the driver. Only copies and kernels can reach device memory. Every
 * access of a stream must come after earlier conflicting accesses: by the stream's order, by events, or
 * because the host has waited. Vector clocks check this when work is queued, so every schedule shows a
 * missing wait. When a copy is queued, the host memory that it will overwrite is filled with a pattern;
 * memory that it will read must not change until the copy is done. So the double also finds a host that
 * reads or writes too early, in the schedules in which that changes a value.
 */
#ifndef MS_CUDA_DOUBLE_H
#define MS_CUDA_DOUBLE_H

#include <stddef.h>
#include <stdint.h>

/* Forgets failures and violations. From now on work takes no time. */
void cuda_double_reset(void);

/* Each piece of work is done after a random time of at most `most_ns`. */
void cuda_double_schedule(uint64_t seed, uint64_t most_ns);

/* The nth call (1 = the next; 0: each one until the next reset) of a function of the driver fails with
 * `result`. The name "work" means queued work: the nth piece is not done, and every later call fails
 * with `result` until the next reset, as after a device fault. */
void cuda_double_fail(const char *function, uint64_t nth, int result);

/* Pauses streams before their next piece of work, or resumes them. */
void cuda_double_hang(int hangs);

/* A launch waits while its stream holds `pieces` pieces of unfinished work, as in a driver whose queue is
 * full. Initially 0: no limit. */
void cuda_double_queue_limit(uint64_t pieces);

/* Pieces that are queued on a stream and not finished. */
uint64_t cuda_double_pending(void *stream);

/* Sets a device's memory, and the part of it that other processes hold, in bytes. Earlier
 * allocations stay. */
void cuda_double_memory(int device, size_t total, size_t taken);

/* The most bytes that may be registered at a time; initially SIZE_MAX. */
void cuda_double_limit_registered(size_t bytes);

/* The number of copy engines that devices report; initially 2. */
void cuda_double_copy_engines(int count);

/* The number of violations since the last reset; `text` (may be NULL) gets the first one. */
uint64_t cuda_double_violations(char *text, size_t size);

typedef struct cuda_double_counts {
    uint64_t streams, events, contexts, registered_ranges; /* in use now */
    uint64_t allocations;                                  /* of device memory */
    uint64_t pinned_copies, pageable_copies;               /* since the last reset */
    uint64_t cold_pages; /* pages that were not in memory when they were registered, since the last reset */
} cuda_double_counts;
void cuda_double_count(cuda_double_counts *counts);

/* A kernel: called in stream order; `memory` gives it the `bytes` bytes at the device's `pointer`. */
typedef void cuda_double_kernel(void *argument, unsigned char *memory, size_t bytes);
int cuda_double_launch(void *stream, unsigned long long pointer, size_t bytes, int writes, cuda_double_kernel *kernel,
                       void *argument);

/* A kernel that works on several ranges: called in stream order with one address per range. */
typedef struct cuda_double_range {
    unsigned long long pointer;
    size_t bytes;
    int writes;
} cuda_double_range;
typedef void cuda_double_program(void *argument, unsigned char *const *memories);
int cuda_double_launch_ranges(void *stream, const cuda_double_range *ranges, size_t count, cuda_double_program *program,
                              void *argument);

/* For tests that schedule threads themselves: how time passes, and which thread calls. Set both before
 * the first call of the driver. */
extern void (*cuda_double_pass_time)(uint64_t ns);
extern uintptr_t (*cuda_double_caller)(void);

#endif
