/*
 * The counter registry: names and texts of the counters, and atomic access to a set of them.
 */
#include "memscale/base.h"

static const char *const counter_names[MS_COUNTER_COUNT] = {
#define COUNTER_NAME(id, name, text) [MS_COUNTER_##id] = name,
    MS_COUNTER_TABLE(COUNTER_NAME)
#undef COUNTER_NAME
};

static const char *const counter_texts[MS_COUNTER_COUNT] = {
#define COUNTER_TEXT(id, name, text) [MS_COUNTER_##id] = text,
    MS_COUNTER_TABLE(COUNTER_TEXT)
#undef COUNTER_TEXT
};

static bool id_is_valid(ms_counter id)
{
    return (unsigned)id < MS_COUNTER_COUNT;
}

const char *ms_counter_name(ms_counter id)
{
    return id_is_valid(id) ? counter_names[id] : "unknown";
}

const char *ms_counter_text(ms_counter id)
{
    return id_is_valid(id) ? counter_texts[id] : "unknown counter";
}

void ms_counter_add(ms_counters *set, ms_counter id, uint64_t amount)
{
    if (set != NULL && id_is_valid(id)) {
        __atomic_fetch_add(&set->value[id], amount, __ATOMIC_RELAXED);
    }
}

uint64_t ms_counter_get(const ms_counters *set, ms_counter id)
{
    if (set == NULL || !id_is_valid(id)) {
        return 0;
    }
    return __atomic_load_n(&set->value[id], __ATOMIC_RELAXED);
}
