/*
 * Uniform plans: one technique for every layer. The search's plan is at least as good as any of them. They are
 * also the plans of warm-up steps, before there is a graph.
 */
#include "base/units.h"
#include "plan/explain_internal.h"

enum { UNIFORM_MOST = 64 };

/* The technique of a plan without a graph: the one that frees most. */
static ms_technique blind_technique(const ms_hardware *hardware, const ms_config *config)
{
    bool may_move = config->mode != MS_MODE_CONSERVATIVE && config->enable_offloading;
    if (may_move && ms_rules_host_cap(hardware, config) > 0) {
        return MS_TECHNIQUE_OFFLOAD_HOST;
    }
    if (may_move && ms_rules_disk_cap(hardware, config) > 0) {
        return MS_TECHNIQUE_OFFLOAD_DISK;
    }
    return config->enable_checkpointing ? MS_TECHNIQUE_RECOMPUTE : MS_TECHNIQUE_KEEP;
}

/* Bytes in flight of a step of unknown size, each way: a small part of what the budget leaves to tensors. */
static const uint64_t least_window_bytes = 4 << 20;
enum { WINDOW_SHARE = 8 };

static uint64_t blind_window(const ms_hardware *hardware, const ms_pressure *pressure)
{
    uint64_t room = ms__sub_sat(pressure->allowed_bytes, hardware->process.baseline_bytes) / WINDOW_SHARE;
    return ms__max_u64(least_window_bytes, ms__min_u64(room, MS__BLIND_WINDOW_BYTES));
}

static int blind_plan(const ms_hardware *hardware, const ms_config *config, ms_technique technique, ms_plan **plan,
                      ms_error *err)
{
    ms_plan *made = ms__plan_new(NULL);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "uniform plan: out of memory");
    }
    made->fallback = technique < MS_TECHNIQUE_COUNT ? technique : blind_technique(hardware, config);
    bool moves = ms_technique_moves((ms_technique)made->fallback);
    ms_pressure_of(0, hardware, config, &made->pressure);
    /* Small tensors move too: in the profile of a step, one that stays looks as if something other than autograd held
     * it, and recomputing its layer would seem to free nothing. */
    made->offload_min_bytes = 1;
    made->write_window_bytes = made->read_window_bytes = blind_window(hardware, &made->pressure);
    made->slab_bytes = moves ? ms__slab_bytes(true, made->offload_min_bytes) : 0;
    made->disk_cap_bytes = ms_rules_disk_cap(hardware, config);
    made->host_cap_bytes = ms_rules_host_cap(hardware, config);
    *plan = made;
    return MS_OK;
}

/* For one technique, the fastest uniform candidate that fits with the cache it leaves room for, else the
 * smallest. For all techniques, the smallest. */
static void choose_uniform(ms__search *search, ms_technique technique, const ms_pressure *pressure, ms__variant *chosen,
                           uint64_t *room_bytes)
{
    size_t finalists[UNIFORM_MOST], count = 0;
    ms__variants variants;
    const ms__variant *found = NULL;
    ms__families_one(search, MS_TECHNIQUE_KEEP);
    if (technique < MS_TECHNIQUE_COUNT) {
        ms__families_one(search, technique);
    } else {
        ms__families_uniform(search);
    }
    ms__families_packing_moves(search);
    if (search->out_of_memory) {
        return;
    }
    /* If the technique is admitted nowhere, keeping all remains. */
    for (size_t i = search->count > 1 ? 1 : 0; i < search->count && count < UNIFORM_MOST; i++) {
        finalists[count++] = i;
    }
    if (ms__variants_make(search, finalists, count, ms__plan_most(search), &variants) != MS_OK) {
        search->out_of_memory = true;
        return;
    }
    if (technique < MS_TECHNIQUE_COUNT) {
        uint64_t allowed = pressure->allowed_bytes;
        ms__bounds bounds = {.allowed_bytes = allowed, .heavy_bytes = allowed, .most_ns = UINT64_MAX};
        found = ms__select(search, &variants, &bounds);
    }
    *chosen = found != NULL ? *found : ms__variant_of(search, ms__select_smallest_peak(search), 0);
    *room_bytes = found != NULL ? ms__plan_room(search, pressure->allowed_bytes) : 0;
    ms__variant_replay(search, chosen);
    ms__variants_free(&variants);
}

static void make_uniform(ms__search *search, ms_technique technique, const ms_pressure *pressure, ms_plan *plan)
{
    ms__variant chosen;
    uint64_t room_bytes;
    choose_uniform(search, technique, pressure, &chosen, &room_bytes);
    if (search->out_of_memory) {
        return;
    }
    ms__plan_fill_unoptimized(search, plan);
    ms__plan_fill(search, &chosen, room_bytes, plan);
    plan->pressure = *pressure;
    plan->smallest_budget_bytes = ms__candidate_peak(&search->items[ms__select_smallest_peak(search)]);
    plan->over_target = chosen.bytes > pressure->allowed_bytes;
    search->out_of_memory = ms__plan_apply(search, &chosen, plan) != MS_OK;
    ms__plan_fill_entries(search, &chosen, ms__add_sat(plan->replay.peak_bytes, plan->reserve_bytes), plan);
    if (ms__explain_peak(search, &chosen, plan) != MS_OK || ms__explain_bound(search, &chosen, plan) != MS_OK) {
        search->out_of_memory = true;
    }
}

int ms_plan_uniform(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_technique technique,
                    ms_plan **plan, ms_error *err)
{
    if (graph == NULL) {
        return blind_plan(hardware, config, technique, plan, err);
    }
    if (graph->node_count == 0) {
        return ms_fail(err, MS_EINVAL, "uniform plan: the graph has no nodes");
    }
    ms_pressure pressure;
    ms_replay kept = {0};
    ms_plan *made = ms__plan_new(graph);
    ms__search search = {0};
    ms_admission *admissions = ms_calloc(graph->node_count, sizeof *admissions);
    int rc = made == NULL || admissions == NULL ? ms_fail(err, MS_ENOMEM, "uniform plan: out of memory")
                                                : ms__simulate_kept(graph, hardware, &kept, err);
    if (rc == MS_OK) {
        ms_pressure_of(kept.peak_bytes, hardware, config, &pressure);
        pressure.comfortable = false; /* the caller asked for the technique */
        rc = ms_rules_admit(graph, hardware, config, &pressure, admissions, err);
    }
    if (rc == MS_OK) {
        rc = ms__search_open(graph, hardware, config, admissions, pressure.forced, 0, &search, err);
    }
    if (rc == MS_OK) {
        made->fallback = technique < MS_TECHNIQUE_COUNT ? technique : blind_technique(hardware, config);
        make_uniform(&search, technique, &pressure, made);
        rc = search.out_of_memory ? ms_fail(err, MS_ENOMEM, "uniform plan: out of memory") : MS_OK;
        ms__search_close(&search);
    }
    ms_free(admissions);
    if (rc != MS_OK) {
        ms_plan_free(made);
        return rc;
    }
    *plan = made;
    return MS_OK;
}
