/*
 * The schedule behind an entry of a table: the choices that give its time are looked for
 * again, saves before splits, the lowest option and the nearest split first.
 */
#include "plan/chain.h"

/* A segment to be done in m buckets, or only the backward of its first layer. */
typedef struct pending {
    uint32_t s, t, m;
    uint32_t option;
    bool backward;
} pending;

typedef struct walk {
    const ms__chain_table *table;
    ms__chain_schedule *schedule;
    pending *stack;
    size_t depth;
} walk;

static const ms__chain_row *row_of(const walk *w, uint32_t s, uint32_t t)
{
    return &w->table->rows[ms__chain_class(w->table->model, s, t)];
}

static bool try_save(walk *w, const pending *now, uint32_t time, int *rc)
{
    const ms__chain_model *model = w->table->model;
    for (uint32_t k = model->steps[now->s].first; k < model->steps[now->s].end; k++) {
        const ms__chain_choice *choice = &model->choices[k];
        ms__chain_move move = ms__chain_save_move(w->table, now->s, now->t, choice);
        uint32_t rest = 0;
        bool fits = now->m >= move.start;
        if (fits && now->s < now->t) {
            fits = ms__chain_row_at(row_of(w, now->s + 1, now->t), now->m - move.taken, &rest);
        }
        if (!fits || move.time + rest != time) {
            continue;
        }
        *rc = ms__chain_push(w->schedule, MS_CHAIN_FWD_SAVE, now->s, choice->option);
        w->stack[w->depth++] = (pending){.s = now->s, .option = choice->option, .backward = true};
        if (now->s < now->t) {
            w->stack[w->depth++] = (pending){.s = now->s + 1, .t = now->t, .m = now->m - move.taken};
        }
        return true;
    }
    return false;
}

static bool try_split(walk *w, const pending *now, uint32_t time, int *rc)
{
    const ms__chain_table *table = w->table;
    uint32_t id = ms__chain_class(table->model, now->s, now->t), passes = 0;
    for (uint32_t j = now->s + 1; j <= now->t; j++) {
        uint32_t left, right;
        passes += ms__chain_pass_time(table, j - 1);
        ms__chain_move move = ms__chain_split_move(table, id, j, passes);
        if (now->m < move.start || !ms__chain_row_at(row_of(w, j, now->t), now->m - move.taken, &right) ||
            !ms__chain_row_at(row_of(w, now->s, j - 1), now->m, &left) || left + right + passes != time) {
            continue;
        }
        *rc = ms__chain_push_passes(w->schedule, now->s, j);
        w->stack[w->depth++] = (pending){.s = now->s, .t = j - 1, .m = now->m};
        w->stack[w->depth++] = (pending){.s = j, .t = now->t, .m = now->m - move.taken};
        return true;
    }
    return false;
}

int ms__chain_unfold(const ms__chain_table *table, uint32_t m, ms__chain_schedule *schedule)
{
    walk w = {.table = table, .schedule = schedule};
    /* Each layer is in at most one pending segment, or only its backward is. */
    w.stack = ms_calloc((size_t)table->model->count + 2, sizeof *w.stack);
    int rc = w.stack == NULL ? MS_ENOMEM : MS_OK;
    if (rc == MS_OK) {
        w.stack[w.depth++] = (pending){.s = 0, .t = table->model->count - 1, .m = m};
    }
    while (rc == MS_OK && w.depth > 0) {
        pending now = w.stack[--w.depth];
        uint32_t time;
        if (now.backward) {
            rc = ms__chain_push(schedule, MS_CHAIN_BWD, now.s, now.option);
        } else if (!ms__chain_row_at(row_of(&w, now.s, now.t), now.m, &time) ||
                   (!try_save(&w, &now, time, &rc) && !try_split(&w, &now, time, &rc))) {
            rc = MS_ESTATE;
        }
    }
    ms_free(w.stack);
    return rc;
}
