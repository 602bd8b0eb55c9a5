/*
 * The schedule behind an entry of a table: the choices that give its time are looked for
 * again, saves before splits, the lowest option and the nearest split first. What it takes in
 * units that aren't rounded is known on the way, before there is a schedule to replay.
 */
#include "base/units.h"
#include "chain/chain.h"

typedef struct walk {
    const ms__chain_table *table;
    ms__chain_schedule *schedule; /* NULL: only what it takes is asked for */
    ms__chain_pending *stack;
    size_t depth;
    uint64_t most; /* units that were held at once */
} walk;

static const ms__chain_row *row_of(const walk *w, uint32_t s, uint32_t t)
{
    return &w->table->rows[ms__chain_class(w->table->model, s, t)];
}

static void touch(walk *w, uint64_t held, uint64_t more)
{
    w->most = ms__max_u64(w->most, ms__add_sat(held, more));
}

static int save(walk *w, const ms__chain_pending *now, const ms__chain_choice *choice, uint32_t left)
{
    int rc = MS_OK;
    touch(w, now->held, ms__chain_all(w->table->model, now->s, now->t, choice));
    if (w->schedule != NULL) {
        rc = ms__chain_push(w->schedule, MS_CHAIN_FWD_SAVE, now->s, choice->option);
        w->stack[w->depth++] = (ms__chain_pending){.s = now->s, .option = choice->option, .backward = true};
    }
    if (now->s < now->t) {
        w->stack[w->depth++] =
            (ms__chain_pending){.held = ms__add_sat(now->held, choice->saved), .s = now->s + 1, .t = now->t, .m = left};
    }
    return rc;
}

static bool try_save(walk *w, const ms__chain_pending *now, uint32_t time, int *rc)
{
    const ms__chain_model *model = w->table->model;
    const ms__chain_row *behind = now->s < now->t ? row_of(w, now->s + 1, now->t) : NULL;
    for (uint32_t k = model->steps[now->s].first; k < model->steps[now->s].end; k++) {
        const ms__chain_choice *choice = &model->choices[k];
        ms__chain_move move = ms__chain_save_move(w->table, now->s, now->t, choice);
        uint32_t rest = 0;
        bool fits = now->m >= move.start;
        if (fits && behind != NULL) {
            fits = ms__chain_row_at(behind, now->m - move.taken, &rest);
        }
        if (fits && move.time + rest == time) {
            *rc = save(w, now, choice, now->m - move.taken);
            return true;
        }
    }
    return false;
}

/* Passes over s .. j-1, beside the gradient that is there all along. */
static int split(walk *w, const ms__chain_pending *now, uint32_t j, uint32_t left)
{
    const ms__chain_model *model = w->table->model;
    uint64_t gradient = model->sizes[now->t + 1], input = 0;
    for (uint32_t i = now->s; i < j; i++) {
        uint64_t output = ms__add_sat(model->sizes[i + 1], model->steps[i].pass_tmp);
        touch(w, now->held, ms__add_sat(gradient, ms__add_sat(input, output)));
        input = model->sizes[i + 1];
    }
    w->stack[w->depth++] = (ms__chain_pending){.held = now->held, .s = now->s, .t = j - 1, .m = now->m};
    w->stack[w->depth++] =
        (ms__chain_pending){.held = ms__add_sat(now->held, model->sizes[j]), .s = j, .t = now->t, .m = left};
    return w->schedule != NULL ? ms__chain_push_passes(w->schedule, now->s, j) : MS_OK;
}

static bool try_split(walk *w, const ms__chain_pending *now, uint32_t time, int *rc)
{
    const ms__chain_table *table = w->table;
    uint32_t passes = 0;
    uint32_t none = ms__chain_buckets(table, table->model->none[ms__chain_class(table->model, now->s, now->t)]);
    for (uint32_t j = now->s + 1; now->m >= none && j <= now->t; j++) {
        uint32_t left, right, taken = ms__chain_buckets(table, table->model->sizes[j]);
        passes += ms__chain_pass_time(table, j - 1);
        if (now->m < taken || passes > time || !ms__chain_row_at(row_of(w, now->s, j - 1), now->m, &left) ||
            !ms__chain_row_at(row_of(w, j, now->t), now->m - taken, &right) || left + right + passes != time) {
            continue;
        }
        *rc = split(w, now, j, now->m - taken);
        return true;
    }
    return false;
}

static int follow(walk *w, const ms__chain_pending *now)
{
    uint32_t time;
    int rc = MS_OK;
    if (now->backward) {
        return ms__chain_push(w->schedule, MS_CHAIN_BWD, now->s, now->option);
    }
    if (!ms__chain_row_at(row_of(w, now->s, now->t), now->m, &time) ||
        (!try_save(w, now, time, &rc) && !try_split(w, now, time, &rc))) {
        return MS_ESTATE;
    }
    return rc;
}

static int follow_all(walk *w, uint32_t m, uint64_t units)
{
    const ms__chain_model *model = w->table->model;
    int rc = MS_OK;
    w->stack[w->depth++] = (ms__chain_pending){.held = model->sizes[0], .t = model->count - 1, .m = m};
    while (rc == MS_OK && w->depth > 0 && w->most <= units) {
        ms__chain_pending now = w->stack[--w->depth];
        rc = follow(w, &now);
    }
    return rc;
}

int ms__chain_fits(const ms__chain_table *table, uint32_t m, uint64_t units, ms__chain_pending *stack, bool *fits)
{
    walk w = {.table = table, .stack = stack};
    int rc = follow_all(&w, m, units);
    *fits = rc == MS_OK && w.most <= units;
    return rc;
}

int ms__chain_unfold(const ms__chain_table *table, uint32_t m, ms__chain_schedule *schedule)
{
    walk w = {.table = table, .schedule = schedule};
    w.stack = ms_calloc(ms__chain_stack_size(table->model), sizeof *w.stack);
    int rc = w.stack == NULL ? MS_ENOMEM : follow_all(&w, m, UINT64_MAX);
    ms_free(w.stack);
    return rc;
}
