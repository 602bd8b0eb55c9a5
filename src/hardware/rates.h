/*
 * rates.h - the rates at which this machine computes and moves bytes: defaults, and measurements of a few hundred
 * milliseconds. Called only by the hardware probe, which rounds and caches the results.
 * Tests: tests/c/hardware/test_probe.c, test_gpu_rates.c.
 */
#ifndef MS_HARDWARE_RATES_H
#define MS_HARDWARE_RATES_H

#include "hardware/probe.h"

/* Fill in the rates of an ordinary machine, for descriptions made without measuring. */
void ms__rates_default_cpu(ms_cpu *cpu);
void ms__rates_default_disk(ms_disk *disk);

/*
 * Measures the rates of `cpu`, whose `usable_cpus` and `isa` are set, with `usable_cpus` threads and about
 * `memory_bytes` of memory, freed before it returns. Each rate is the best of several tries, because disturbances only
 * slow a measurement.
 */
MS_NODISCARD int ms__rates_measure_cpu(ms_cpu *cpu, uint64_t memory_bytes, ms_error *err);

/*
 * Measures writing and reading in `disk->dir`, which must be fit, with a temporary file of at most `file_bytes` and
 * direct I/O if `disk->direct_io`. Stops after about `limit_ns` in each direction.
 */
MS_NODISCARD int ms__rates_measure_disk(ms_disk *disk, uint64_t file_bytes, uint64_t limit_ns, ms_error *err);

/* Names and addresses of the rates of `gpu` that a framework measures, in the order of the trials (rates_gpu.c). */
enum { MS__GPU_RATES = 8 };
void ms__gpu_rates(ms_gpu *gpu, ms__rate rates[MS__GPU_RATES]);

#endif
