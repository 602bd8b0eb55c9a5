/*
 * What a training process holds beside tensors: the part of a hardware description that belongs to this run and not to
 * the machine. Measured at the wrap; corrected by traces, by the first forward and by measured steps.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/os/procfs.h"
#include "base/units.h"
#include "device/device.h"
#include "sim/process.h"

static void assume_scratch(const ms_hardware *hardware, ms_process *process)
{
    const ms__device_kind *kind = ms__device_kind_of(ms_hardware_device_kind(hardware));
    const ms__device_scratch *scratch = &kind->scratch;
    uint64_t per_cpu = ms__mul_sat(hardware->cpu.usable_cpus, scratch->prior_per_cpu_bytes);
    uint64_t card = kind->more_scratch != NULL ? kind->more_scratch(ms_hardware_gpu(hardware)) : 0;
    uint64_t prior = ms__add_sat(scratch->prior_bytes, card);
    process->scratch_bytes = ms__add_sat(prior, per_cpu);
    process->reserve_bytes = prior - scratch->expected_bytes;
    process->convolutions_bytes = scratch->convolutions_bytes;
    process->products_bytes = ms__add_sat(scratch->expected_bytes - scratch->without_products_bytes, per_cpu);
}

/*
 * The prior covers large steps. A small step uses the interpreter's growth and the pages of the library code that it
 * runs, which do not depend on its size, and some memory that does. Storages too small for maps of their own lie in
 * libc's heap, which they leave in fragments unless they are tiny; the more there are, the more of them fill such
 * fragments. Measured over 29 small models, with storages of 0 to 1.1 GB in a step, 0 to 180 MB of them in the heap:
 * 10 to 25 MB without convolutions, 19 to 32 MB with some, 32 to 45 MB with more than 30 MB in the heap.
 */
static const uint64_t small_step_bytes = 22000000, convolutions_bytes = 13000000, heap_fragments_bytes = 20000000;
enum { MAPPED_SHARE = 64, HEAP_SHARE = 2, LARGE_HEAP_SHARE = 16, TINY_PART = 8 };

/* What a step takes once the trace has run: 8 to 13 MB without convolutions, 11 to 24 MB with 2 to 60 of them; 12 MB in a
 * step with storages of 1.4 GB. (bench/smallest.py) */
static const uint64_t traced_step_bytes = 14000000, traced_convolutions_bytes = 7000000, traced_most_bytes = 20000000;
static const uint64_t small_step_storages_bytes = 1500000000, traced_expected_bytes = 10000000;
enum { SMALL_MAPPED_SHARE = 256 };

static uint64_t mapped_scratch(uint64_t mapped, bool is_traced)
{
    uint64_t small = is_traced ? ms__min_u64(mapped, small_step_storages_bytes) : 0;
    return small / SMALL_MAPPED_SHARE + (mapped - small) / MAPPED_SHARE;
}

/*
 * Code that oneDNN generates for each shape, and keeps for the last 1024 operators. Measured with torch 2.13 on a
 * processor with AMX: 16-bit products 5 MB with the first, 0.7 MB each (FP16 0.6); convolutions 0.2 MB each, beside what
 * the first ones load.
 */
static const uint64_t half_product_bytes = 750000, first_half_product_bytes = 5000000, convolution_bytes = 200000;
enum { CODE_KEPT_MOST = 1024 };

static uint64_t generated_code(const ms_graph *graph, uint64_t first_convolutions_bytes)
{
    uint64_t convolutions = ms__min_u64(graph->convolutions, CODE_KEPT_MOST) * convolution_bytes;
    uint64_t products = ms__min_u64(graph->half_products, CODE_KEPT_MOST) * half_product_bytes;
    return (graph->convolutions > 0 ? ms__max_u64(first_convolutions_bytes, convolutions) : 0) +
           (graph->half_products > 0 ? first_half_product_bytes + products : 0);
}

/* Memory beside tensors that grows with all storages that a step allocates, whether they live together or not. */
static uint64_t allocation_scratch(const ms_graph *graph, bool is_traced)
{
    uint64_t mapped = 0, heap = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_profile *profile = &graph->profiles[graph->nodes[i].profile];
        for (uint32_t local = profile->external_count; local < profile->storage_count; local++) {
            uint64_t bytes = profile->storage_bytes[local];
            bool is_heap = bytes < MS__MAP_MIN_BYTES && bytes >= MS__MAP_MIN_BYTES / TINY_PART;
            uint64_t *sum = is_heap ? &heap : &mapped;
            *sum = ms__add_sat(*sum, bytes);
        }
    }
    uint64_t fragments = ms__min_u64(heap / HEAP_SHARE, heap_fragments_bytes + heap / LARGE_HEAP_SHARE);
    return ms__add_sat(mapped_scratch(mapped, is_traced), fragments);
}

/* The part of scratch that is larger in larger steps. */
static uint64_t step_scratch(const ms_graph *graph, bool is_traced)
{
    return ms__add_sat(allocation_scratch(graph, is_traced), graph->libc_buffer_bytes);
}

uint64_t ms__process_scratch(const ms_process *process, const ms_graph *graph)
{
    bool is_measured = process->products_bytes == 0;
    if (is_measured && process->storages_bytes == 0) {
        uint64_t convolutions = graph->convolutions > 0 ? process->convolutions_bytes : 0;
        return ms__add_sat(process->scratch_bytes, convolutions);
    }
    if (is_measured) {
        uint64_t more = ms__sub_sat(step_scratch(graph, false), process->storages_bytes);
        return ms__add_sat(process->scratch_bytes, more);
    }
    bool is_traced = process->traced_bytes > 0;
    uint64_t code = generated_code(graph, is_traced ? traced_convolutions_bytes : convolutions_bytes);
    uint64_t least = (is_traced ? traced_step_bytes : small_step_bytes) + code;
    uint64_t most = ms__sub_sat(process->scratch_bytes, process->traced_bytes);
    uint64_t small = ms__min_u64(most, ms__add_sat(least, allocation_scratch(graph, is_traced)));
    return ms__add_sat(small, graph->libc_buffer_bytes);
}

uint64_t ms__process_reserve(const ms_process *process, const ms_graph *graph)
{
    uint64_t reserve = ms__add_sat(process->reserve_bytes, graph->small_products ? process->products_bytes : 0);
    uint64_t expected = ms__sub_sat(process->scratch_bytes, reserve);
    uint64_t least = ms__min_u64(expected, traced_expected_bytes);
    expected = ms__max_u64(ms__sub_sat(expected, process->traced_bytes), least);
    expected = ms__add_sat(expected, process->products_bytes > 0 ? graph->libc_buffer_bytes : 0); /* not measured yet */
    return ms__sub_sat(ms__process_scratch(process, graph), expected);
}

void ms__process_measured(ms_process *process, const ms_graph *graph, uint64_t scratch_bytes, uint64_t expected_bytes)
{
    bool lowered = scratch_bytes < process->scratch_bytes;
    uint64_t others = lowered ? 0 : process->storages_bytes; /* of a larger step, which the scratch covers */
    process->scratch_bytes = scratch_bytes;
    process->reserve_bytes = ms__sub_sat(scratch_bytes, expected_bytes);
    process->products_bytes = process->traced_bytes = process->convolutions_bytes = 0;
    process->storages_bytes = expected_bytes == MS_UNSET ? 0 : ms__max_u64(others, step_scratch(graph, false));
}

/*
 * The earlier baseline, if little has changed since. A refused wrap leaves behind the pages that its trace
 * touched (15 MB, which scratch includes), and readings differ by a few MB. Without this tolerance, the
 * budget that a refusal names would be refused too.
 */
static const uint64_t same_baseline_bytes = 20000000, same_trace_bytes = 4000000;

static uint64_t steady(_Atomic uint64_t *measured_bytes, uint64_t now_bytes, uint64_t same_bytes)
{
    uint64_t before = atomic_load(measured_bytes);
    uint64_t change = now_bytes > before ? now_bytes - before : before - now_bytes;
    if (before != 0 && change <= same_bytes) {
        return before;
    }
    atomic_store(measured_bytes, now_bytes);
    return now_bytes;
}

static _Atomic uint64_t baseline_of_wrap, baseline_of_trace;

/* The baseline of a process that trains in host memory. */
static int resident_baseline(uint64_t *bytes, ms_error *err)
{
    ms__resident resident;
    malloc_trim(0);
    int rc = ms__resident_read(&resident, err);
    if (rc == MS_OK) {
        *bytes = steady(&baseline_of_wrap, resident.now_bytes, same_baseline_bytes);
    }
    return rc;
}

/* What is assumed of a GPU until the driver or a step says more. */
static ms_gpu undescribed_gpu(const ms_gpu_sight *sight)
{
    ms_gpu gpu = {.kind = sight->kind, .total_bytes = sight->total_bytes};
    snprintf(gpu.name, sizeof gpu.name, "%s", sight->name);
    const ms__device_kind *kind = ms__device_kind_of(sight->kind);
    gpu.matmul_flops_per_s = kind->default_flops_per_s;
    gpu.stream_bytes_per_s = kind->default_memory_bytes_per_s;
    gpu.to_host_bytes_per_s = gpu.from_host_bytes_per_s = kind->default_link_bytes_per_s;
    return gpu;
}

static void warn_of_no_driver(uint32_t device, ms_device_kind kind)
{
    ms_error why = {.text = "it has no description of the device"};
    const ms__device_kind *row = ms__device_kind_of(kind);
    (void)row->usable(&why);
    ms_log(MS_LOG_WARNING, "%s %u: nothing can be moved from it, layers are only kept or recomputed: %s", row->label,
           device, why.text);
}

/* Memory totals of one device differ by a few MB between the driver and a framework. */
enum { SAME_TOTAL_PERCENT = 10 };

static bool is_another(const ms_gpu *gpu, const ms_gpu_sight *sight)
{
    uint64_t larger = ms__max_u64(gpu->total_bytes, sight->total_bytes);
    uint64_t smaller = ms__min_u64(gpu->total_bytes, sight->total_bytes);
    return larger - smaller > ms__mul_div(larger, SAME_TOTAL_PERCENT, 100);
}

int ms_hardware_see_gpu(ms_hardware *hardware, uint32_t device, const ms_gpu_sight *sight, ms_error *err)
{
    if (device >= MS_GPU_MAX) {
        return ms_fail(err, MS_EINVAL, "hardware: GPU %u is beyond the %d that can be described", device, MS_GPU_MAX);
    }
    if (hardware->gpu_count <= device) {
        warn_of_no_driver(device, sight->kind);
    }
    while (hardware->gpu_count <= device) {
        hardware->gpu[hardware->gpu_count++] = undescribed_gpu(sight);
    }
    ms_gpu *gpu = &hardware->gpu[device];
    if (is_another(gpu, sight)) {
        return ms_fail(
            err, MS_ENOTSUP,
            "GPU %u: the framework sees %.64s with %s, the driver sees %.64s with %s (a MIG slice and its card?); make "
            "only one of them visible",
            device, sight->name, ms__text_bytes(sight->total_bytes).text, gpu->name,
            ms__text_bytes(gpu->total_bytes).text);
    }
    gpu->total_bytes = sight->total_bytes;
    gpu->free_bytes = ms__min_u64(sight->available_bytes, gpu->total_bytes);
    return MS_OK;
}

int ms_hardware_set_process(ms_hardware *hardware, int32_t device, uint64_t allocated_bytes, ms_error *err)
{
    ms_process process = {.baseline_bytes = allocated_bytes};
    int32_t before = hardware->device;
    if (device >= (int32_t)hardware->gpu_count) {
        return ms_fail(err, MS_EINVAL, "hardware: GPU %d does not exist; %u were found", device, hardware->gpu_count);
    }
    hardware->device = device < 0 ? -1 : device;
    int rc = ms_hardware_host_is_device(hardware) ? resident_baseline(&process.baseline_bytes, err) : MS_OK;
    if (rc != MS_OK) {
        hardware->device = before;
        return rc;
    }
    assume_scratch(hardware, &process);
    hardware->process = process;
    return MS_OK;
}

int ms_process_beside_tensors(uint64_t tensor_bytes, uint64_t *bytes, ms_error *err)
{
    ms__resident resident;
    malloc_trim(0);
    int rc = ms__resident_read(&resident, err);
    if (rc == MS_OK) {
        *bytes = ms__sub_sat(resident.now_bytes, tensor_bytes);
    }
    return rc;
}

int ms_hardware_begins(ms_hardware *hardware, uint64_t tensor_bytes, uint64_t counted_bytes, ms_error *err)
{
    uint64_t *baseline = &hardware->process.baseline_bytes;
    if (!ms_hardware_host_is_device(hardware) || *baseline == 0) {
        return MS_OK;
    }
    uint64_t beside_bytes;
    int rc = ms_process_beside_tensors(tensor_bytes, &beside_bytes, err);
    if (rc == MS_OK) {
        *baseline = ms__min_u64(*baseline, ms__add_sat(beside_bytes, counted_bytes));
    }
    return rc;
}

/* The first trace of a process loads libraries: their bytes. Later traces find them loaded. */
static _Atomic uint64_t loaded_by_traces;

int ms_hardware_traced(ms_hardware *hardware, uint64_t tensor_bytes, ms_error *err)
{
    ms_process *process = &hardware->process;
    bool is_measured = process->products_bytes == 0 || process->traced_bytes > 0;
    if (!ms_hardware_host_is_device(hardware) || process->baseline_bytes == 0 || is_measured) {
        return MS_OK;
    }
    uint64_t now_bytes;
    int rc = ms_process_beside_tensors(tensor_bytes, &now_bytes, err);
    if (rc == MS_OK) {
        uint64_t grown = ms__sub_sat(steady(&baseline_of_trace, now_bytes, same_trace_bytes), process->baseline_bytes);
        process->baseline_bytes += grown;
        uint64_t loaded = ms__max_u64(ms__min_u64(grown, traced_most_bytes), atomic_load(&loaded_by_traces));
        atomic_store(&loaded_by_traces, loaded);
        process->traced_bytes = ms__max_u64(loaded, 1);
    }
    return rc;
}

void ms_hardware_grow_by(ms_hardware *hardware, uint64_t before_bytes, uint64_t after_bytes)
{
    uint64_t *baseline = &hardware->process.baseline_bytes;
    if (ms_hardware_host_is_device(hardware) && *baseline > 0) {
        *baseline = ms__add_sat(*baseline, ms__sub_sat(after_bytes, before_bytes));
    }
}

void ms_hardware_shrink_by(ms_hardware *hardware, uint64_t bytes)
{
    uint64_t *baseline = &hardware->process.baseline_bytes;
    if (ms_hardware_host_is_device(hardware) && *baseline > 0) {
        *baseline = ms__max_u64(ms__sub_sat(*baseline, bytes), 1); /* 0 would say that there is no process */
    }
}

/* After its first forward a trainer loads up to 4 MB (logging, collectives). The baselines of two runs differ by up to
 * 4 MB. */
static const uint64_t loaded_later_bytes = 8000000;

int ms_hardware_grow_process(ms_hardware *hardware, uint64_t tensor_bytes, uint64_t expected_bytes, ms_error *err)
{
    ms__resident resident;
    if (!ms_hardware_host_is_device(hardware)) {
        uint64_t *baseline = &hardware->process.baseline_bytes;
        *baseline = ms__max_u64(*baseline, ms__min_u64(tensor_bytes, ms__add_sat(*baseline, expected_bytes)));
        return MS_OK;
    }
    malloc_trim(0);
    int rc = ms__resident_read(&resident, err);
    if (rc != MS_OK) {
        return rc;
    }
    uint64_t now_bytes = ms__sub_sat(resident.now_bytes, tensor_bytes);
    uint64_t baseline_bytes = ms__max_u64(hardware->process.baseline_bytes, now_bytes);
    hardware->process.baseline_bytes = ms__add_sat(ms__add_sat(baseline_bytes, expected_bytes), loaded_later_bytes);
    return MS_OK;
}
