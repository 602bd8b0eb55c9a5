/*
 * disk_yardstick.h - the rates of another program on the same file system: fio if it is
 * installed, else dd with direct I/O. For offload_bench.c.
 */
#ifndef MS_BENCH_DISK_YARDSTICK_H
#define MS_BENCH_DISK_YARDSTICK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct disk_rates {
    double write_gb, read_gb; /* per second */
    double cpu;               /* seconds of processor per GB moved */
} disk_rates;

/* "fio" or "dd"; NULL if neither is installed. */
const char *disk_yardstick_name(void);

/* Overwrites and then reads about `bytes` of a file in `directory`, in blocks of `block_bytes`,
 * `depth` at a time. The file has no name, so nothing is left behind. False if it failed. */
bool disk_yardstick_run(const char *directory, uint64_t bytes, uint64_t block_bytes, int depth, disk_rates *rates);

#endif
