/*
 * Corrections from a finished step: its peak and time against the plan's, the loop and the optimizer against
 * the assumptions. Part of the pipeline; the caller plans again if told to. A pure function of its documents,
 * so a new plan can be reproduced.
 */
#include <stdio.h>

#include "base/units.h"
#include "memscale/pipeline.h"
#include "sim/process.h"
#include "sim/sim.h"

enum {
    FAR_PERMILLE = 10,        /* a peak this far over the budget gets a warning */
    PEAK_PERMILLE = 50,       /* a peak further above the allowed one causes a correction */
    EXPECTED_PERMILLE = 10,   /* expected scratch is corrected if further off than this */
    TIME_PERMILLE = 50,       /* the same for time, if it can change a choice */
    LATE_TIME_PERMILLE = 150, /* after the first steps: worth a new plan */
    PACE_PERMILLE = 150,      /* if times are this far off, predictions are given at another pace */
    FIRST_TIME_STEP = 3,      /* caches are warm by then */
    LATE_TIME_STEP = 8,
    SETTLED_PLAN_STEPS = 2,   /* the first step under a new plan faults in new memory */
    FIRST_SHRINK_STEP = 3,
    SHRINK_PERMILLE = 20,     /* less than this part of the peak is not worth a new plan */
    SHRINK_MARGIN_BYTES = 16 << 20,
    STATE_PERMILLE = 10,
    MOST_PLANS = 3
};

/* A shorter step's time is not compared in the log: other work on the machine takes as long as the step. */
static const uint64_t compared_step_ns = 200000000;

static const struct {
    const char *name, *text;
} drifts[] = {
    [MS_DRIFT_NONE] = {"none", "as planned"},
    [MS_DRIFT_LOOP] = {"loop", "the training loop holds other tensors than assumed"},
    [MS_DRIFT_OPTIMIZER] = {"optimizer", "the optimizer's state or its use of gradients differs from the assumption"},
    [MS_DRIFT_PEAK] = {"peak", "the peak differs from the prediction"},
    [MS_DRIFT_TIME] = {"time", "the step time differs from the prediction"},
    [MS_DRIFT_RESERVE] = {"reserve", "operators take more or less memory than assumed"},
};

const char *ms_drift_name(ms_drift drift)
{
    return (unsigned)drift <= MS_DRIFT_RESERVE ? drifts[drift].name : "unknown";
}

const char *ms_drift_text(ms_drift drift)
{
    return (unsigned)drift <= MS_DRIFT_RESERVE ? drifts[drift].text : "unknown";
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static bool off_by(uint64_t measured, uint64_t predicted, uint64_t permille)
{
    return distance(measured, predicted) > ms__mul_div(predicted, permille, 1000);
}

/* Steps at which a number may be lowered: the first, then 8, 16, 32 ... */
static bool is_rare_step(uint32_t step, uint32_t first)
{
    return step == first || (step > first && step >= 8 && (step & (step - 1)) == 0);
}

/* ---- the loop and the optimizer --------------------------------------------------- */

static bool correct_loop(ms_loop *loop, const ms_plan *plan, const ms_observation *seen)
{
    if (!seen->loop_seen) {
        return false;
    }
    if (loop->observed) {
        bool live = seen->gradients_live_in_forward;
        bool other = (seen->outputs_held && !loop->outputs_held) || (live && !loop->gradients_live_in_forward) ||
                     (live && seen->gradients_cleared != loop->gradients_cleared);
        loop->outputs_held |= seen->outputs_held;
        loop->gradients_live_in_forward |= live;
        loop->gradients_cleared = live ? seen->gradients_cleared : loop->gradients_cleared;
        return other;
    }
    loop->observed = true;
    loop->outputs_held = seen->outputs_held;
    loop->gradients_live_in_forward = seen->gradients_live_in_forward;
    loop->gradients_cleared = seen->gradients_live_in_forward && seen->gradients_cleared;
    /* Accumulated gradients are replayed differently from gradients that only live in forward. */
    return seen->outputs_held != plan->assumed_outputs_held ||
           seen->gradients_live_in_forward != plan->assumed_gradients_live || ms__sim_accumulates(loop);
}

static bool correct_release(ms_loop *loop, const ms_observation *seen)
{
    bool is_new = seen->gradients_released && !loop->gradients_released;
    bool needed = seen->gradients_needed && !loop->gradients_needed;
    loop->gradients_released |= is_new;
    loop->gradients_needed |= needed;
    return is_new || needed;
}

static bool correct_state(ms_loop *loop, const ms_observation *seen)
{
    uint64_t state = seen->optimizer_state_bytes;
    if (state == MS_UNSET || distance(state, loop->optimizer_state_bytes) <= ((uint64_t)1 << 20)) {
        return false;
    }
    if (!off_by(state, loop->optimizer_state_bytes, STATE_PERMILLE)) {
        return false;
    }
    loop->optimizer_state_bytes = state;
    return true;
}

/* ---- the peak ------------------------------------------------------------------------ */

static uint64_t predicted_peak(const ms_plan *plan, const ms_observation *seen)
{
    return seen->step <= 1 ? plan->replay.first_step_peak_bytes : plan->replay.peak_bytes;
}

/* The same with the plan's reserve. */
static uint64_t allowed_peak(const ms_plan *plan, const ms_observation *seen)
{
    return ms__add_sat(predicted_peak(plan, seen), plan->reserve_bytes);
}

/* The process's memory besides its baseline, hostmem's maps, the batch, a used slab and small tensors,
 * which the replay counts; MS_UNSET if unknown. */
static uint64_t measured_scratch(const ms_graph *graph, const ms_hardware *hardware, const ms_plan *plan,
                                 const ms_observation *seen)
{
    if (seen->peak_held_bytes == MS_UNSET || hardware->process.baseline_bytes == 0 ||
        !ms_hardware_host_is_device(hardware)) {
        return MS_UNSET;
    }
    uint64_t counted_twice = seen->baseline_held_bytes == MS_UNSET ? 0 : seen->baseline_held_bytes;
    uint64_t held = ms__sub_sat(seen->peak_held_bytes, counted_twice);
    uint64_t known = ms__add_sat(hardware->process.baseline_bytes, held);
    uint64_t slab = ms__slab_expected(plan->slab_bytes, plan->offload_min_bytes);
    known = ms__add_sat(known, ms__add_sat(slab, plan->replay.small_peak_bytes));
    known = ms__add_sat(known, graph->residents.batch_bytes);
    return ms__sub_sat(seen->peak_bytes, known);
}

static bool grow_scratch(const ms_graph *graph, ms_hardware *hardware, const ms_plan *plan, const ms_observation *seen)
{
    uint64_t allowed = allowed_peak(plan, seen);
    bool over_budget = ms_pipeline_overrun(plan, seen) != MS_OVERRUN_NONE;
    /* Under a budget the excess may be cached maps of other shapes, which the cache gives up. */
    bool over_plan =
        !plan->pressure.budget_given && seen->peak_bytes > allowed && off_by(seen->peak_bytes, allowed, PEAK_PERMILLE);
    if (!over_budget && !over_plan) {
        return false;
    }
    uint64_t scratch = ms__process_scratch(&hardware->process, graph);
    uint64_t missing =
        ms__sub_sat(seen->peak_bytes, over_budget ? ms__min_u64(allowed, plan->pressure.allowed_bytes) : allowed);
    uint64_t measured = measured_scratch(graph, hardware, plan, seen);
    /* The missing bytes were added when the next plan was refused. Adding them at every step would name
     * ever larger budgets. */
    uint64_t wanted = seen->replan_refused ? scratch : ms__add_sat(scratch, missing);
    wanted = measured == MS_UNSET ? wanted : ms__max_u64(measured, wanted);
    if (seen->replan_refused && !off_by(wanted, scratch, EXPECTED_PERMILLE)) {
        return false;
    }
    ms__process_measured(&hardware->process, graph, wanted, measured);
    return true;
}

/* If the loop differs from the assumption, the predicted peak is void. The process's memory besides its
 * tensors, once measured, holds in any loop. */
static void raise_scratch(const ms_graph *graph, ms_hardware *hardware, const ms_plan *plan, const ms_observation *seen)
{
    uint64_t measured = seen->peak_bytes != MS_UNSET ? measured_scratch(graph, hardware, plan, seen) : MS_UNSET;
    if (measured != MS_UNSET) {
        uint64_t scratch = ms__process_scratch(&hardware->process, graph);
        ms__process_measured(&hardware->process, graph, ms__max_u64(scratch, measured), measured);
    }
}

/* Shrinks scratch only by its measured excess: a peak below the prediction may also come from a cache with
 * nothing to keep. */
static bool shrink_scratch(const ms_graph *graph, ms_hardware *hardware, const ms_plan *plan,
                           const ms_observation *seen)
{
    ms_process *process = &hardware->process;
    uint64_t scratch = ms__process_scratch(process, graph);
    uint64_t allowed = allowed_peak(plan, seen);
    if (plan->skipped || !is_rare_step(seen->step, FIRST_SHRINK_STEP) || seen->peak_bytes >= allowed) {
        return false;
    }
    uint64_t measured = measured_scratch(graph, hardware, plan, seen);
    uint64_t known = measured == MS_UNSET ? ms__sub_sat(scratch, allowed - seen->peak_bytes) : measured;
    /* The margin is for the next step, and for a plan of other techniques, which takes other memory
     * besides its tensors. */
    uint64_t wanted = ms__add_sat(known, known / 2 + SHRINK_MARGIN_BYTES);
    uint64_t shrinks = ms__sub_sat(scratch, wanted);
    uint64_t expected = ms__sub_sat(scratch, ms__process_reserve(process, graph));
    bool smaller = shrinks > ms__mul_div(allowed, SHRINK_PERMILLE, 1000);
    bool other = measured != MS_UNSET && distance(measured, expected) > ms__mul_div(allowed, EXPECTED_PERMILLE, 1000);
    if (!smaller && !other) {
        return false;
    }
    ms__process_measured(process, graph, smaller ? wanted : ms__max_u64(scratch, known), known);
    return true;
}

/* ---- time ------------------------------------------------------------------------------ */

static bool plan_moves(const ms_plan *plan)
{
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        uint32_t technique = plan->entries[i].technique;
        if (ms_technique_moves((ms_technique)technique)) {
            return true;
        }
    }
    return false;
}

static uint32_t timed_step(const ms_observation *seen)
{
    return (uint32_t)ms__sub_sat(seen->step, seen->time_lag);
}

/* Early: once for each plan, after its memory is faulted in. Later: at rare steps. */
static bool time_is_early(const ms_observation *seen)
{
    uint32_t step = timed_step(seen), plan_steps = (uint32_t)ms__sub_sat(seen->plan_steps, seen->time_lag);
    return step < LATE_TIME_STEP && plan_steps >= SETTLED_PLAN_STEPS &&
           (step == FIRST_TIME_STEP || (step > FIRST_TIME_STEP && plan_steps == SETTLED_PLAN_STEPS));
}

/* The scale of compute matters only if there are transfers, which do not scale with it. */
static bool correct_time(ms_hardware *hardware, const ms_plan *plan, const ms_observation *seen)
{
    uint64_t stalls = ms__add_sat(plan->replay.stall_forward_ns, plan->replay.stall_backward_ns);
    bool early = time_is_early(seen);
    uint64_t permille = early ? TIME_PERMILLE : LATE_TIME_PERMILLE;
    uint32_t step = timed_step(seen);
    bool due = early || (step >= LATE_TIME_STEP && is_rare_step(step, LATE_TIME_STEP));
    if (plan->skipped || !due || seen->step_ns == MS_UNSET || seen->step_ns == 0 || plan->replay.step_ns <= stalls ||
        !plan_moves(plan) || !off_by(seen->step_ns, plan->replay.step_ns, permille)) {
        return false;
    }
    uint64_t scale = hardware->time_scale_permille == 0 ? 1000 : hardware->time_scale_permille;
    uint64_t worked = ms__max_u64(ms__sub_sat(seen->step_ns, stalls), seen->step_ns / 4);
    uint64_t wanted = ms__mul_div(scale, worked, plan->replay.step_ns - stalls);
    wanted = ms__max_u64(ms__min_u64(wanted, 4 * scale), scale / 4);
    wanted = ms__min_u64(ms__max_u64(ms_round_2_digits(wanted), 10), 100000);
    if (wanted == hardware->time_scale_permille) {
        return false;
    }
    hardware->time_scale_permille = wanted;
    return true;
}

/* The pace of the machine at everything. It changes no plan: slower compute and slower transfers leave the fastest
 * plan the fastest. The first step also plans and faults memory in. */
static void learn_pace(ms_hardware *hardware, const ms_plan *plan, const ms_observation *seen)
{
    uint64_t told = ms_hardware_at_pace(hardware, plan->replay.step_ns);
    bool whole = seen->step > 1 && seen->plan_steps > 1 && !seen->smaller_inputs && plan->entry_count > 0;
    if (!whole || seen->step_ns == MS_UNSET || seen->step_ns == 0 || told == 0 ||
        !off_by(seen->step_ns, told, PACE_PERMILLE)) {
        return;
    }
    uint64_t pace = ms__mul_div(seen->step_ns, 1000, plan->replay.step_ns);
    pace = hardware->pace_permille == 0 ? pace : (pace + hardware->pace_permille) / 2;
    hardware->pace_permille = ms__min_u64(ms__max_u64(ms_round_2_digits(pace), 10), 1000000);
}

/* ---- the line ---------------------------------------------------------------------------- */

/* "+1.3%": measured against predicted. */
static void put_percent(char *text, size_t size, uint64_t measured, uint64_t predicted)
{
    uint64_t permille = predicted == 0 ? 0 : ms__mul_div(distance(measured, predicted), 1000, predicted);
    snprintf(text, size, "%c%llu.%llu%%", measured >= predicted ? '+' : '-', (unsigned long long)(permille / 10),
             (unsigned long long)(permille % 10));
}

/* `told_ns` is what was predicted at the pace known so far. */
static int put_time(char *line, size_t size, const ms_plan *plan, uint64_t told_ns, const ms_observation *seen)
{
    char percent[40], of[32] = "";
    bool idle =
        told_ns == plan->replay.step_ns && seen->step_ns > told_ns && off_by(seen->step_ns, told_ns, PACE_PERMILLE);
    if (seen->time_lag > 0) {
        snprintf(of, sizeof of, " of step %u", timed_step(seen));
    }
    if (ms__min_u64(seen->step_ns, told_ns) < compared_step_ns) {
        return snprintf(line, size, " time%s %s measured;", of, ms__text_ns(seen->step_ns).text);
    }
    put_percent(percent, sizeof percent, seen->step_ns, told_ns);
    return snprintf(line, size, " time%s %s measured, %s predicted%s (%s);", of, ms__text_ns(seen->step_ns).text,
                    ms__text_ns(told_ns).text, idle ? " for an idle machine" : "", percent);
}

static int put_over(char *line, size_t size, const ms_plan *plan, const ms_observation *seen)
{
    if (ms_pipeline_overrun(plan, seen) == MS_OVERRUN_NONE) {
        return snprintf(line, size, ";");
    }
    uint64_t over = seen->peak_bytes - plan->pressure.allowed_bytes;
    return snprintf(line, size, ", %s over the budget;", ms__text_bytes_up(over).text);
}

static char *write_line(const ms_plan *plan, uint64_t told_ns, const ms_observation *seen, ms_drift drift)
{
    char line[512], percent[40];
    uint64_t expected = predicted_peak(plan, seen);
    int length = snprintf(line, sizeof line, "step %u:", seen->step);
    if (seen->peak_bytes != MS_UNSET && expected > 0) {
        put_percent(percent, sizeof percent, seen->peak_bytes, expected);
        length += snprintf(line + length, sizeof line - (size_t)length, " peak %s measured, %s predicted (%s)",
                           ms__text_bytes(seen->peak_bytes).text, ms__text_bytes(expected).text, percent);
        length += put_over(line + length, sizeof line - (size_t)length, plan, seen);
    }
    if (seen->step_ns != MS_UNSET && plan->replay.step_ns > 0) {
        length += put_time(line + length, sizeof line - (size_t)length, plan, told_ns, seen);
    }
    bool stays = seen->replan_refused && drift == MS_DRIFT_NONE;
    snprintf(line + length, sizeof line - (size_t)length, " %s%s%s",
             stays ? "no other plan fits" : ms_drift_text(drift),
             seen->smaller_inputs ? "; the inputs were smaller than planned for" : "",
             drift == MS_DRIFT_NONE ? "" : ": planning again");
    return ms_strdup(line);
}

ms_overrun ms_pipeline_overrun(const ms_plan *plan, const ms_observation *seen)
{
    uint64_t allowed = plan->pressure.allowed_bytes;
    if (!plan->pressure.budget_given || seen->peak_bytes == MS_UNSET || seen->peak_bytes <= allowed) {
        return MS_OVERRUN_NONE;
    }
    return seen->peak_bytes - allowed > ms__mul_div(allowed, FAR_PERMILLE, 1000) ? MS_OVERRUN_FAR : MS_OVERRUN_SLIGHT;
}

/* Corrections end after a few plans, unless the budget is at stake. */
static bool is_settled(const ms_plan *plan, const ms_observation *seen)
{
    bool known = seen->plans != MS_UNSET && seen->plans >= MOST_PLANS;
    return known && ms_pipeline_overrun(plan, seen) == MS_OVERRUN_NONE;
}

static ms_drift observe_step(ms_graph *graph, ms_hardware *hardware, const ms_plan *plan, const ms_observation *seen)
{
    if (is_settled(plan, seen)) {
        return MS_DRIFT_NONE;
    }
    /* One step may correct several numbers; the first names the reason. */
    bool loop = correct_loop(&graph->loop, plan, seen);
    bool optimizer = correct_state(&graph->loop, seen);
    optimizer |= correct_release(&graph->loop, seen);
    bool planned = plan->entry_count > 0;
    if (loop || optimizer) {
        if (planned) {
            raise_scratch(graph, hardware, plan, seen);
        }
        return loop ? MS_DRIFT_LOOP : MS_DRIFT_OPTIMIZER;
    }
    if (!planned) {
        return MS_DRIFT_NONE;
    }
    bool own = !seen->smaller_inputs && !seen->replan_refused;
    bool measured = seen->peak_bytes != MS_UNSET;
    bool peak = measured && grow_scratch(graph, hardware, plan, seen);
    bool reserve = measured && own && !peak && !seen->keeps_reserve && shrink_scratch(graph, hardware, plan, seen);
    bool time = own && correct_time(hardware, plan, seen);
    return peak ? MS_DRIFT_PEAK : reserve ? MS_DRIFT_RESERVE : time ? MS_DRIFT_TIME : MS_DRIFT_NONE;
}

int ms_pipeline_observe(ms_graph *graph, ms_hardware *hardware, const ms_config *config, const ms_plan *plan,
                        const ms_observation *observation, ms_drift *drift, char **line, ms_error *err)
{
    (void)config;
    ms_loop loop = graph->loop;
    ms_process process = hardware->process;
    uint64_t scale = hardware->time_scale_permille, pace = hardware->pace_permille;
    uint64_t told_ns = ms_hardware_at_pace(hardware, plan->replay.step_ns);
    ms_drift found = observe_step(graph, hardware, plan, observation);
    if (hardware->time_scale_permille != scale) {
        hardware->pace_permille = 0; /* the next plan predicts other times */
    } else {
        learn_pace(hardware, plan, observation);
    }
    char *text = write_line(plan, told_ns, observation, found);
    if (text == NULL) {
        graph->loop = loop;
        hardware->process = process;
        hardware->time_scale_permille = scale;
        hardware->pace_permille = pace;
        return ms_fail(err, MS_ENOMEM, "observe: out of memory");
    }
    *drift = found;
    *line = text;
    return MS_OK;
}
