/*
 * The list of step options: names, combinations, and the step that a combination makes. Called by the search
 * and by ms_simulate(); each option is in its own file.
 */
#include "sim/step_options.h"
#include "base/units.h"

static const struct {
    const char *name, *text;
    ms_exactness exactness;
    const ms__step_option *option;
} table[] = {
#define STEP_OPTION_ROW(id, name, exactness, text) [MS_STEP_##id] = {#name, text, MS_##exactness, &ms__step_##name},
    MS_STEP_OPTION_TABLE(STEP_OPTION_ROW)
#undef STEP_OPTION_ROW
};

const char *ms_exactness_name(ms_exactness exactness)
{
    static const char *const names[] = {[MS_EXACT] = "exact", [MS_ROUNDING] = "rounding", [MS_LOSSY] = "lossy"};
    return (unsigned)exactness <= MS_LOSSY ? names[exactness] : "unknown";
}

const char *ms_step_option_name(ms_step_option option)
{
    return (unsigned)option < MS_STEP_OPTION_COUNT ? table[option].name : "unknown";
}

const char *ms_step_option_text(ms_step_option option)
{
    return (unsigned)option < MS_STEP_OPTION_COUNT ? table[option].text : "unknown option";
}

ms_exactness ms_step_option_exactness(ms_step_option option)
{
    return (unsigned)option < MS_STEP_OPTION_COUNT ? table[option].exactness : MS_LOSSY;
}

uint32_t ms__step_options_admit(const ms__step_case *facts, uint32_t *rules)
{
    uint32_t admitted = 0;
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        uint32_t rule = facts->pressure->comfortable ? (uint32_t)MS_RULE_COMFORTABLE : table[i].option->judge(facts);
        rules[i] = rule;
        if (rule == MS__STEP_ADMITTED) {
            rules[i] = facts->pressure->forced ? MS_RULE_FORCED : MS_RULE_PRESSURE;
            admitted |= 1u << i;
        }
    }
    return admitted;
}

bool ms__step_options_agree(uint32_t options)
{
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        const ms__step_option *option = table[i].option;
        bool lacks = (options & option->needs) != option->needs ||
                     (option->needs_one != 0 && (options & option->needs_one) == 0);
        bool conflicts = (options & option->excludes) != 0 || lacks;
        if ((options & 1u << i) != 0 && conflicts) {
            return false;
        }
    }
    return true;
}

static bool excludes(uint32_t option, uint32_t other)
{
    return (table[option].option->excludes & 1u << other) != 0 || (table[other].option->excludes & 1u << option) != 0;
}

uint32_t ms__step_options_toggle(uint32_t options, uint32_t option)
{
    bool turns_on = (options & 1u << option) == 0;
    uint32_t toggled = turns_on ? options | 1u << option | table[option].option->needs : options & ~(1u << option);
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        const ms__step_option *other = table[i].option;
        bool lacks = !turns_on && ((other->needs | other->needs_one) & 1u << option) != 0;
        toggled &= lacks || (turns_on && excludes(option, i)) ? ~(1u << i) : ~0u;
    }
    return toggled;
}

ms_exactness ms__step_options_exactness(uint32_t options)
{
    ms_exactness most = MS_EXACT;
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        most = (options & 1u << i) != 0 && table[i].exactness > most ? table[i].exactness : most;
    }
    return most;
}

/* Options that the optimizer applies under every plan: they are part of the step. */
static uint32_t given_options(const ms_loop *loop)
{
    return loop->gradients_released && !loop->gradients_needed ? 1u << MS_STEP_GRADIENT_RELEASE : 0;
}

static int apply_all(const ms_hardware *hardware, uint32_t options, ms__step *step)
{
    int rc = MS_OK;
    for (uint32_t k = 0; rc == MS_OK && k < 2 * MS_STEP_OPTION_COUNT; k++) {
        uint32_t i = k % MS_STEP_OPTION_COUNT;
        bool its_turn = table[i].option->goes_first == (k < MS_STEP_OPTION_COUNT);
        rc = its_turn && (options & 1u << i) != 0 ? table[i].option->apply(hardware, step) : MS_OK;
    }
    return rc;
}

static void step_discard(ms__step *step)
{
    ms_graph_free(step->graph);
    ms_free(step->released);
}

/* Adds the buffers of state that streams under every plan, and limits what the options move. */
static void begin_loop(const ms_hardware *hardware, uint64_t moved_bytes, ms_loop *loop)
{
    if (loop->state_streamed) {
        uint64_t buffers = ms_hardware_host_is_device(hardware) ? MS__STREAM_BUFFER_BYTES : MS__HOST_STREAM_BYTES;
        loop->optimizer_transient_bytes = ms__add_sat(loop->optimizer_transient_bytes, buffers);
    }
    loop->optimizer_stream_bytes = ms__moved_state_bytes(loop, moved_bytes);
}

int ms__step_sim_new(const ms_graph *graph, const ms_hardware *hardware, uint32_t options, uint64_t moved_bytes,
                     ms__sim **sim, ms_error *err)
{
    options |= given_options(&graph->loop);
    if (options == 0 && !graph->loop.state_streamed) {
        return ms__sim_new(graph, hardware, sim, err);
    }
    ms__step step = {.optimizer_ns = ms__sim_optimizer_ns(graph, hardware)};
    ms__sim *made = NULL;
    step.graph = ms_graph_copy(graph, err);
    if (step.graph != NULL) {
        begin_loop(hardware, moved_bytes, &step.graph->loop);
    }
    int rc = step.graph != NULL ? apply_all(hardware, options, &step) : MS_ENOMEM;
    if (rc != MS_OK) {
        step_discard(&step);
        return ms_fail(err, rc, "simulator: out of memory for a step of %u nodes", graph->node_count);
    }
    rc = ms__sim_new(step.graph, hardware, &made, err);
    if (rc != MS_OK) {
        step_discard(&step);
        return rc;
    }
    made->owned_graph = step.graph;
    made->released = step.released;
    made->optimizer_ns = step.optimizer_ns;
    made->state = step.state;
    made->option_bytes = step.resident_bytes;
    made->resident_bytes = ms__add_sat(made->resident_bytes, step.resident_bytes);
    for (int tier = 0; tier < MS__TIER_COUNT; tier++) {
        made->held_tier_bytes[tier] = step.tier_bytes[tier];
    }
    *sim = made;
    return MS_OK;
}
