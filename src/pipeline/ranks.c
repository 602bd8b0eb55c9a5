/*
 * Several processes that train one model: the merged documents for their one plan. Called on every rank, at the wrap, at
 * the first forward and if the model moves, with the documents of those that share the plan; they get the same result.
 */
#include "base/units.h"
#include "memscale/pipeline.h"

static uint64_t expected_scratch(const ms_hardware *hardware)
{
    return ms__sub_sat(hardware->process.scratch_bytes, hardware->process.reserve_bytes);
}

static void merge_hardware(ms_hardware *all, const ms_hardware *one)
{
    all->process.baseline_bytes = ms__max_u64(all->process.baseline_bytes, one->process.baseline_bytes);
    uint64_t expected = ms__max_u64(expected_scratch(all), expected_scratch(one));
    all->process.scratch_bytes = ms__max_u64(all->process.scratch_bytes, one->process.scratch_bytes);
    all->process.reserve_bytes = ms__sub_sat(all->process.scratch_bytes, expected);
    all->process.products_bytes = ms__min_u64(all->process.products_bytes, one->process.products_bytes);
    all->process.state_bytes = ms__min_u64(all->process.state_bytes, one->process.state_bytes);
    all->process.storages_bytes = ms__min_u64(all->process.storages_bytes, one->process.storages_bytes);
    all->ram.total_bytes = ms__min_u64(all->ram.total_bytes, one->ram.total_bytes);
    all->ram.available_bytes = ms__min_u64(all->ram.available_bytes, one->ram.available_bytes);
    all->ram.limit_bytes = ms__min_u64(all->ram.limit_bytes, one->ram.limit_bytes);
    all->disk.free_bytes = ms__min_u64(all->disk.free_bytes, one->disk.free_bytes);
    all->disk.write_bytes_per_s = ms__min_u64(all->disk.write_bytes_per_s, one->disk.write_bytes_per_s);
    all->disk.read_bytes_per_s = ms__min_u64(all->disk.read_bytes_per_s, one->disk.read_bytes_per_s);
    all->disk.is_memory |= one->disk.is_memory;
    if (one->disk.dir[0] == '\0' || one->disk.refusal[0] != '\0') {
        all->disk.dir[0] = '\0';
    }
}

static void merge_config(ms_config *all, const ms_config *one)
{
    all->memory_budget_bytes = ms__min_u64(all->memory_budget_bytes, one->memory_budget_bytes);
    all->max_disk_offload_bytes = ms__min_u64(all->max_disk_offload_bytes, one->max_disk_offload_bytes);
    all->max_cpu_offload_bytes = ms__min_u64(all->max_cpu_offload_bytes, one->max_cpu_offload_bytes);
}

/* The ranks of one machine divide its memory and its disk. */
static void divide_among_ranks(ms_hardware *hardware, uint32_t ranks)
{
    uint64_t *const shared[] = {&hardware->ram.available_bytes, &hardware->disk.free_bytes,
                                &hardware->disk.write_bytes_per_s, &hardware->disk.read_bytes_per_s};
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        *shared[i] /= ranks;
    }
    hardware->ram.total_bytes /= ranks;
    if (hardware->ram.limit_bytes != UINT64_MAX) {
        hardware->ram.limit_bytes /= ranks;
    }
}

int ms_pipeline_agree(const ms_hardware *const *hardware, const ms_config *const *config, uint32_t count,
                      uint32_t local_count, ms_hardware *agreed_hardware, ms_config *agreed_config, ms_error *err)
{
    if (count == 0 || local_count == 0) {
        return ms_fail(err, MS_EINVAL, "ranks: %u ranks, %u of them on this machine", count, local_count);
    }
    *agreed_hardware = *hardware[0];
    *agreed_config = *config[0];
    for (uint32_t i = 1; i < count; i++) {
        merge_hardware(agreed_hardware, hardware[i]);
        merge_config(agreed_config, config[i]);
    }
    divide_among_ranks(agreed_hardware, local_count);
    return MS_OK;
}

void ms_pipeline_in_parts(ms_config *config)
{
    config->mode = MS_MODE_CONSERVATIVE;
    config->enable_offloading = false;
}
