/*
 * Memory pressure: a run's need against the bytes it may use. The pipeline calls it once per plan; the rules
 * (rules.c) read it. Nothing is chosen here.
 */
#include <string.h>

#include "base/units.h"
#include "rules/rules_internal.h"

static uint64_t pressure_allowed_bytes(const ms_hardware *hardware, const ms_config *config)
{
    if (config->memory_budget_bytes != MS_UNSET) {
        return config->memory_budget_bytes;
    }
    uint64_t bytes = ms_hardware_device_bytes(hardware);
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    if (gpu != NULL && gpu->free_bytes > 0) {
        bytes = ms__min_u64(bytes, gpu->free_bytes); /* other processes hold the rest */
    }
    return ms__mul_div(bytes, config->target_utilization_permille, 1000);
}

void ms_pressure_of(uint64_t need_bytes, const ms_hardware *hardware, const ms_config *config, ms_pressure *pressure)
{
    memset(pressure, 0, sizeof *pressure);
    pressure->need_bytes = need_bytes;
    pressure->allowed_bytes = pressure_allowed_bytes(hardware, config);
    pressure->permille = ms__mul_div_up(need_bytes, 1000, ms__max_u64(pressure->allowed_bytes, 1));
    pressure->budget_given = config->memory_budget_bytes != MS_UNSET;
    bool binding = pressure->budget_given && need_bytes > pressure->allowed_bytes;
    pressure->forced = config->force_optimize && !binding;
    pressure->comfortable = !pressure->forced && pressure->permille <= MS_COMFORTABLE_PERMILLE;
}

/* A GPU without a driver that could move its memory. */
static bool has_no_link(const ms_hardware *hardware)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    return gpu != NULL && gpu->copy_engines == 0;
}

uint64_t ms_rules_disk_cap(const ms_hardware *hardware, const ms_config *config)
{
    const ms_disk *disk = &hardware->disk;
    if (!ms__disk_is_usable(disk) || has_no_link(hardware)) {
        return 0;
    }
    if (config->max_disk_offload_bytes != MS_UNSET) {
        return ms__min_u64(config->max_disk_offload_bytes, disk->free_bytes);
    }
    return ms__mul_div(disk->free_bytes, MS_DISK_SHARE_PERMILLE, 1000);
}

uint64_t ms_rules_host_cap(const ms_hardware *hardware, const ms_config *config)
{
    if (ms_hardware_host_is_device(hardware) || has_no_link(hardware)) {
        return 0;
    }
    return ms__min_u64(config->max_cpu_offload_bytes, hardware->ram.available_bytes);
}

uint64_t ms_rules_pinned(const ms_hardware *hardware, const ms_config *config)
{
    uint64_t pool =
        config->pinned_pool_bytes != MS_UNSET ? config->pinned_pool_bytes : hardware->ram.available_bytes / 2;
    return ms__min_u64(pool, ms_rules_host_cap(hardware, config));
}
