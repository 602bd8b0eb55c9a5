/*
 * Memory beside tensors that a step took beyond its estimate, kept between runs: operators that no table knows take as
 * much again the next time. Part of the pipeline; the caller says when.
 */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/units.h"
#include "hardware/probe.h"
#include "memscale/pipeline.h"
#include "sim/process.h"

enum { KEY_BYTES = 320, SAME_PERMILLE = 10 };

static const char kind[] = "step";

/* A line that names the step on this machine; false if memory is short. */
static bool step_key(const ms_graph *graph, const ms_hardware *hardware, const char *software, char *key)
{
    ms_graph step = *graph;
    step.loop = (ms_loop){0}; /* other loops run the same operators */
    char *text = ms_graph_to_json(&step);
    if (text == NULL) {
        return false;
    }
    snprintf(key, KEY_BYTES, "%016llx on %s, %s", (unsigned long long)XXH3_64bits(text, strlen(text)),
             hardware->cpu.name, software);
    ms_free(text);
    return true;
}

static bool find_directory(const char *cache_dir, char *dir)
{
    if (cache_dir != NULL) {
        snprintf(dir, MS_PATH_MAX, "%s", cache_dir);
        return true;
    }
    return ms__cache_directory("", dir, MS_PATH_MAX);
}

static bool load(const char *dir, const char *key, uint64_t *bytes)
{
    const ms__rate kept = {"scratch_bytes", bytes};
    return ms__rate_cache_load(dir, kind, key, &kept, 1);
}

static uint64_t expected_scratch(const ms_process *process, const ms_graph *graph)
{
    return ms__sub_sat(ms__process_scratch(process, graph), ms__process_reserve(process, graph));
}

static bool is_same(uint64_t a, uint64_t b)
{
    return ms__max_u64(a, b) - ms__min_u64(a, b) <= ms__mul_div(b, SAME_PERMILLE, 1000);
}

bool ms_pipeline_keep_scratch(const ms_graph *graph, const ms_process *before, const ms_hardware *after,
                              const char *software, const char *cache_dir)
{
    char dir[MS_PATH_MAX], key[KEY_BYTES];
    uint64_t known, taken = expected_scratch(&after->process, graph);
    if (!ms_hardware_host_is_device(after) || after->process.storages_bytes == 0 || !find_directory(cache_dir, dir) ||
        !step_key(graph, after, software, key)) {
        return false;
    }
    if (load(dir, key, &known) ? is_same(taken, known) : taken <= ms__process_scratch(before, graph)) {
        return false;
    }
    const ms__rate kept = {"scratch_bytes", &taken};
    ms__rate_cache_save(dir, kind, key, &kept, 1);
    return true;
}

bool ms_pipeline_recall_scratch(const ms_graph *graph, ms_hardware *hardware, const ms_config *config,
                                const char *software, const char *cache_dir)
{
    char dir[MS_PATH_MAX], key[KEY_BYTES];
    uint64_t kept;
    if (!ms_hardware_host_is_device(hardware) || hardware->process.baseline_bytes == 0 ||
        !find_directory(cache_dir, dir) || !step_key(graph, hardware, software, key) || !load(dir, key, &kept) ||
        kept <= ms__process_scratch(&hardware->process, graph)) {
        return false;
    }
    ms_process estimated = hardware->process;
    ms_plan *plan = NULL;
    ms_error err;
    ms__process_measured(&hardware->process, graph, kept, kept);
    if (ms_pipeline_plan(graph, hardware, config, &plan, &err) != MS_OK) {
        hardware->process = estimated;
        return false;
    }
    ms_plan_free(plan);
    return true;
}
