/*
 * rates.h - how fast this machine computes and moves bytes: defaults, and
 * measurements that take a few hundred milliseconds. Only the hardware probe
 * calls these; the results are rounded and cached by it.
 */
#ifndef MS_HARDWARE_RATES_H
#define MS_HARDWARE_RATES_H

#include "memscale/hardware.h"

/* Stated rates of an ordinary machine, for descriptions made without measuring. */
void ms__rates_default_cpu(ms_cpu *cpu);
void ms__rates_default_disk(ms_disk *disk);

/*
 * Measures the rates of `cpu`, whose `usable_cpus` and `isa` are set, with
 * that many threads and about `memory_bytes` of memory (given back before the
 * return). Each rate is the best of several tries: what disturbs a measurement
 * only slows it.
 */
MS_NODISCARD int ms__rates_measure_cpu(ms_cpu *cpu, uint64_t memory_bytes, ms_error *err);

/*
 * Measures writing and reading of the directory `disk->dir`, which is fit for
 * it: a temporary file of at most `file_bytes`, direct I/O if `disk->direct_io`,
 * stopped after about `limit_ns` in each direction.
 */
MS_NODISCARD int ms__rates_measure_disk(ms_disk *disk, uint64_t file_bytes, uint64_t limit_ns, ms_error *err);

#endif
