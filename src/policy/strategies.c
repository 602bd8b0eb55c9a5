/*
 * The strategies as values: the table that policies are trained on, names, and a configuration under a strategy.
 */
#include "memscale/policy.h"

static const struct {
    const char *name, *text;
    ms_strategy strategy;
} rows[] = {
#define STRATEGY_ROW(name, mode, recomputes, moves, permille, text) \
    {name, text, {MS_MODE_##mode, recomputes, moves, permille, 0}},
    MS_STRATEGY_TABLE(STRATEGY_ROW)
#undef STRATEGY_ROW
};

enum { ROWS = sizeof rows / sizeof rows[0] };

bool ms_strategy_at(size_t i, ms_strategy *strategy)
{
    if (i < ROWS) {
        *strategy = rows[i].strategy;
    }
    return i < ROWS;
}

static bool is_same(const ms_strategy *a, const ms_strategy *b)
{
    return a->mode == b->mode && a->enable_checkpointing == b->enable_checkpointing &&
           a->enable_offloading == b->enable_offloading && a->search_permille == b->search_permille;
}

static size_t row_of(const ms_strategy *strategy)
{
    size_t i = 0;
    while (i < ROWS && !is_same(&rows[i].strategy, strategy)) {
        i++;
    }
    return i;
}

const char *ms_strategy_name(const ms_strategy *strategy)
{
    size_t i = row_of(strategy);
    return i < ROWS ? rows[i].name : ms_mode_name(strategy->mode);
}

const char *ms_strategy_text(const ms_strategy *strategy)
{
    size_t i = row_of(strategy);
    return i < ROWS ? rows[i].text : "as the mode and the flags say";
}

bool ms_strategy_second(const ms_strategy *strategy, ms_strategy *second)
{
    *second = (ms_strategy){MS_MODE_AGGRESSIVE, true, false, strategy->second_permille, 0};
    return strategy->second_permille > 0;
}

ms_strategy ms_strategy_widest(void)
{
    return rows[0].strategy;
}

enum { GLANCE_ROW = 3 };

ms_strategy ms_strategy_glance(void)
{
    return rows[GLANCE_ROW].strategy;
}

bool ms_strategy_is_glance(const ms_strategy *strategy)
{
    return is_same(&rows[GLANCE_ROW].strategy, strategy);
}

ms_config ms_strategy_apply(const ms_strategy *strategy, const ms_config *config)
{
    ms_config effective = *config;
    effective.mode = strategy->mode;
    effective.enable_checkpointing = config->enable_checkpointing && strategy->enable_checkpointing;
    effective.enable_offloading = config->enable_offloading && strategy->enable_offloading;
    effective.search_permille = strategy->search_permille;
    return effective;
}
