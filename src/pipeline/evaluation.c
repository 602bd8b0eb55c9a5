/*
 * Writes the line about an evaluation that exceeded the budget, which names a batch that would fit. Part of the
 * pipeline; the caller logs it once. A pure function of its arguments.
 */
#include <stdio.h>

#include "base/units.h"
#include "memscale/pipeline.h"

enum { SAFE_PERMILLE = 950 }; /* of the room: the allocator and the operators round up */

/* The most rows within the room, if memory grows with the rows; 0 if not even one fits. */
static uint64_t rows_within(uint64_t budget_bytes, const ms_evaluation *seen)
{
    uint64_t room = ms__mul_div(ms__sub_sat(budget_bytes, seen->before_bytes), SAFE_PERMILLE, 1000);
    uint64_t taken = ms__sub_sat(seen->peak_bytes, seen->before_bytes);
    return taken == 0 ? 0 : ms__mul_div(seen->rows, room, taken);
}

static char *evaluation_line(uint64_t budget_bytes, const ms_evaluation *seen)
{
    char text[320], cure[96] = "";
    uint64_t rows = rows_within(budget_bytes, seen);
    if (rows > 0 && rows < seen->rows) {
        snprintf(cure, sizeof cure, ": evaluate with a batch of %llu instead of %llu", (unsigned long long)rows,
                 (unsigned long long)seen->rows);
    }
    snprintf(
        text, sizeof text,
        "evaluation: a forward without gradients took %s, %s over the budget; the plan is for training and stays%s",
        ms__text_bytes(seen->peak_bytes).text, ms__text_bytes_up(seen->peak_bytes - budget_bytes).text, cure);
    return ms_strdup(text);
}

int ms_pipeline_evaluation(const ms_config *config, const ms_evaluation *seen, char **line, ms_error *err)
{
    *line = NULL;
    if (config->memory_budget_bytes == MS_UNSET || seen->peak_bytes == MS_UNSET ||
        seen->peak_bytes <= config->memory_budget_bytes) {
        return MS_OK;
    }
    *line = evaluation_line(config->memory_budget_bytes, seen);
    return *line == NULL ? ms_fail(err, MS_ENOMEM, "evaluation: out of memory") : MS_OK;
}
