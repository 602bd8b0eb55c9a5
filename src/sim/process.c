/*
 * What the training process holds before its first step: the part of a hardware
 * description that belongs to this run and not to the machine. Called once per wrap.
 */
#include <malloc.h>
#include <stdatomic.h>

#include "base/os/procfs.h"
#include "base/units.h"
#include "sim/process.h"

/*
 * Library code that the first step pages in, packing buffers of matrix products and the
 * interpreter's own growth. Measured with two threads: 62 to 72 MB on steps of language
 * models, which is what is expected, 100 MB where convolutions come in (CLIP); a budget
 * must hold, so with the reserve the prior is above both. The part per CPU is what the
 * buffers grow by with threads. Without large products (ResNet-18) hardly more is taken than
 * the 2 MB of the first product and the 8 MB of the first convolution.
 */
enum { SCRATCH_PRIOR_MB = 96, SCRATCH_PRIOR_PER_CPU_MB = 8, EXPECTED_MB = 51, WITHOUT_PRODUCTS_MB = 12 };
static const uint64_t MB = 1000000;

static void assume_scratch(const ms_hardware *hardware, ms_process *process)
{
    uint64_t per_cpu = ms__mul_sat(hardware->cpu.usable_cpus, SCRATCH_PRIOR_PER_CPU_MB * MB);
    process->scratch_bytes = ms__add_sat(SCRATCH_PRIOR_MB * MB, per_cpu);
    process->reserve_bytes = (SCRATCH_PRIOR_MB - EXPECTED_MB) * MB;
    process->products_bytes = ms__add_sat((EXPECTED_MB - WITHOUT_PRODUCTS_MB) * MB, per_cpu);
}

uint64_t ms__process_reserve(const ms_process *process, const ms_graph *graph)
{
    uint64_t reserve = ms__add_sat(process->reserve_bytes, graph->small_products ? process->products_bytes : 0);
    return ms__min_u64(reserve, process->scratch_bytes);
}

void ms__process_expect(ms_process *process, uint64_t measured_bytes)
{
    process->reserve_bytes = ms__sub_sat(process->scratch_bytes, measured_bytes);
    process->products_bytes = 0;
}

/*
 * What was measured before, where little has changed since. A refused wrap leaves behind
 * the pages that its trace touched (15 MB, which scratch counts), and every reading differs
 * by a few: without this, a budget that the refusal named would be refused too.
 */
enum { SAME_BASELINE_MB = 20 };

static uint64_t steady_baseline(uint64_t now_bytes)
{
    static _Atomic uint64_t measured_bytes;
    uint64_t before = atomic_load(&measured_bytes);
    uint64_t change = now_bytes > before ? now_bytes - before : before - now_bytes;
    if (before != 0 && change <= SAME_BASELINE_MB * MB) {
        return before;
    }
    atomic_store(&measured_bytes, now_bytes);
    return now_bytes;
}

int ms_hardware_set_process(ms_hardware *hardware, int32_t device, uint64_t allocated_bytes, ms_error *err)
{
    ms_process process = {.baseline_bytes = allocated_bytes};
    if (device >= (int32_t)hardware->gpu_count) {
        return ms_fail(err, MS_EINVAL, "hardware: there is no GPU %d, only %u", device, hardware->gpu_count);
    }
    if (device < 0) {
        ms__resident resident;
        malloc_trim(0);
        int rc = ms__resident_read(&resident, err);
        if (rc != MS_OK) {
            return rc;
        }
        process.baseline_bytes = steady_baseline(resident.now_bytes);
        assume_scratch(hardware, &process);
    }
    hardware->device = device < 0 ? -1 : device;
    hardware->process = process;
    return MS_OK;
}
