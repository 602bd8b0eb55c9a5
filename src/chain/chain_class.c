/*
 * One class of segments of the chain solver's table: which rows of its parts give its own, from
 * which entry on, and at what time beside. chain_kernel.c makes the entries of that;
 * chain_table.c calls this once for each class, from several threads.
 *
 * Only entries that can be asked for are made: none below the first that is finite, and below
 * what is left after all layers before have saved the most that they can.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/units.h"
#include "chain/chain.h"

/* A class, and what its row is made of. */
typedef struct making {
    uint32_t id, s, t;
    uint32_t first; /* finite entry */
    uint32_t flat;
    ms__chain_fill fill;
} making;

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Where entries begin of which one part is moved by `taken`; beyond the table for none. */
static uint32_t start_of(const ms__chain_work *work, uint32_t start, uint32_t taken, const ms__chain_row *part)
{
    uint32_t none = work->table->top + 1;
    return part->first > none - smaller(taken, none) ? none : larger(start, taken + part->first);
}

/* (b): layer s saved. */
static void list_rests(const ms__chain_work *work, making *one, ms__chain_rest *rests)
{
    const ms__chain_table *table = work->table;
    const ms__chain_model *model = table->model;
    const ms__chain_step *step = &model->steps[one->s];
    bool last = one->s == one->t;
    uint32_t rest_id = last ? 0 : ms__chain_class(model, one->s + 1, one->t);
    const ms__chain_row end = {.times = work->zeros};
    const ms__chain_row *rest = last ? &end : &table->rows[rest_id];
    uint32_t rest_flat = last ? 0 : work->flats[rest_id];
    for (uint32_t k = step->first; k < step->end; k++) {
        const ms__chain_choice *choice = &model->choices[k];
        uint32_t taken = last ? 0 : work->saved[k];
        uint32_t start = larger(ms__chain_buckets(table, ms__chain_all(model, one->s, one->t, choice)), taken);
        uint32_t add = (uint32_t)((choice->ns - step->fastest_ns) >> table->shift);
        if (add == 0) {
            one->flat = smaller(one->flat, larger(start, taken + rest_flat));
        }
        start = start_of(work, start, taken, rest);
        if (start <= table->top) {
            rests[one->fill.rest_count++] = (ms__chain_rest){rest->times - taken, start, add};
            one->first = smaller(one->first, start);
        }
    }
    one->fill.rests = rests;
}

/* (a): x_j made and kept. From `flat` on nothing takes less. */
static void list_sums(const ms__chain_work *work, making *one, ms__chain_sum *sums)
{
    const ms__chain_table *table = work->table;
    const ms__chain_model *model = table->model;
    uint32_t none = ms__chain_buckets(table, model->none[one->id]), end = smaller(one->flat, table->top + 1);
    for (uint32_t j = one->s + 1; none < end && j <= one->t; j++) {
        const ms__chain_row *left = &table->rows[ms__chain_class(model, j, one->t)];
        const ms__chain_row *right = &table->rows[ms__chain_class(model, one->s, j - 1)];
        uint32_t taken = work->sizes[j];
        uint32_t start = start_of(work, larger(larger(none, taken), right->first), taken, left);
        if (start < end) {
            sums[one->fill.sum_count++] = (ms__chain_sum){
                .left = left->times - taken,
                .right = right->times,
                .left_ends = left->ends,
                .right_ends = right->ends,
                .start = start,
                .add = work->passed[j] - work->passed[one->s],
                .taken = taken,
            };
            one->first = smaller(one->first, start);
        }
    }
    one->fill.sums = sums;
}

static void make_row(ms__chain_work *work, making *one)
{
    ms__chain_table *table = work->table;
    ms__chain_row *row = &table->rows[one->id];
    uint32_t block = one->first / MS__CHAIN_BLOCK, blocks = work->blocks - block;
    size_t place = atomic_fetch_add_explicit(&work->used, blocks, memory_order_relaxed);
    row->times = table->pool + place * MS__CHAIN_BLOCK - (size_t)block * MS__CHAIN_BLOCK;
    row->ends = table->end_pool + place - block;
    row->first = one->first;
    one->fill.row = row->times;
    one->fill.begin = block * MS__CHAIN_BLOCK;
    one->fill.end = larger(smaller(one->flat / MS__CHAIN_BLOCK + 1, work->blocks), block) * MS__CHAIN_BLOCK;
    work->fill(&one->fill);
    memset(row->times + one->fill.end, 0, (work->blocks * MS__CHAIN_BLOCK - one->fill.end) * sizeof *row->times);
    for (; block < work->blocks; block++) {
        row->ends[block] = row->times[smaller(block * MS__CHAIN_BLOCK + MS__CHAIN_BLOCK - 1, table->top)];
    }
}

void ms__chain_solve_class(ms__chain_work *work, uint32_t class_id, const ms__chain_scratch *scratch)
{
    const ms__chain_table *table = work->table;
    making one = {.id = class_id, .first = table->top + 1, .flat = table->top + 1};
    one.s = table->model->starts[class_id];
    one.t = table->model->ends[class_id];
    list_rests(work, &one, scratch->rests);
    list_sums(work, &one, scratch->sums);
    work->flats[class_id] = one.flat;
    one.first = larger(one.first, work->lows[one.s]);
    if (one.first <= table->top) {
        make_row(work, &one);
    }
}
