/*
 * The next tighter plan after an allocation failed in a step. Part of the pipeline; the caller repeats the
 * step under it. A pure function of its documents.
 */
#include <stdio.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"

enum { TIGHTEN_SHARE = 8, RESCUES_MAX = 3 };

static int plan_within(const ms_graph *graph, const ms_hardware *hardware, ms_config *config, uint64_t room_bytes,
                       ms_plan **plan, ms_error *err)
{
    config->memory_budget_bytes = room_bytes;
    return ms__pipeline_plan(graph, hardware, config, plan, err);
}

int ms_pipeline_tighten(const ms_graph *graph, const ms_hardware *hardware, ms_config *config, const ms_plan *plan,
                        uint32_t attempt, ms_plan **tighter, char **line, ms_error *err)
{
    uint64_t peak_bytes = ms__add_sat(plan->replay.peak_bytes, plan->reserve_bytes);
    ms_config wanted = *config;
    if (attempt >= RESCUES_MAX) {
        return ms_fail(err, MS_EINFEASIBLE, "the step was repeated %d times under tighter plans", RESCUES_MAX);
    }
    int rc = plan_within(graph, hardware, &wanted, peak_bytes - peak_bytes / TIGHTEN_SHARE, tighter, err);
    if (rc == MS_EINFEASIBLE && err->hint_bytes > 0 && err->hint_bytes < peak_bytes) {
        rc = plan_within(graph, hardware, &wanted, err->hint_bytes, tighter, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    char text[256];
    snprintf(text, sizeof text,
             "an allocation failed under a plan of %s; the step is repeated under one of %s (%u of %d)",
             ms__text_bytes(plan->replay.peak_bytes).text, ms__text_bytes((*tighter)->replay.peak_bytes).text,
             attempt + 1, RESCUES_MAX);
    *line = ms_strdup(text);
    if (*line == NULL) {
        ms_plan_free(*tighter);
        *tighter = NULL;
        return ms_fail(err, MS_ENOMEM, "rescue: out of memory");
    }
    *config = wanted;
    return MS_OK;
}
