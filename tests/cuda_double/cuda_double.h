/*
 * cuda_double.h - what tests can do with the double of the CUDA driver library besides
 * calling it: set its schedule, make calls fail, and ask what was wrong. Loaded through
 * MEMSCALE_LIBCUDA, or linked to a test.
 *
 * The double is strict where the driver is patient. Device memory is out of reach for
 * everything but copies and kernels. Every access of a stream has to be ordered after
 * the conflicting ones before it, by stream order, by events or because the host has
 * waited; this is checked with vector clocks when work is queued, so that a missing wait
 * shows in every schedule. What a copy will overwrite in host memory is filled with rubbish
 * when it is queued, and what it reads must not change until it is done, so that hosts
 * which look or write too early are found in the schedules where that matters.
 */
#ifndef MS_CUDA_DOUBLE_H
#define MS_CUDA_DOUBLE_H

#include <stddef.h>
#include <stdint.h>

/* Forgets failures and violations. Work takes no time from now on. */
void cuda_double_reset(void);

/* Each piece of work waits for a random time of at most `most_ns` before it is done. */
void cuda_double_schedule(uint64_t seed, uint64_t most_ns);

/* The nth call (1 = the next) of a function of the driver fails with `result`. The name
 * "work" stands for queued work: the nth piece is not done, and every call after it
 * fails with `result` until the next reset, as after a fault of the device. */
void cuda_double_fail(const char *function, uint64_t nth, int result);

/* Streams stop before their next piece of work, or go on. */
void cuda_double_hang(int hangs);

/* A launch waits while its stream holds `pieces` of unfinished work, as a driver's does whose
 * queue is full. 0 at first: no limit. */
void cuda_double_queue_limit(uint64_t pieces);

/* Pieces that are queued on a stream and not finished. */
uint64_t cuda_double_pending(void *stream);

/* What a device has, and how much of it other processes hold; both in bytes. What
 * cuMemAlloc has given out already stays. */
void cuda_double_memory(int device, size_t total, size_t taken);

/* Bytes that may be registered at a time, and copy engines; SIZE_MAX and 2 at first. */
void cuda_double_limit_registered(size_t bytes);
void cuda_double_copy_engines(int count);

/* How many rules were broken since the last reset; the first one goes into `text`. */
uint64_t cuda_double_violations(char *text, size_t size);

typedef struct cuda_double_counts {
    uint64_t streams, events, contexts, registered_ranges; /* in use now */
    uint64_t allocations;                                  /* of device memory */
    uint64_t pinned_copies, pageable_copies;               /* since the last reset */
    uint64_t cold_pages; /* since the last reset, of what was registered: not in memory yet */
} cuda_double_counts;
void cuda_double_count(cuda_double_counts *counts);

/* A kernel: called in stream order with memory that stands for [pointer, + bytes). */
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

/* For hosts whose threads are not the system's: how time passes, and who is calling.
 * Set before the first call of the driver. */
extern void (*cuda_double_pass_time)(uint64_t ns);
extern uintptr_t (*cuda_double_caller)(void);

#endif
