/* The process of pipeline_fixture.h. */
#include "pipeline_fixture.h"

#include "sim/sim.h"

ms_plan *pipeline_plan(pipeline *f)
{
    ms_error err;
    ms_plan *plan;
    assert_ms_ok(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), err);
    return plan;
}

/* The largest live + cached maps in a step that takes its plan's expected bytes. */
uint64_t pipeline_held(const pipeline *f)
{
    const ms_process *process = &f->hardware->process;
    uint64_t beside = process->baseline_bytes + process->scratch_bytes - process->reserve_bytes;
    beside += ms__slab_expected(f->plan->slab_bytes, f->plan->offload_min_bytes);
    return f->plan->replay.peak_bytes - beside - f->plan->replay.small_peak_bytes - f->graph->residents.batch_bytes;
}

/* A wrapped process: 1 GB before the first step, and a budget that binds. */
int pipeline_open(void **state)
{
    pipeline *f = calloc(1, sizeof *f);
    f->graph = fixture_graph(0);
    f->hardware = fixture_real_hardware();
    f->hardware->process.baseline_bytes = 1000 * MIB;
    f->hardware->process.scratch_bytes = 100 * MIB;
    ms_config_default(&f->config);
    f->config.memory_budget_bytes = 5000 * MIB;
    f->plan = pipeline_plan(f);
    /* A step that went exactly as planned. */
    f->seen = (ms_observation){.peak_bytes = f->plan->replay.peak_bytes,
                               .peak_held_bytes = pipeline_held(f),
                               .resident_bytes = MS_UNSET,
                               .held_bytes = MS_UNSET,
                               .step_ns = f->plan->replay.step_ns,
                               .optimizer_state_bytes = f->graph->loop.optimizer_state_bytes,
                               .loop_seen = true,
                               .step = 5};
    *state = f;
    return 0;
}

int pipeline_close(void **state)
{
    pipeline *f = *state;
    ms_graph_free(f->graph);
    ms_free(f->hardware);
    ms_plan_free(f->plan);
    free(f);
    return 0;
}

void pipeline_replan(pipeline *f)
{
    ms_plan_free(f->plan);
    f->plan = pipeline_plan(f);
}

/* Makes the outputs so large that they matter, as returned logits are. */
void pipeline_return_logits(pipeline *f)
{
    for (uint32_t i = 0; i < f->graph->storage_count; i++) {
        if (f->graph->storages[i].role == MS_STORAGE_OUTPUT) {
            f->graph->storages[i].bytes = 400 * MIB;
        }
    }
    f->graph->profiles[2].storage_bytes[2] = 400 * MIB;
    f->graph->loop.observed = false;
}
