/*
 * The plan in a few lines. Called by the extension and the program; its numbers are the plan's, and only
 * ratios are computed here.
 */
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"

void ms__plan_add_machine(ms__text *text, const ms_hardware *hardware)
{
    uint64_t device_bytes = ms_hardware_device_bytes(hardware);
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    const char *name = gpu != NULL ? gpu->name : hardware->cpu.name;
    ms__text_add(text, "%s, %u CPUs, %s", name, hardware->cpu.usable_cpus, ms__text_bytes(device_bytes).text);
    if (hardware->disk.dir[0] != '\0' && hardware->disk.refusal[0] == '\0') {
        ms__text_add(text, "; disk %s/s down", ms__text_bytes(hardware->disk.write_bytes_per_s).text);
        ms__text_add(text, ", %s/s back", ms__text_bytes(hardware->disk.read_bytes_per_s).text);
    } else {
        ms__text_add(text, "; no disk tier");
    }
}

static void add_pressure(ms__text *text, const ms_plan *plan)
{
    const ms_pressure *pressure = &plan->pressure;
    ms__text_add(text, "  need        %s with everything kept\n", ms__text_bytes(pressure->need_bytes).text);
    ms__text_add(text, "  %s%s%s\n", pressure->budget_given ? "budget      " : "target      ",
                 ms__text_bytes(pressure->allowed_bytes).text,
                 pressure->budget_given ? "" : " (share of the device; no budget was given)");
    ms__text_add(text, "  pressure    %llu.%02llu%s%s\n", (unsigned long long)(pressure->permille / 1000),
                 (unsigned long long)(pressure->permille % 1000 / 10),
                 pressure->comfortable ? ", a comfortable fit" : "",
                 pressure->forced ? ", forced to the smallest peak" : "");
}

/* Whether no node holds bytes between forward and backward. */
static bool holds_nothing(const ms_plan *plan)
{
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        if (plan->entries[i].kept_bytes > 0) {
            return false;
        }
    }
    return plan->entry_count > 0;
}

static void table_add_layers(ms__text *text, const ms_plan *plan)
{
    uint32_t counts[MS_TECHNIQUE_COUNT];
    bool any = false;
    ms__plan_count(plan, counts);
    ms__text_add(text, "  layers      ");
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        if (counts[i] > 0) {
            ms__text_add(text, "%s%u %s", any ? ", " : "", counts[i], ms_technique_name((ms_technique)i));
            any = true;
        }
    }
    if (holds_nothing(plan)) {
        ms__text_add(text, "%snothing to plan: no layer holds anything between forward and backward\n",
                     any ? "; " : "");
        return;
    }
    ms__text_add(text, any ? "\n" : "none known yet: %s\n", ms_technique_name((ms_technique)plan->fallback));
}

/* Whether an option is on and shows in the peak or in the time. */
static bool has_effect(const ms_plan_option *option)
{
    return option->chosen && (option->saved_bytes > 0 || option->gain_ns > 0);
}

void ms__plan_add_option(ms__text *text, const ms_plan *plan, ms_step_option which)
{
    ms__text_add(text, "%s", ms_step_option_name(which));
    if (plan->step_options[which].chosen && (MS__STATE_MOVES & 1u << which) != 0 && plan->state_moved_bytes > 0) {
        ms__text_add(text, " (%s of it)", ms__text_bytes(plan->state_moved_bytes).text);
    }
}

/* The chosen step options, each with its bytes and time. */
static void add_options(ms__text *text, const ms_plan *plan)
{
    bool any = false;
    for (int i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        const ms_plan_option *option = &plan->step_options[i];
        if (!has_effect(option)) {
            continue;
        }
        ms__text_add(text, any ? "; " : "  options     ");
        ms__plan_add_option(text, plan, (ms_step_option)i);
        ms__text_add(text, ":");
        if (option->saved_bytes > 0) {
            ms__text_add(text, " frees %s,", ms__text_bytes(option->saved_bytes).text);
        }
        ms__text_add(text, option->gain_ns > 0 ? " gains %s" : " costs %s",
                     ms__text_ns(option->gain_ns > 0 ? option->gain_ns : option->cost_ns).text);
        any = true;
    }
    ms__text_add(text, any ? "\n" : "");
}

void ms__plan_add_packed(ms__text *text, const char *label, const ms_plan *plan)
{
    uint32_t tensors, packed = ms__plan_packed(plan, &tensors);
    ms__text_add(text, "%s%u of %u two-valued saved tensors are bit-packed: %s of masks", label, packed, tensors,
                 ms__text_bytes(plan->replay.packed_bytes).text);
    ms__text_add(text, ", in %s a step\n", ms__text_ns(plan->replay.packing_ns).text);
}

static void table_add_packing(ms__text *text, const ms_plan *plan)
{
    uint32_t tensors;
    if (ms__plan_packed(plan, &tensors) > 0) {
        ms__plan_add_packed(text, "  masks       ", plan);
    }
}

/* The step time against the unoptimized one, in percent with a sign. */
static void add_ratio(ms__text *text, uint64_t step_ns, uint64_t base_ns)
{
    if (base_ns == 0) {
        return;
    }
    uint64_t permille = ms__mul_div(step_ns, 1000, base_ns);
    uint64_t off = permille >= 1000 ? permille - 1000 : 1000 - permille;
    ms__text_add(text, " (%c%llu.%llu%% against unoptimized)", permille >= 1000 ? '+' : '-',
                 (unsigned long long)(off / 10), (unsigned long long)(off % 10));
}

static const char *peak_remark(const ms_plan *plan)
{
    if (plan->over_target && !plan->pressure.budget_given) {
        return "; over the target: no plan is smaller";
    }
    if (plan->over_target) {
        bool alone = plan->replay.peak_bytes > plan->pressure.allowed_bytes;
        return alone ? "; over the budget: no plan is smaller"
                     : "; with the reserve over the budget: no plan is smaller";
    }
    bool above = plan->pressure.forced && plan->replay.peak_bytes > plan->unoptimized.peak_bytes;
    return above ? "; above everything kept: the buffer to move tensors takes more than they free" : "";
}

/* Up to which need a run is left alone, and what it would give not to. */
static void add_skip(ms__text *text, const ms_plan *plan)
{
    ms__text_add(text, "  %s, up to a need of %d%% of the %s\n", ms_rule_text(MS_RULE_COMFORTABLE),
                 MS_COMFORTABLE_PERMILLE / 10, plan->pressure.budget_given ? "budget" : "target");
    if (plan->why.forced.budget_bytes > 0) {
        ms__text_add(text, "  force_optimize=True would give a peak of %s in a step of ",
                     ms__text_bytes(plan->why.forced.peak_bytes).text);
        ms__text_add(text, "%s", ms__text_ns(plan->why.forced.step_ns).text);
        add_ratio(text, plan->why.forced.step_ns, plan->unoptimized.step_ns);
        ms__text_add(text, "\n");
    }
}

/* Says what the loop must free. A plan for a loop that frees nothing needs no such line. */
static void add_loop(ms__text *text, const ms_plan *plan)
{
    if (plan->entry_count > 0 && !plan->skipped && !plan->assumed_gradients_live) {
        ms__text_add(text, "  loop        must free %sgradients before the next forward, or the peak is higher\n",
                     plan->assumed_outputs_held ? "" : "outputs before backward and ");
    }
}

char *ms_plan_table(const ms_plan *plan, const ms_hardware *hardware)
{
    ms__text text = {0};
    ms__text_add(&text, "memscale plan for %s%s%s\n", plan->model[0] != '\0' ? plan->model : "a model not yet profiled",
                 plan->signature[0] != '\0' ? ", " : "", plan->signature);
    if (hardware != NULL) {
        ms__text_add(&text, "  machine     ");
        ms__plan_add_machine(&text, hardware);
        ms__text_add(&text, "\n");
    }
    if (plan->entry_count > 0) {
        add_pressure(&text, plan);
    }
    table_add_layers(&text, plan);
    add_options(&text, plan);
    table_add_packing(&text, plan);
    if (plan->entry_count > 0) {
        ms__text_add(&text, "  peak        %s predicted, tensors %s of it%s\n",
                     ms__text_bytes(plan->replay.peak_bytes).text, ms__text_bytes(plan->replay.peak_live_bytes).text,
                     peak_remark(plan));
        if (plan->reserve_bytes > 0) {
            ms__text_add(&text, "  reserve     %s more stay free, in case operators take more than expected\n",
                         ms__text_bytes(plan->reserve_bytes).text);
        }
        ms__text_add(&text, "  step        %s predicted",
                     ms__text_ns(ms_hardware_at_pace(hardware, plan->replay.step_ns)).text);
        add_ratio(&text, plan->replay.step_ns, plan->unoptimized.step_ns);
        if (hardware != NULL && hardware->pace_permille != 0) {
            ms__text_add(&text, ", as steps here take %llu.%02llu times as long as predicted for an idle machine",
                         (unsigned long long)(hardware->pace_permille / 1000),
                         (unsigned long long)(hardware->pace_permille % 1000 / 10));
        }
        ms__text_add(&text, "\n");
    }
    add_loop(&text, plan);
    if (plan->step_options[MS_STEP_EXACT_LOSS_HEAD].rule == MS_RULE_LOSS_OUTSIDE) {
        ms__text_add(&text, "  loss        %s\n", ms_rule_text(MS_RULE_LOSS_OUTSIDE));
    }
    if (plan->skipped) {
        add_skip(&text, plan);
    }
    return ms__text_take(&text);
}
