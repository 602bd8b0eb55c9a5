/*
 * How many bytes of streamed parameters stay in memory. Called before each plan of a model whose parameters stream;
 * hardware->process carries the answer to the stages, as a part of the baseline.
 */
#include <stdio.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "sim/sim.h"

enum { WINDOWS = 9, LINE_MOST = 400 + MS_PATH_MAX };

/* Room for pages that other code touches between two looks of the worker (streamed.h). */
static const uint64_t slack_bytes = 40000000;

typedef struct window_choice {
    uint64_t window_bytes, step_ns, moved_ns;
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
    uint64_t read = choice->from_cache ? 0 : ms__mul_sat(2, absent);
    uint64_t written = ms__min_u64(absent, streaming->trained_bytes);
    choice->moved_ns = ms__add_sat(ms__rate_ns(read, ms__max_u64(hardware->disk.read_bytes_per_s, 1)),
                                   ms__rate_ns(written, ms__max_u64(hardware->disk.write_bytes_per_s, 1)));
}

static ms_hardware with_window(const ms_hardware *hardware, const ms_streaming *streaming, uint64_t window_bytes)
{
    ms_hardware with = *hardware;
    uint64_t slack = window_bytes < streaming->total_bytes ? slack_bytes : 0;
    with.process.streamed_bytes = streaming->total_bytes;
    with.process.window_bytes = ms__add_sat(window_bytes, slack);
    with.process.baseline_bytes = ms__add_sat(hardware->process.baseline_bytes, with.process.window_bytes);
    return with;
}

/* The time of a step with this window. MS_EINFEASIBLE also if a plan exists but misses the default target. */
static int try_window(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                      const ms_streaming *streaming, window_choice *choice, ms_error *err)
{
    ms_hardware with = with_window(hardware, streaming, choice->window_bytes);
    ms_plan *plan = NULL;
    int rc = ms__pipeline_plan(graph, &with, config, &plan, err);
    if (rc == MS_OK) {
        choice->step_ns = ms__max_u64(plan->replay.step_ns, choice->moved_ns);
        rc = plan->over_target && choice->window_bytes > streaming->least_bytes ? MS_EINFEASIBLE : MS_OK;
    }
    ms_plan_free(plan);
    return rc;
}

/* Tries windows from all parameters down to the least. The fastest wins; of two equally fast ones, the larger. */
static int choose(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                  const ms_streaming *streaming, window_choice *best, ms_error *err)
{
    uint64_t range = ms__sub_sat(streaming->total_bytes, streaming->least_bytes);
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
        }
    }
    return best->step_ns < UINT64_MAX ? MS_OK : last;
}

static int tell(const ms_hardware *hardware, const ms_streaming *streaming, const window_choice *choice, char **line,
                ms_error *err)
{
    char text[LINE_MOST];
    uint64_t absent = ms__sub_sat(streaming->total_bytes, choice->window_bytes);
    if (absent == 0) {
        snprintf(text, sizeof text, "streamed parameters: all %s fit and stay in memory",
                 ms__text_bytes(streaming->total_bytes).text);
    } else {
        snprintf(text, sizeof text,
                 "streamed parameters: %s of %s stay in memory; %s come from %s twice a step, which takes the disk at "
                 "least %s",
                 ms__text_bytes(choice->window_bytes).text, ms__text_bytes(streaming->total_bytes).text,
                 ms__text_bytes(absent).text, choice->from_cache ? "the system's page cache" : hardware->disk.dir,
                 ms__text_ns(choice->moved_ns).text);
    }
    *line = ms_strdup(text);
    return *line != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "streamed parameters: out of memory");
}

int ms_pipeline_window(const ms_graph *graph, const ms_streaming *streaming, const ms_config *config,
                       ms_hardware *hardware, char **line, ms_error *err)
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
        ms_hardware least = with_window(&bare, streaming, streaming->least_bytes);
        ms__pipeline_suggest(graph, &least, config, err);
    }
    if (rc == MS_OK) {
        rc = tell(hardware, streaming, &best, line, err);
    }
    if (rc == MS_OK) {
        *hardware = with_window(&bare, streaming, best.window_bytes);
    }
    return rc;
}
