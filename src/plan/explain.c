/*
 * Explanations: why one node is treated as it is, and where the whole plan's peak and
 * time come from. Called by the extension and the program; reads only the plan.
 */
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"
#include "plan/text.h"

/* "layer h.3", "layer h.3 (call 2)", "root work 1". */
static void add_node(ms__text *text, const ms_plan_entry *entry)
{
    if (entry->name[0] == '\0') {
        ms__text_add(text, "root work %u (node %u)", entry->call, entry->node);
    } else if (entry->call == 0) {
        ms__text_add(text, "layer %s", entry->name);
    } else {
        ms__text_add(text, "layer %s (call %u)", entry->name, entry->call + 1);
    }
}

static void add_place(ms__text *text, const ms_plan *plan, const ms_replay *replay)
{
    if (replay->peak_node >= plan->entry_count) {
        ms__text_add(text, "in the optimizer");
        return;
    }
    ms__text_add(text, "in the %s of ", replay->peak_in_backward ? "backward" : "forward");
    add_node(text, &plan->entries[replay->peak_node]);
}

static void add_runner_up(ms__text *text, const ms_plan *plan, const ms_plan_entry *entry)
{
    if (entry->runner_up == entry->technique) {
        ms__text_add(text, "  runner-up  none: nothing else is admitted here\n");
        return;
    }
    bool over = entry->runner_up_peak_bytes > plan->pressure.allowed_bytes;
    ms__text_add(text, "  runner-up  %s: the step would take %s", ms_technique_name((ms_technique)entry->runner_up),
                 ms__text_ns(entry->runner_up_ns).text);
    ms__text_add(text, " and peak at %s%s\n", ms__text_bytes(entry->runner_up_peak_bytes).text,
                 over ? ", which does not fit" : "");
}

static void explain_entry(ms__text *text, const ms_plan *plan, const ms_plan_entry *entry)
{
    ms_technique technique = (ms_technique)entry->technique;
    add_node(text, entry);
    ms__text_add(text, ": %s - %s\n", ms_technique_name(technique), ms_technique_text(technique));
    ms__text_add(text, "  rule       %s - %s\n", ms_rule_name((ms_rule)entry->rule), ms_rule_text((ms_rule)entry->rule));
    ms__text_add(text, "  bytes      kept it would hold %s from forward to backward; this frees %s\n",
                 ms__text_bytes(entry->kept_bytes).text, ms__text_bytes(entry->saved_bytes).text);
    ms__text_add(text, "  time       adds %s to a step of %s\n", ms__text_ns(entry->cost_ns).text,
                 ms__text_ns(plan->replay.step_ns).text);
    add_runner_up(text, plan, entry);
}

static void explain_times(ms__text *text, const ms_plan *plan)
{
    const ms_replay *replay = &plan->replay;
    ms__text_add(text, "  time       %s: %s of work", ms__text_ns(replay->step_ns).text,
                 ms__text_ns(replay->compute_ns).text);
    ms__text_add(text, ", %s run again", ms__text_ns(replay->recompute_ns).text);
    ms__text_add(text, ", %s waiting for writes, %s waiting for reads", ms__text_ns(replay->stall_forward_ns).text,
                 ms__text_ns(replay->stall_backward_ns).text);
    ms__text_add(text, "; %s of it is pages touched for the first time\n", ms__text_ns(replay->fault_ns).text);
    ms__text_add(text, "             unoptimized: %s\n", ms__text_ns(plan->unoptimized.step_ns).text);
}

static void explain_budget(ms__text *text, const ms_plan *plan)
{
    const ms_pressure *pressure = &plan->pressure;
    ms__text_add(text, "  budget     %s %s; everything kept needs %s", pressure->budget_given ? "given" : "target",
                 ms__text_bytes(pressure->allowed_bytes).text, ms__text_bytes(pressure->need_bytes).text);
    if (plan->smallest_budget_bytes > 0) {
        ms__text_add(text, ", the smallest that fits is %s", ms__text_bytes(plan->smallest_budget_bytes).text);
    }
    ms__text_add(text, "\n");
    if (plan->replay.step_ns > plan->unoptimized.step_ns) {
        ms__text_add(text, "             a larger budget would buy back up to %s a step\n",
                     ms__text_ns(plan->replay.step_ns - plan->unoptimized.step_ns).text);
    }
    ms__text_add(text, "  loop       planned for one that %s and has %s gradients in forward\n",
                 plan->assumed_outputs_held ? "holds the model's outputs through backward"
                                            : "drops the model's outputs before backward",
                 plan->assumed_gradients_live ? "live" : "no");
}

static bool was_admitted(const ms_plan_option *option)
{
    return option->chosen || option->rule == MS_RULE_PRESSURE || option->rule == MS_RULE_FORCED;
}

static void explain_option(ms__text *text, ms_step_option which, const ms_plan_option *option)
{
    ms__text_add(text, "  option     %s is %s: ", ms_step_option_name(which), option->chosen ? "on" : "off");
    if (!was_admitted(option)) {
        ms__text_add(text, "%s - %s\n", ms_rule_name((ms_rule)option->rule), ms_rule_text((ms_rule)option->rule));
        return;
    }
    bool gains = option->gain_ns > 0;
    ms__text_add(text, "%s (%s; rule %s)\n", ms_step_option_text(which),
                 ms_exactness_name(ms_step_option_exactness(which)), ms_rule_name((ms_rule)option->rule));
    ms__text_add(text, "             %s %s of the peak", option->chosen ? "it frees" : "it would free",
                 ms__text_bytes(option->saved_bytes).text);
    ms__text_add(text, " and %s %s %s the step\n", gains ? "take" : "add",
                 ms__text_ns(gains ? option->gain_ns : option->cost_ns).text, gains ? "off" : "to");
}

static void explain_options(ms__text *text, const ms_plan *plan)
{
    for (int i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        explain_option(text, (ms_step_option)i, &plan->step_options[i]);
    }
}

static void explain_plan(ms__text *text, const ms_plan *plan)
{
    uint32_t counts[MS_TECHNIQUE_COUNT];
    ms__plan_count(plan, counts);
    ms__text_add(text, "plan for %s\n", plan->model);
    ms__text_add(text, "  peak       %s, of which tensors at most %s ", ms__text_bytes(plan->replay.peak_bytes).text,
                 ms__text_bytes(plan->replay.peak_live_bytes).text);
    add_place(text, plan, &plan->replay);
    ms__text_add(text, "\n             unoptimized: %s ", ms__text_bytes(plan->unoptimized.peak_bytes).text);
    add_place(text, plan, &plan->unoptimized);
    ms__text_add(text, "\n");
    explain_times(text, plan);
    explain_budget(text, plan);
    ms__text_add(text, "  layers    ");
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        if (counts[i] > 0) {
            ms__text_add(text, " %u %s", counts[i], ms_technique_name((ms_technique)i));
        }
    }
    ms__text_add(text, "\n");
    explain_options(text, plan);
    ms__text_add(text, "  moved      %s a step", ms__text_bytes(plan->replay.moved_bytes).text);
    ms__text_add(text, ", at most %s on disk and %s in host memory\n",
                 ms__text_bytes(plan->replay.tier_peak_bytes[MS__DISK_TIER]).text,
                 ms__text_bytes(plan->replay.tier_peak_bytes[MS__HOST_TIER]).text);
    ms__text_add(text, "  decided by %s\n", plan->decision_source);
}

char *ms_plan_explain(const ms_plan *plan, int64_t entry)
{
    ms__text text = {0};
    if (entry < 0) {
        explain_plan(&text, plan);
    } else if ((uint64_t)entry < plan->entry_count) {
        explain_entry(&text, plan, &plan->entries[entry]);
    } else {
        ms__text_add(&text, "the plan has %u entries; there is no number %lld\n", plan->entry_count, (long long)entry);
    }
    return ms__text_take(&text);
}
