/*
 * Explanations as text: the reasons for one node's technique, and the sources of the whole plan's peak and
 * time. Called by the extension and the program; reads only the plan.
 */
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"

/* "layer h.3", "layer h.3 (call 2)", "root work 1". */
static void explain_add_node(ms__text *text, const ms_plan_entry *entry)
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
    explain_add_node(text, &plan->entries[replay->peak_node]);
}

/* "3.10 ms more" or "1.00 ms less" than the plan's step. */
static void add_difference(ms__text *text, uint64_t ns, uint64_t plan_ns)
{
    bool more = ns >= plan_ns;
    ms__text_add(text, "%s %s", ms__text_ns(more ? ns - plan_ns : plan_ns - ns).text, more ? "more" : "less");
}

static void add_runner_up(ms__text *text, const ms_plan *plan, const ms_plan_entry *entry)
{
    if (entry->runner_up == entry->technique) {
        ms__text_add(text, "  runner-up  none: no other technique is admitted here\n");
        return;
    }
    bool over = entry->runner_up_peak_bytes > plan->pressure.allowed_bytes;
    ms__text_add(text, "  runner-up  %s: the step would take %s", ms_technique_name((ms_technique)entry->runner_up),
                 ms__text_ns(entry->runner_up_ns).text);
    ms__text_add(text, ", ");
    add_difference(text, entry->runner_up_ns, plan->replay.step_ns);
    ms__text_add(text, ", and peak at %s%s\n", ms__text_bytes(entry->runner_up_peak_bytes).text,
                 over ? ", which does not fit" : "");
}

/* The decision on two-valued saved tensors, and the alternative. */
static void explain_add_packing(ms__text *text, const ms_plan *plan, const ms_plan_packing *packing)
{
    if (packing->tensors == 0) {
        return;
    }
    ms__text_add(text, "  masks      %u of %u two-valued saved tensors are bit-packed (rule %s): frees %s",
                 packing->packed, packing->tensors, ms_rule_name((ms_rule)packing->rule),
                 ms__text_bytes(packing->saved_bytes).text);
    ms__text_add(text, ", adds %s\n", ms__text_ns(packing->cost_ns).text);
    if (packing->runner_up == packing->packed) {
        return;
    }
    bool over = packing->runner_up_peak_bytes > plan->pressure.allowed_bytes;
    ms__text_add(text, "             with %s packed the step would take %s, ", packing->runner_up > 0 ? "all" : "none",
                 ms__text_ns(packing->runner_up_ns).text);
    add_difference(text, packing->runner_up_ns, plan->replay.step_ns);
    ms__text_add(text, ", and peak at %s%s\n", ms__text_bytes(packing->runner_up_peak_bytes).text,
                 over ? ", which does not fit" : "");
}

static void explain_entry(ms__text *text, const ms_plan *plan, const ms_plan_entry *entry)
{
    ms_technique technique = (ms_technique)entry->technique;
    explain_add_node(text, entry);
    ms__text_add(text, ": %s - %s\n", ms_technique_name(technique), ms_technique_of(technique)->text);
    ms__text_add(text, "  rule       %s - %s\n", ms_rule_name((ms_rule)entry->rule),
                 ms_rule_text((ms_rule)entry->rule));
    if (entry->refusal != 0) {
        ms__text_add(text, "  no rerun   %s\n", ms_rule_text((ms_rule)entry->refusal));
    }
    ms__text_add(text, "  bytes      if kept, it holds %s from forward to backward; this frees %s\n",
                 ms__text_bytes(entry->kept_bytes).text, ms__text_bytes(entry->saved_bytes).text);
    ms__text_add(text, "  time       adds %s to a step of %s\n", ms__text_ns(entry->cost_ns).text,
                 ms__text_ns(plan->replay.step_ns).text);
    add_runner_up(text, plan, entry);
    explain_add_packing(text, plan, &entry->packing);
}

/* ---- the whole plan -------------------------------------------------------------- */

enum { PARTS_SHOWN = 24 };

static void explain_add_part(ms__text *text, const ms_plan *plan, const ms_peak_part *part)
{
    ms__text_add(text, "             %10s  %s", ms__text_bytes(part->bytes).text,
                 ms_peak_kind_text((ms_peak_kind)part->kind));
    if (part->node < plan->entry_count) {
        ms__text_add(text, ", ");
        explain_add_node(text, &plan->entries[part->node]);
    }
    if (part->storages > 1) {
        ms__text_add(text, " (%u tensors)", part->storages);
    }
    ms__text_add(text, "\n");
}

/* The kind of which most bytes are left. */
static uint32_t largest_of(const uint64_t *bytes)
{
    uint32_t largest = 0;
    for (uint32_t i = 1; i < MS_PEAK_KIND_COUNT; i++) {
        largest = bytes[i] > bytes[largest] ? i : largest;
    }
    return largest;
}

/* The peak by owner: the parts of each kind together, and what must stay free beside them. */
static void explain_owners(ms__text *text, const ms_plan *plan)
{
    uint64_t bytes[MS_PEAK_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < plan->why.part_count; i++) {
        bytes[plan->why.parts[i].kind] += plan->why.parts[i].bytes;
    }
    ms__text_add(text, "  owners    ");
    const char *margin = "";
    for (uint32_t i = largest_of(bytes); bytes[i] > 0; i = largest_of(bytes)) {
        ms__text_add(text, "%s %10s  %s\n", margin, ms__text_bytes(bytes[i]).text, ms_peak_kind_text((ms_peak_kind)i));
        bytes[i] = 0;
        margin = "            ";
    }
    if (plan->reserve_bytes > 0) {
        ms__text_add(text, "%s %10s  more, for what operators and the allocator's fragments may take\n", margin,
                     ms__text_bytes(plan->reserve_bytes).text);
    }
}

static void explain_parts(ms__text *text, const ms_plan *plan)
{
    const ms_explanation *why = &plan->why;
    if (why->peak_phase != MS_PHASE_OPTIMIZER) {
        ms__text_add(text, "             at its event %u%s, made of\n", why->peak_event,
                     why->peak_again ? ", while the layer runs again" : "");
    } else {
        ms__text_add(text, "             made of\n");
    }
    uint64_t rest = 0;
    for (uint32_t i = 0; i < why->part_count; i++) {
        if (i < PARTS_SHOWN) {
            explain_add_part(text, plan, &why->parts[i]);
        } else {
            rest = ms__add_sat(rest, why->parts[i].bytes);
        }
    }
    if (why->part_count > PARTS_SHOWN) {
        ms__text_add(text, "             %10s  %u more\n", ms__text_bytes(rest).text, why->part_count - PARTS_SHOWN);
    }
}

/* "3.1%" by which a is above b. */
static void add_percent_above(ms__text *text, uint64_t a, uint64_t b)
{
    uint64_t permille = ms__mul_div(ms__sub_sat(a, b), 1000, ms__max_u64(b, 1));
    ms__text_add(text, "%llu.%llu%%", (unsigned long long)(permille / 10), (unsigned long long)(permille % 10));
}

static void add_neighbour(ms__text *text, const ms_plan *plan, const ms_neighbour *neighbour)
{
    ms__text_add(text, "%s, gives a step of", ms__text_bytes(neighbour->budget_bytes).text);
    ms__text_add(text, " %s, ", ms__text_ns(neighbour->step_ns).text);
    add_difference(text, neighbour->step_ns, plan->replay.step_ns);
    ms__text_add(text, ", peak %s\n", ms__text_bytes(neighbour->peak_bytes).text);
}

/* The lower bound of the step time. */
static void explain_gap(ms__text *text, const ms_plan *plan)
{
    const ms_explanation *why = &plan->why;
    if (why->lower_bound_ns > 0) {
        ms__text_add(text, "             no plan that fits takes less than %s; this one is ",
                     ms__text_ns(why->lower_bound_ns).text);
        add_percent_above(text, plan->replay.step_ns, why->lower_bound_ns);
        ms__text_add(text, " above\n");
    }
}

static void explain_neighbours(ms__text *text, const ms_plan *plan)
{
    const ms_neighbour *gigabyte = &plan->why.gigabyte;
    if (gigabyte->budget_bytes > 0 && gigabyte->step_ns >= plan->replay.step_ns) {
        ms__text_add(text, "             1 GB more would not make the step faster\n");
    } else if (gigabyte->budget_bytes > 0) {
        ms__text_add(text, "             1 GB more, ");
        add_neighbour(text, plan, gigabyte);
    }
    if (plan->why.larger.budget_bytes > 0) {
        ms__text_add(text, "             the next larger budget, ");
        add_neighbour(text, plan, &plan->why.larger);
    }
    if (plan->why.smaller.budget_bytes > 0) {
        ms__text_add(text, "             the next smaller budget, ");
        add_neighbour(text, plan, &plan->why.smaller);
    }
}

static void explain_times(ms__text *text, const ms_plan *plan)
{
    const ms_replay *replay = &plan->replay;
    ms__text_add(text, "  time       %s: %s of work", ms__text_ns(replay->step_ns).text,
                 ms__text_ns(replay->compute_ns).text);
    ms__text_add(text, ", %s of recompute", ms__text_ns(replay->recompute_ns).text);
    ms__text_add(text, ", forward waits %s and backward %s for transfers", ms__text_ns(replay->stall_forward_ns).text,
                 ms__text_ns(replay->stall_backward_ns).text);
    ms__text_add(text, "; %s of it is first touches of pages\n", ms__text_ns(replay->fault_ns).text);
    ms__text_add(text, "             unoptimized: %s\n", ms__text_ns(plan->unoptimized.step_ns).text);
    explain_gap(text, plan);
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
    explain_neighbours(text, plan);
    ms__text_add(text, "  loop       planned for one that %s and has %s gradients in forward\n",
                 plan->assumed_outputs_held ? "holds the model's outputs through backward"
                                            : "drops the model's outputs before backward",
                 plan->assumed_gradients_live ? "live" : "no");
}

static bool was_admitted(const ms_plan_option *option)
{
    return option->chosen || option->rule == MS_RULE_PRESSURE || option->rule == MS_RULE_FORCED;
}

static void explain_option(ms__text *text, const ms_plan *plan, ms_step_option which)
{
    const ms_plan_option *option = &plan->step_options[which];
    ms__text_add(text, "  option     ");
    ms__plan_add_option(text, plan, which);
    ms__text_add(text, " is %s: ", option->chosen ? "on" : "off");
    if (!was_admitted(option)) {
        ms__text_add(text, "%s - %s\n", ms_rule_name((ms_rule)option->rule), ms_rule_text((ms_rule)option->rule));
        return;
    }
    bool gains = option->gain_ns > 0;
    ms__text_add(text, "%s (%s; rule %s)\n", ms_step_option_text(which),
                 ms_exactness_name(ms_step_option_exactness(which)), ms_rule_name((ms_rule)option->rule));
    ms__text_add(text, "             %s %s of the peak", option->chosen ? "it frees" : "it would free",
                 ms__text_bytes(option->saved_bytes).text);
    ms__text_add(text, " and %s%s %s %s the step\n", gains ? "take" : "add", option->chosen ? "s" : "",
                 ms__text_ns(gains ? option->gain_ns : option->cost_ns).text, gains ? "off" : "to");
}

static void explain_options(ms__text *text, const ms_plan *plan)
{
    for (int i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        explain_option(text, plan, (ms_step_option)i);
    }
}

static void explain_packing(ms__text *text, const ms_plan *plan)
{
    uint32_t tensors;
    (void)ms__plan_packed(plan, &tensors);
    if (tensors > 0) {
        ms__plan_add_packed(text, "  masks      ", plan);
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
    ms__text_add(text, "\n");
    if (plan->why.known) {
        explain_parts(text, plan);
    }
    ms__text_add(text, "             unoptimized: %s ", ms__text_bytes(plan->unoptimized.peak_bytes).text);
    add_place(text, plan, &plan->unoptimized);
    ms__text_add(text, "\n");
    if (plan->why.known) {
        explain_owners(text, plan);
    }
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
    explain_packing(text, plan);
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
        ms__text_add(&text, "the plan has %u entries; number %lld does not exist\n", plan->entry_count,
                     (long long)entry);
    }
    return ms__text_take(&text);
}
