/*
 * The least memory that any schedule of a chain takes: the recurrence without times, in
 * units and so exact. Called by chain.c; what is infeasible is decided here.
 */
#include "base/units.h"
#include "chain/chain.h"

/* How a class reaches its least: saving its first layer with a choice, or a split. */
typedef struct least {
    uint64_t units;
    uint32_t split;  /* how far behind its first layer; 0: save */
    uint32_t option; /* as the chain numbers it */
} least;

static void take(least *best, uint64_t units, uint32_t split, uint32_t option)
{
    if (units < best->units) {
        *best = (least){.units = units, .split = split, .option = option};
    }
}

static least least_of(const ms__chain_model *model, const least *known, uint32_t id)
{
    uint32_t s = model->starts[id], t = model->ends[id];
    const ms__chain_step *step = &model->steps[s];
    least best = {.units = UINT64_MAX, .option = model->choices[step->first].option};
    for (uint32_t k = step->first; k < step->end; k++) {
        const ms__chain_choice *choice = &model->choices[k];
        uint64_t units = ms__chain_all(model, s, t, choice);
        if (s < t) {
            units = ms__max_u64(units, ms__add_sat(choice->saved, known[ms__chain_class(model, s + 1, t)].units));
        }
        take(&best, units, 0, choice->option);
    }
    for (uint32_t j = s + 1; j <= t; j++) {
        uint64_t right = ms__add_sat(model->sizes[j], known[ms__chain_class(model, j, t)].units);
        uint64_t both = ms__max_u64(right, known[ms__chain_class(model, s, j - 1)].units);
        take(&best, ms__max_u64(both, model->none[id]), j - s, 0);
    }
    return best;
}

/* A segment whose work is to come; `backward`: only layer s's, with its option. */
typedef struct pending {
    uint32_t s, t;
    uint32_t option;
    bool backward;
} pending;

static int unfold_one(const ms__chain_model *model, const least *known, const pending *now, pending *stack,
                      size_t *depth, ms__chain_schedule *schedule)
{
    const least *how = &known[ms__chain_class(model, now->s, now->t)];
    if (how->split > 0) {
        uint32_t j = now->s + how->split;
        stack[(*depth)++] = (pending){.s = now->s, .t = j - 1};
        stack[(*depth)++] = (pending){.s = j, .t = now->t};
        return ms__chain_push_passes(schedule, now->s, j);
    }
    stack[(*depth)++] = (pending){.s = now->s, .option = how->option, .backward = true};
    if (now->s < now->t) {
        stack[(*depth)++] = (pending){.s = now->s + 1, .t = now->t};
    }
    return ms__chain_push(schedule, MS_CHAIN_FWD_SAVE, now->s, how->option);
}

static int unfold(const ms__chain_model *model, const least *known, ms__chain_schedule *schedule)
{
    /* Each layer is in at most one pending segment, or only its backward is. */
    pending *stack = ms_calloc((size_t)model->count + 2, sizeof *stack);
    size_t depth = 0;
    int rc = stack == NULL ? MS_ENOMEM : MS_OK;
    if (rc == MS_OK) {
        stack[depth++] = (pending){.s = 0, .t = model->count - 1};
    }
    while (rc == MS_OK && depth > 0) {
        pending now = stack[--depth];
        rc = now.backward ? ms__chain_push(schedule, MS_CHAIN_BWD, now.s, now.option)
                          : unfold_one(model, known, &now, stack, &depth, schedule);
    }
    ms_free(stack);
    return rc;
}

int ms__chain_least(const ms__chain_model *model, uint64_t *units, ms__chain_schedule *schedule)
{
    least *known = ms_calloc(model->class_count, sizeof *known);
    if (known == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t id = 0; id < model->class_count; id++) {
        known[id] = least_of(model, known, id);
    }
    *units = ms__add_sat(model->sizes[0], known[ms__chain_class(model, 0, model->count - 1)].units);
    int rc = unfold(model, known, schedule);
    ms_free(known);
    return rc;
}
