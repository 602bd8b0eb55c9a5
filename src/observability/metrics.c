/*
 * Counters under the names that monitoring systems expect: a prefix, the base unit last.
 * Called by the extension, whose exporter serves them.
 */
#include <stdio.h>
#include <string.h>

#include "memscale/observability.h"

enum { NS_PER_S = 1000000000 };

ms_metric ms_counter_metric(ms_counter id)
{
    static const char suffix[] = "_ns";
    const char *name = ms_counter_name(id);
    size_t length = strlen(name);
    size_t tail = sizeof suffix - 1;
    ms_metric metric = {.help = ms_counter_text(id), .per_unit = 1};
    bool is_time = length > tail && strcmp(name + length - tail, suffix) == 0;
    if (is_time) {
        metric.per_unit = NS_PER_S;
        length -= tail;
    }
    snprintf(metric.name, sizeof metric.name, "memscale_%.*s%s", (int)length, name, is_time ? "_seconds" : "");
    return metric;
}
