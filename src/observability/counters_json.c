/*
 * Counters as JSON, in the order of the table. Called by the extension for
 * `counters()` and for reports.
 */
#include "base/json.h"
#include "memscale/observability.h"

char *ms_counters_to_json(const ms_counters *counters)
{
    ms__json_writer writer = {0};
    json_t *object = ms__json_new(&writer);
    for (int id = 0; id < MS_COUNTER_COUNT; id++) {
        ms__json_put_u64(&writer, object, ms_counter_name((ms_counter)id), ms_counter_get(counters, (ms_counter)id));
    }
    char *text = NULL;
    return ms__json_finish(&writer, object, "counters", &text, NULL) == MS_OK ? text : NULL;
}
