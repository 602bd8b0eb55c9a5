/*
 * The features of a context that take replays: what the step needs if one technique treats every layer. They cost a
 * few replays of the thousands that the planner makes, and tell how the techniques compare on this graph and machine.
 */
#include <string.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "sim/step_options.h"

/* The replays of a context: one simulator, and what the rules admit. */
typedef struct uniform_case {
    const ms_graph *graph;
    const ms_admission *admissions;
    ms__sim *sim;
    uint8_t *technique; /* [node_count] */
    uint64_t kept_ns, allowed_bytes;
} uniform_case;

/* The first of the techniques in `wanted` that the node may use, from the last in the table to the first. */
static uint8_t last_admitted(const uniform_case *u, uint32_t node, uint32_t wanted)
{
    uint32_t mask = u->admissions[node].under_pressure & wanted;
    for (int technique = MS_TECHNIQUE_COUNT - 1; technique > 0; technique--) {
        bool is_selective = ms_technique_of((ms_technique)technique)->set > 0;
        bool lacks = is_selective && ms__selective_set(u->sim->nodes[node].profile, (ms_technique)technique) == NULL;
        if ((mask & 1u << technique) != 0 && !lacks) {
            return (uint8_t)technique;
        }
    }
    return MS_TECHNIQUE_KEEP;
}

/* Replays `wanted` wherever admitted. Zeros if it is admitted nowhere. */
static void add_uniform(const uniform_case *u, uint32_t wanted, uint64_t *peak_permille, uint64_t *step_permille)
{
    ms__outcome outcome;
    bool any = false;
    for (uint32_t i = 0; i < u->graph->node_count; i++) {
        u->technique[i] = last_admitted(u, i, wanted);
        any |= u->technique[i] != MS_TECHNIQUE_KEEP;
    }
    if (!any) {
        return;
    }
    ms_choices choices = {.technique = u->technique,
                          .offload_min_bytes = MS_OFFLOAD_MIN_BYTES,
                          .write_window_bytes = MS__BLIND_WINDOW_BYTES,
                          .read_window_bytes = MS__BLIND_WINDOW_BYTES};
    ms__sim_run(u->sim, &choices, &outcome, NULL);
    *peak_permille = ms__mul_div(outcome.replay.peak_bytes, 1000, ms__max_u64(u->allowed_bytes, 1));
    *step_permille = ms__mul_div(outcome.replay.step_ns, 1000, ms__max_u64(u->kept_ns, 1));
}

#define BIT_IF_SELECTIVE_STAYS(id, name, replays, rest, set, ...) \
    | ((set) > 0 && MS_REST_##rest == MS_REST_STAYS ? 1u << MS_TECHNIQUE_##id : 0u)
#define BIT_IF_RECOMPUTES(id, name, replays, rest, set, nesting, joined, moves_input, ...) \
    | ((replays) && (nesting) == 0 && !(joined) && !(moves_input) ? 1u << MS_TECHNIQUE_##id : 0u)
#define BIT_IF_MOVES(id, name, replays, rest, set, ...) \
    | (!(replays) && (set) == 0 && MS_REST_##rest != MS_REST_STAYS ? 1u << MS_TECHNIQUE_##id : 0u)
#define BIT_IF_MOVES_INPUT(id, name, replays, rest, set, nesting, joined, moves_input, ...) \
    | ((moves_input) ? 1u << MS_TECHNIQUE_##id : 0u)

static void add_replays(uniform_case *u, uint64_t *value)
{
    ms__outcome kept;
    ms_choices keep = {.technique = u->technique, .offload_min_bytes = MS_OFFLOAD_MIN_BYTES};
    ms__sim_run(u->sim, &keep, &kept, NULL);
    u->kept_ns = kept.replay.step_ns;
    value[MS_FEATURE_EVENT_COUNT] = u->sim->event_count;
    value[MS_FEATURE_FIXED_PERMILLE] = ms__mul_div(ms__sub_sat(kept.replay.peak_bytes, kept.activation_peak_bytes),
                                                   1000, ms__max_u64(u->allowed_bytes, 1));
    const struct {
        uint32_t wanted;
        ms_feature peak, step;
    } rows[] = {
        {0u MS_TECHNIQUE_TABLE(BIT_IF_SELECTIVE_STAYS), MS_FEATURE_SELECTIVE_PEAK_PERMILLE,
         MS_FEATURE_SELECTIVE_STEP_PERMILLE},
        {0u MS_TECHNIQUE_TABLE(BIT_IF_RECOMPUTES), MS_FEATURE_RECOMPUTE_PEAK_PERMILLE,
         MS_FEATURE_RECOMPUTE_STEP_PERMILLE},
        {0u MS_TECHNIQUE_TABLE(BIT_IF_MOVES), MS_FEATURE_OFFLOAD_PEAK_PERMILLE, MS_FEATURE_OFFLOAD_STEP_PERMILLE},
        {0u MS_TECHNIQUE_TABLE(BIT_IF_MOVES_INPUT), MS_FEATURE_MOVED_PEAK_PERMILLE, MS_FEATURE_MOVED_STEP_PERMILLE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        add_uniform(u, rows[i].wanted, &value[rows[i].peak], &value[rows[i].step]);
    }
}

int ms__pipeline_context(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                         const ms_pressure *pressure, ms_strategy_context *context, ms_error *err)
{
    ms_strategy widest_strategy = ms_strategy_widest();
    ms_config widest = ms_strategy_apply(&widest_strategy, config);
    ms_admission *admissions = ms_calloc(graph->node_count, sizeof *admissions);
    uniform_case u = {.graph = graph, .admissions = admissions, .allowed_bytes = pressure->allowed_bytes};
    u.technique = ms_calloc((size_t)graph->node_count + 1, 1);
    int rc = admissions != NULL && u.technique != NULL
                 ? ms_strategy_context_of(graph, hardware, config, pressure, context, err)
                 : ms_fail(err, MS_ENOMEM, "policy: out of memory for %u nodes", graph->node_count);
    if (rc == MS_OK) {
        rc = ms_rules_admit(graph, hardware, &widest, pressure, admissions, err);
    }
    if (rc == MS_OK) {
        rc = ms__sim_new(graph, hardware, &u.sim, err);
    }
    if (rc == MS_OK) {
        add_replays(&u, context->value);
        ms__sim_free(u.sim);
    }
    ms_free(u.technique);
    ms_free(admissions);
    return rc;
}
