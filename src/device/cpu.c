/*
 * The row of the host's processors: tensors are in host memory, in maps of hostmem or in libc's heap,
 * and reaching them needs no copy.
 */
#include "base/units.h"
#include "device/kinds.h"

static const ms__device_conflict conflicts[] = {
    {"LD_PRELOAD", "malloc", "another allocator is loaded first: resident memory may not follow live bytes"},
    {"LD_PRELOAD", "memray", "memray takes the allocator's slots, which memscale then leaves to it"},
    {"MALLOC_MMAP_THRESHOLD_", "", "glibc's threshold is fixed by the environment; memscale sets its own"},
};

static uint64_t cpu_rounded(uint64_t bytes)
{
    return bytes >= MS__MAP_MIN_BYTES ? ms__align_up(bytes, MS__PAGE_BYTES) : bytes;
}

static uint32_t cpu_probe(ms_gpu *gpus, uint32_t most)
{
    (void)gpus;
    (void)most;
    return 0;
}

static bool cpu_has_driver(void)
{
    return true;
}

static int cpu_usable(ms_error *err)
{
    (void)err;
    return MS_OK;
}

static const char *cpu_means(int failure)
{
    (void)failure;
    return "";
}

const ms__device_kind ms__device_cpu = {
    .id = MS_DEVICE_CPU,
    .name = "cpu",
    .label = "CPU",
    .api = "host",
    .host_is_device = true,
    .rounded = cpu_rounded,
    .runtime_bytes = 430000000, /* interpreter, torch and its libraries */
    /*
     * Library code that the first step pages in, packing buffers of matrix products and the
     * interpreter's growth. Measured with two threads: 62 to 72 MB for steps of language models,
     * which is the expected value, and 100 MB for models with convolutions (CLIP). A plan's budget
     * must hold, so prior and reserve together exceed both. The part per CPU is the buffers' growth
     * with threads. Without large products (ResNet-18) a step uses hardly more than the 2 MB of the
     * first product and the 8 MB of the first convolution.
     */
    .scratch = {.prior_bytes = 96000000,
                .prior_per_cpu_bytes = 8000000,
                .expected_bytes = 51000000,
                .without_products_bytes = 12000000},
    .probe = cpu_probe,
    .has_driver = cpu_has_driver,
    .usable = cpu_usable,
    .means = cpu_means,
    .no_driver = "no processor", /* neither is ever printed */
    .no_device = "no processor",
    .no_device_advice = "look at the CPUs this process may use",
    .conflicts = conflicts,
    .conflict_count = sizeof conflicts / sizeof conflicts[0],
    .torch_module = "torch.cpu",
    .torch_raw_stream = "",
    .driver = NULL,
};
