/*
 * The check that `verify_correctness` may run: a step with everything kept, the same step under the plan, and
 * two sets of gradients to compare, all within the plan's allowed bytes. Part of the pipeline; the caller
 * retries with fewer rows until it fits.
 */
#include "base/units.h"
#include "memscale/pipeline.h"
#include "sim/sim.h"

enum { REHEARSED_MIN_BYTES = 4096 }; /* fewer rows make smaller tensors, which still move */

static ms_exactness exactness_of(const ms_plan *plan)
{
    ms_exactness found = MS_EXACT;
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        if (plan->step_options[i].chosen && ms_step_option_exactness(i) > found) {
            found = ms_step_option_exactness(i);
        }
    }
    return found;
}

int ms_pipeline_rehearse(const ms_graph *graph, const ms_hardware *hardware, ms_plan *plan, bool *fits,
                         ms_exactness *exactness, ms_error *err)
{
    if (graph->node_count == 0) {
        return ms_fail(err, MS_EINVAL, "verify: the graph has no nodes");
    }
    ms_graph careful = *graph;
    careful.loop.outputs_held = careful.loop.gradients_live_in_forward = true;
    ms_replay kept;
    int rc = ms__simulate_kept(&careful, hardware, &kept, err);
    if (rc != MS_OK) {
        return rc;
    }
    /* The gradients of the first step are held through the second, which has a slab of its own. */
    uint64_t need_bytes = ms__add_sat(kept.peak_bytes, ms__add_sat(graph->residents.trainable_bytes, plan->slab_bytes));
    *fits = need_bytes <= plan->pressure.allowed_bytes;
    *exactness = exactness_of(plan);
    plan->offload_min_bytes = ms__min_u64(plan->offload_min_bytes, REHEARSED_MIN_BYTES);
    return MS_OK;
}
