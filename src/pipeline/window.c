/*
 * How many bytes of streamed parameters stay in memory. Called before each plan of a model whose parameters stream;
 * hardware->process carries the answer to the stages, as a part of the baseline.
 */
#include <stdio.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "sim/step_options.h"

enum { WINDOWS = 9, HALVINGS = 4, GAIN_PART = 64, SOURCE_MOST = 100 + MS_PATH_MAX, LINE_MOST = 300 + SOURCE_MOST };

/* Room for pages that other code touches: the worker drops them if they exceed the window by 16 MB, and 20 MB more may
 * be touched between two of its looks (hostmem/streamed.c). A save touches more than any other code: in all it took up to
 * 50 MB beside the window (docs/results). It runs between steps, when the memory that operators need, at least 14 MB in
 * every plan (sim/process.c), serves it too. */
static const uint64_t tolerated_bytes = 16000000, between_looks_bytes = 24000000;

/* Time of a processor for each byte that comes out of the page cache and leaves memory again, measured. */
enum { HANDLED_PS = 40 };

typedef struct window_choice {
    uint64_t window_bytes, step_ns;
    uint64_t moved_ns;   /* the disk's, for parameters, a step */
    uint64_t backward_ns; /* the part of it in backward: parameters are written after their update there */
    uint64_t handled_ns; /* the processor's, a step */
    bool from_cache; /* the system's page cache can hold the rest */
} window_choice;

static uint64_t allowed_by(const ms_hardware *hardware, const ms_config *config)
{
    return config->memory_budget_bytes > 0 ? config->memory_budget_bytes : ms_hardware_device_bytes(hardware);
}

/* The disk's time in a step. Parameters outside the window are read in forward and again in backward, and written if
 * they are trained. Nothing is read if the page cache can hold them, in memory beyond the budget. */
static void price_moves(const ms_hardware *hardware, const ms_config *config, const ms_streaming *streaming,
                        window_choice *choice)
{
    uint64_t absent = ms__sub_sat(streaming->total_bytes, choice->window_bytes);
    uint64_t spare = ms__sub_sat(ms__min_u64(hardware->ram.available_bytes, hardware->ram.limit_bytes),
                                 allowed_by(hardware, config));
    choice->from_cache = absent <= spare;
    uint64_t read = choice->from_cache ? 0 : absent;
    uint64_t written = ms__min_u64(absent, streaming->trained_bytes);
    uint64_t reading_ns = ms__rate_ns(read, ms__max_u64(hardware->disk.read_bytes_per_s, 1));
    uint64_t writing_ns = ms__rate_ns(written, ms__max_u64(hardware->disk.write_bytes_per_s, 1));
    choice->handled_ns = ms__mul_div(ms__mul_sat(2, absent), HANDLED_PS, 1000);
    choice->backward_ns = ms__add_sat(reading_ns, writing_ns);
    choice->moved_ns = ms__add_sat(reading_ns, choice->backward_ns);
}

static ms_hardware with_window(const ms_hardware *hardware, const ms_streaming *streaming, const window_choice *choice)
{
    ms_hardware with = *hardware;
    uint64_t window_bytes = choice->window_bytes;
    bool is_part = window_bytes < streaming->total_bytes;
    with.process.window_backward_ns = choice->backward_ns;
    with.process.streamed_bytes = streaming->total_bytes;
    with.process.window_bytes = ms__add_sat(window_bytes, is_part ? tolerated_bytes : 0);
    with.process.window_reserve_bytes = is_part ? between_looks_bytes : 0;
    with.process.baseline_bytes = ms__add_sat(hardware->process.baseline_bytes, with.process.window_bytes);
    return with;
}

/* The bytes of optimizer state that a plan has on disk. */
static uint64_t state_on_disk(const ms_graph *graph, const ms_plan *plan)
{
    bool moves = plan->step_options[MS_STEP_STATE_ON_DISK].chosen;
    return moves ? ms__moved_state_bytes(&graph->loop, plan->state_moved_bytes) : 0;
}

/* The time of a step with this window. MS_EINFEASIBLE also if a plan exists but misses the default target. A window that
 * alone exceeds the budget needs no plan; the least one gets it all the same, for its error. */
static int try_window(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                      const ms_streaming *streaming, window_choice *choice, ms_error *err)
{
    ms_hardware with = with_window(hardware, streaming, choice);
    ms_plan *plan = NULL;
    if (choice->window_bytes > streaming->least_bytes && with.process.baseline_bytes > allowed_by(hardware, config)) {
        return MS_EINFEASIBLE;
    }
    int rc = ms__pipeline_plan(graph, &with, config, &plan, err);
    if (rc == MS_OK) {
        uint64_t disk_ns = ms__add_sat(choice->moved_ns, ms__state_moving_ns(state_on_disk(graph, plan), hardware));
        choice->step_ns = ms__max_u64(ms__add_sat(plan->replay.step_ns, choice->handled_ns), disk_ns);
        rc = plan->over_target && choice->window_bytes > streaming->least_bytes ? MS_EINFEASIBLE : MS_OK;
    }
    ms_plan_free(plan);
    return rc;
}

/* Tries windows between the best and a larger one that did not fit or was slower, down to GAIN_PART of the budget: each
 * trial takes the time of a plan. */
static int refine(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                  const ms_streaming *streaming, uint64_t larger_bytes, window_choice *best, ms_error *err)
{
    uint64_t least_gain = allowed_by(hardware, config) / GAIN_PART;
    for (uint32_t i = 0; i < HALVINGS && larger_bytes - best->window_bytes > least_gain; i++) {
        window_choice tried = {.window_bytes = best->window_bytes + (larger_bytes - best->window_bytes) / 2};
        price_moves(hardware, config, streaming, &tried);
        int rc = try_window(graph, hardware, config, streaming, &tried, err);
        if (rc != MS_OK && rc != MS_EINFEASIBLE) {
            return rc;
        }
        if (rc == MS_OK && tried.step_ns <= best->step_ns) {
            *best = tried;
        } else {
            larger_bytes = tried.window_bytes;
        }
    }
    return MS_OK;
}

/* Tries windows from all parameters down to the least. The fastest wins; of two equally fast ones, the larger. */
static int choose(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                  const ms_streaming *streaming, window_choice *best, ms_error *err)
{
    uint64_t range = ms__sub_sat(streaming->total_bytes, streaming->least_bytes);
    uint64_t before = streaming->total_bytes, larger = before;
    best->step_ns = UINT64_MAX;
    int last = MS_OK;
    for (uint64_t i = 0; i < WINDOWS; i++) {
        window_choice tried = {.window_bytes = streaming->total_bytes - ms__mul_div(range, i, WINDOWS - 1)};
        price_moves(hardware, config, streaming, &tried);
        if (tried.moved_ns >= best->step_ns) {
            break; /* smaller windows move at least as much, so none is faster */
        }
        last = try_window(graph, hardware, config, streaming, &tried, err);
        if (last != MS_OK && last != MS_EINFEASIBLE) {
            return last;
        }
        if (last == MS_OK && tried.step_ns < best->step_ns) {
            *best = tried;
            larger = before;
        }
        before = tried.window_bytes;
    }
    return best->step_ns < UINT64_MAX ? refine(graph, hardware, config, streaming, larger, best, err) : last;
}

/* Where the bytes outside the window come from. */
static void name_source(const ms_streaming *streaming, const window_choice *choice, char *text, size_t size)
{
    bool all = streaming->checkpoint_bytes >= streaming->total_bytes;
    if (choice->from_cache || all) {
        snprintf(text, size, "%s", choice->from_cache ? "the system's page cache" : "the checkpoint's own files");
    } else {
        snprintf(text, size, "%sfiles in %s", streaming->checkpoint_bytes > 0 ? "the checkpoint's own files and " : "",
                 streaming->directory);
    }
}

static int tell(const ms_streaming *streaming, const window_choice *choice, char **line, ms_error *err)
{
    char text[LINE_MOST], source[SOURCE_MOST];
    uint64_t absent = ms__sub_sat(streaming->total_bytes, choice->window_bytes);
    if (absent == 0) {
        snprintf(text, sizeof text, "streamed parameters: all %s fit and stay in memory",
                 ms__text_bytes(streaming->total_bytes).text);
    } else {
        name_source(streaming, choice, source, sizeof source);
        snprintf(text, sizeof text,
                 "streamed parameters: %s of %s stay in memory; %s come from %s twice a step, which takes the disk at "
                 "least %s",
                 ms__text_bytes(choice->window_bytes).text, ms__text_bytes(streaming->total_bytes).text,
                 ms__text_bytes(absent).text, source, ms__text_ns(choice->moved_ns).text);
    }
    *line = ms_strdup(text);
    return *line != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "streamed parameters: out of memory");
}

int ms_pipeline_window(const ms_graph *graph, const ms_streaming *streaming, const ms_config *config,
                       ms_hardware *hardware, ms_window *window, char **line, ms_error *err)
{
    if (streaming->least_bytes > streaming->total_bytes || !ms_hardware_host_is_device(hardware)) {
        return ms_fail(err, MS_EINVAL, "streamed parameters: a window of at least %s for %s",
                       ms__text_bytes(streaming->least_bytes).text, ms__text_bytes(streaming->total_bytes).text);
    }
    ms_hardware bare = *hardware;
    bare.process.baseline_bytes = ms__sub_sat(hardware->process.baseline_bytes, hardware->process.window_bytes);
    window_choice best = {0};
    int rc = choose(graph, &bare, config, streaming, &best, err);
    if (rc == MS_EINFEASIBLE) {
        window_choice smallest = {.window_bytes = streaming->least_bytes};
        ms_hardware least = with_window(&bare, streaming, &smallest);
        ms__pipeline_suggest(graph, &least, config, err);
    }
    if (rc == MS_OK) {
        rc = tell(streaming, &best, line, err);
    }
    if (rc == MS_OK) {
        *hardware = with_window(&bare, streaming, &best);
        *window = (ms_window){.bytes = best.window_bytes, .disk_ns = best.moved_ns};
    }
    return rc;
}
