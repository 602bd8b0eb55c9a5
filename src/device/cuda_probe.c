/*
 * Describes the devices of CUDA's or ROCm's driver, without creating a context. hardware.c calls it through the
 * row. If there is no driver or no device, or if the driver returns an error, it reports no GPU and
 * logs a debug line.
 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/units.h"
#include "device/kinds.h"
#include "device/libcuda.h"

/* fp32 lanes of a multiprocessor: 64 on Volta, Turing and A100, 128 on the rest (CUDA C programming guide, table of
 * arithmetic throughput); 64 on AMD's compute units. */
enum { LANES_64 = 64, LANES_128 = 128, EFFICIENCY_PERCENT = 80 };

static uint64_t attribute(const ms__libcuda *cuda, ms__cu_device device, int which)
{
    int value = 0;
    if (ms__fault(MS_FAULT_DRIVER, NULL) || cuda->device_get_attribute(&value, which, device) != 0 || value < 0) {
        return 0;
    }
    return (uint64_t)value;
}

static uint64_t estimate_flops(const ms__libcuda *cuda, ms__cu_device device, const ms_gpu *gpu)
{
    bool narrow = cuda->is_hip || gpu->compute_major == 7 || (gpu->compute_major == 8 && gpu->compute_minor == 0);
    uint64_t lanes =
        attribute(cuda, device, MS__CU_ATTRIBUTE_MULTIPROCESSORS) * (uint64_t)(narrow ? LANES_64 : LANES_128);
    uint64_t khz = attribute(cuda, device, MS__CU_ATTRIBUTE_CLOCK_KHZ);
    uint64_t flops = ms__mul_div(ms__mul_sat(2 * lanes, khz * 1000), EFFICIENCY_PERCENT, 100);
    return flops > 0 ? flops : ms__device_cuda.default_flops_per_s;
}

/* Two transfers per clock. */
static uint64_t estimate_memory(const ms__libcuda *cuda, ms__cu_device device)
{
    uint64_t bus_bytes = attribute(cuda, device, MS__CU_ATTRIBUTE_MEMORY_BUS_BITS) / 8;
    uint64_t khz = attribute(cuda, device, MS__CU_ATTRIBUTE_MEMORY_CLOCK_KHZ);
    uint64_t rate = ms__mul_div(ms__mul_sat(2 * bus_bytes, khz * 1000), EFFICIENCY_PERCENT, 100);
    return rate > 0 ? rate : ms__device_cuda.default_memory_bytes_per_s;
}

static bool probe_one(const ms__libcuda *cuda, int ordinal, ms_gpu *out)
{
    ms_gpu gpu = {.kind = MS_DEVICE_CUDA};
    ms__cu_device device;
    size_t total_bytes = 0;
    if (ms__fault(MS_FAULT_DRIVER, NULL) || cuda->device_get(&device, ordinal) != 0 ||
        cuda->device_get_name(gpu.name, sizeof gpu.name, device) != 0 ||
        cuda->device_total_mem(&total_bytes, device) != 0) {
        return false;
    }
    gpu.name[sizeof gpu.name - 1] = '\0';
    gpu.total_bytes = total_bytes;
    gpu.free_bytes = total_bytes; /* the driver reports free bytes only inside a context */
    uint64_t engines = attribute(cuda, device, MS__CU_ATTRIBUTE_COPY_ENGINES);
    gpu.copy_engines = (uint32_t)ms__min_u64(ms__max_u64(engines, 1), 64); /* 0: no driver that could copy */
    gpu.compute_major = (uint32_t)attribute(cuda, device, MS__CU_ATTRIBUTE_COMPUTE_MAJOR);
    gpu.compute_minor = (uint32_t)attribute(cuda, device, MS__CU_ATTRIBUTE_COMPUTE_MINOR);
    gpu.matmul_flops_per_s = estimate_flops(cuda, device, &gpu);
    gpu.stream_bytes_per_s = estimate_memory(cuda, device);
    gpu.to_host_bytes_per_s = ms__device_cuda.default_link_bytes_per_s;
    gpu.from_host_bytes_per_s = ms__device_cuda.default_link_bytes_per_s;
    *out = gpu;
    return true;
}

uint32_t ms__cuda_probe(ms_gpu *gpus, uint32_t most)
{
    const ms__libcuda *cuda;
    ms_error err;
    int count = 0;
    if (ms__device_cuda.usable(&err) != MS_OK || ms__libcuda_get(&cuda, &err) != MS_OK ||
        cuda->device_get_count(&count) != 0) {
        ms_log(MS_LOG_DEBUG, "%s", err.text);
        return 0;
    }
    uint32_t found = 0;
    while (found < most && found < (uint32_t)count && probe_one(cuda, (int)found, &gpus[found])) {
        found++; /* one without a description ends the list, because positions are numbers of devices */
    }
    return found;
}
