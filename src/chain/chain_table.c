/*
 * The recurrence over segments and memory, in buckets: for each class of segments a row
 * of times by memory. No choice is stored; chain_unfold.c finds them again.
 *
 * Sizes are rounded to the nearest bucket, sums after they are added; the replay in
 * bytes (chain_replay.c), never the table, says what fits. Times are what a schedule takes
 * beyond the fastest options, in units of 2^shift ns rounded down: so an entry is never
 * more than what its schedule takes, and at shift 0 it is that.
 *
 * Where layers are equal, classes are solved by length; those of one length are shared out
 * among threads. Where all differ, the table is large and what counts is which rows are in
 * the processor's cache: a thread takes a few first layers and goes through their
 * segments by last layer, behind the thread that has the first layers after these. Each
 * entry is a minimum over integers, so the table doesn't depend on who solved what.
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/parts.h"
#include "base/thread.h"
#include "base/units.h"
#include "chain/chain.h"

enum {
    THREADS_MOST = 8,
    STRIP_LAYERS = 4 /* first layers that a thread takes at a time */
};
/* Sums of entries of a table that are worth a second thread. */
static const uint64_t parallel_work_least = 20000000;

/* ---- time units --------------------------------------------------------------------- */

/* No schedule passes layer i more often than there are layers behind it. */
static uint64_t longest(const ms__chain_model *model, uint32_t shift)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        const ms__chain_step *step = &model->steps[i];
        uint64_t dearest = 0;
        for (uint32_t k = step->first; k < step->end; k++) {
            dearest = ms__max_u64(dearest, model->choices[k].ns - step->fastest_ns);
        }
        uint64_t passes = ms__mul_sat(step->pass_ns >> shift, model->count - 1 - i);
        sum = ms__add_sat(sum, ms__add_sat(passes, dearest >> shift));
    }
    return sum;
}

static uint32_t choose_shift(const ms__chain_model *model)
{
    uint32_t shift = 0;
    while (shift < 63 && longest(model, shift) >= UINT32_MAX) {
        shift++;
    }
    return shift;
}

/* ---- moves ---------------------------------------------------------------------------- */

ms__chain_move ms__chain_save_move(const ms__chain_table *table, uint32_t s, uint32_t t, const ms__chain_choice *choice)
{
    ms__chain_move move = {
        .start = ms__chain_buckets(table, ms__chain_all(table->model, s, t, choice)),
        .taken = s < t ? ms__chain_buckets(table, choice->saved) : 0,
        .time = (uint32_t)((choice->ns - table->model->steps[s].fastest_ns) >> table->shift),
    };
    move.start = move.start > move.taken ? move.start : move.taken;
    return move;
}

/* ---- all classes --------------------------------------------------------------------------- */

typedef struct solving {
    ms__chain_work work;
    uint32_t *order;         /* classes by length */
    uint32_t *lengths;       /* [layers + 2] where a length begins in `order` */
    _Atomic uint32_t *next;  /* [layers + 2] the next of a length to be solved; where all
                              * differ, the next strip and how far each strip is */
    ms__chain_rest *rests;   /* [threads][the most choices of a layer] */
    ms__chain_sum *sums;     /* [threads][layers] */
    void *block;             /* all of these arrays, and those of `work` */
    uint32_t rests_most;
    uint32_t threads;
    ms__mutex lock;
    ms__cond moved_on;
    uint32_t waiting, round;
} solving;

/* Returns when every thread has called it as often as this one. */
static void wait_for_others(solving *w)
{
    ms__mutex_lock(&w->lock);
    uint32_t round = w->round;
    if (++w->waiting == w->threads) {
        w->waiting = 0;
        w->round++;
        ms__cond_broadcast(&w->moved_on);
    }
    while (w->round == round) {
        ms__cond_wait(&w->moved_on, &w->lock);
    }
    ms__mutex_unlock(&w->lock);
}

static void solve_lengths(solving *w, const ms__chain_scratch *scratch)
{
    for (uint32_t length = 1; length <= w->work.table->model->count; length++) {
        uint32_t at;
        while ((at = atomic_fetch_add_explicit(&w->next[length], 1, memory_order_relaxed)) < w->lengths[length + 1]) {
            ms__chain_solve_class(&w->work, w->order[at], scratch);
        }
        if (w->threads > 1) {
            wait_for_others(w);
        }
    }
}

/* Returns when the strip has solved all segments that end before `t`. */
static void wait_for_strip(const solving *w, uint32_t strip, uint32_t t)
{
    for (uint32_t turn = 0; atomic_load_explicit(&w->next[strip + 1], memory_order_acquire) < t; turn++) {
        if (turn > 64) {
            sched_yield();
        }
    }
}

/* Strip 0 has the last layers. A segment s..t needs those of later first layers that end
 * at t or before, which are in strips before this one, or were solved here just now. */
static void solve_strips(solving *w, const ms__chain_scratch *scratch)
{
    uint32_t count = w->work.table->model->count, strip;
    while ((uint64_t)(strip = atomic_fetch_add(&w->next[0], 1)) * STRIP_LAYERS < count) {
        uint32_t end = count - strip * STRIP_LAYERS;
        uint32_t start = end > STRIP_LAYERS ? end - STRIP_LAYERS : 0;
        for (uint32_t t = start; t < count; t++) {
            if (strip > 0 && t >= end) {
                wait_for_strip(w, strip - 1, t + 1);
            }
            for (uint32_t s = end; s-- > start;) {
                if (s <= t) {
                    ms__chain_solve_class(&w->work, (uint32_t)ms__chain_segment(count, s, t), scratch);
                }
            }
            atomic_store_explicit(&w->next[strip + 1], t + 1, memory_order_release);
        }
    }
}

static void solve_share(solving *w, uint32_t thread)
{
    ms__chain_scratch scratch = {.rests = w->rests + (size_t)thread * w->rests_most,
                                 .sums = w->sums + (size_t)thread * w->work.table->model->count};
    if (ms__chain_all_differ(w->work.table->model)) {
        solve_strips(w, &scratch);
    } else {
        solve_lengths(w, &scratch);
    }
}

typedef struct worker {
    solving *w;
    uint32_t number;
    ms__thread thread;
} worker;

static void run_worker(void *argument)
{
    worker *self = argument;
    /* Started before it is known how many could be. */
    ms__mutex_lock(&self->w->lock);
    while (self->w->threads == 0) {
        ms__cond_wait(&self->w->moved_on, &self->w->lock);
    }
    ms__mutex_unlock(&self->w->lock);
    solve_share(self->w, self->number);
}

static void solve_all(solving *w, uint32_t threads)
{
    worker workers[THREADS_MOST] = {{0}};
    uint32_t started = 1;
    ms__mutex_init(&w->lock);
    ms__cond_init(&w->moved_on);
    for (uint32_t i = 1; i < threads; i++) {
        worker *one = &workers[started];
        *one = (worker){.w = w, .number = started};
        if (ms__thread_start(&one->thread, "ms-chain", run_worker, one, NULL) != MS_OK) {
            break;
        }
        started++;
    }
    ms__mutex_lock(&w->lock);
    w->threads = started;
    ms__cond_broadcast(&w->moved_on);
    ms__mutex_unlock(&w->lock);
    solve_share(w, 0);
    for (uint32_t i = 1; i < started; i++) {
        ms__thread_join(&workers[i].thread);
    }
    ms__cond_destroy(&w->moved_on);
    ms__mutex_destroy(&w->lock);
}

static void sort_by_length(const ms__chain_model *model, solving *w)
{
    for (uint32_t id = 0; id < model->class_count; id++) {
        w->lengths[model->ends[id] - model->starts[id] + 2]++;
    }
    for (uint32_t length = 1; length <= model->count; length++) {
        w->lengths[length + 1] += w->lengths[length];
        atomic_init(&w->next[length], w->lengths[length]);
    }
    for (uint32_t id = 0; id < model->class_count; id++) {
        uint32_t length = model->ends[id] - model->starts[id] + 1;
        w->order[atomic_fetch_add(&w->next[length], 1)] = id;
    }
    for (uint32_t length = 1; length <= model->count; length++) {
        atomic_store(&w->next[length], w->lengths[length]);
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void lay_out(solving *w, uint32_t threads, size_t choices, ms__parts *parts)
{
    ms__chain_work *work = &w->work;
    const ms__chain_model *model = work->table->model;
    size_t layers = model->count;
    bool by_length = !ms__chain_all_differ(model);
    work->sizes = MS__PART(parts, work->sizes, layers + 1);
    work->passed = MS__PART(parts, work->passed, layers + 1);
    work->lows = MS__PART(parts, work->lows, layers);
    work->saved = MS__PART(parts, work->saved, choices);
    work->flats = MS__PART(parts, work->flats, model->class_count);
    work->zeros = MS__PART(parts, work->zeros, (size_t)work->blocks * MS__CHAIN_BLOCK);
    w->rests = MS__PART(parts, w->rests, (size_t)threads * w->rests_most);
    w->sums = MS__PART(parts, w->sums, threads * layers);
    w->next = MS__PART(parts, w->next, layers + 2);
    w->order = MS__PART(parts, w->order, by_length ? model->class_count : 0);
    w->lengths = MS__PART(parts, w->lengths, by_length ? layers + 2 : 0);
    w->block = parts->block;
}

static bool reserve_work(solving *w, uint32_t threads)
{
    const ms__chain_model *model = w->work.table->model;
    size_t choices = 0;
    ms__parts parts = {0};
    for (uint32_t i = 0; i < model->count; i++) {
        uint32_t count = model->steps[i].end - model->steps[i].first;
        w->rests_most = count > w->rests_most ? count : w->rests_most;
        choices = model->steps[i].end > choices ? model->steps[i].end : choices;
    }
    w->work.blocks = w->work.table->top / MS__CHAIN_BLOCK + 1;
    lay_out(w, threads, choices, &parts);
    if (!ms__parts_allocate(&parts)) {
        return false;
    }
    lay_out(w, threads, choices, &parts);
    return true;
}

static bool reserve(solving *w, uint32_t threads)
{
    ms__chain_work *work = &w->work;
    ms__chain_table *table = work->table;
    if (!reserve_work(w, threads)) {
        return false;
    }
    /* Pointers to entry 0 of a row, and to what another moves it by, stay inside the pool. */
    work->used = 2 * ((size_t)work->blocks + 1);
    size_t blocks = work->used + (size_t)table->model->class_count * work->blocks;
    table->rows = ms_realloc_array(NULL, table->model->class_count, sizeof *table->rows);
    /* Each entry is written before it is read: zeroing them would cost more than short chains. */
    table->pool = ms_realloc_array(NULL, blocks, MS__CHAIN_BLOCK * sizeof *table->pool);
    table->end_pool = ms_realloc_array(NULL, blocks, sizeof *table->end_pool);
    return table->rows != NULL && table->pool != NULL && table->end_pool != NULL;
}

/* What each layer can save at most is what those behind it may have to do without. Where a class
 * stands for segments at several places, all entries are wanted. */
static void find_lows(ms__chain_work *work)
{
    const ms__chain_model *model = work->table->model;
    uint32_t low = ms__chain_all_differ(model) ? work->table->low : 0;
    for (uint32_t i = 0; i < model->count; i++) {
        uint32_t most = 0;
        for (uint32_t k = model->steps[i].first; k < model->steps[i].end; k++) {
            most = work->saved[k] > most ? work->saved[k] : most;
        }
        work->lows[i] = low;
        low -= most < low ? most : low;
    }
}

static void prepare(ms__chain_work *work)
{
    ms__chain_table *table = work->table;
    const ms__chain_model *model = table->model;
    work->fill = ms__chain_select_filler();
    for (uint32_t i = 0; i <= model->count; i++) {
        work->sizes[i] = ms__chain_buckets(table, model->sizes[i]);
    }
    for (uint32_t i = 0; i < model->count; i++) {
        const ms__chain_step *step = &model->steps[i];
        work->passed[i + 1] = work->passed[i] + ms__chain_pass_time(table, i);
        for (uint32_t k = step->first; k < step->end && step->type == i; k++) {
            work->saved[k] = ms__chain_buckets(table, model->choices[k].saved);
        }
    }
    find_lows(work);
    for (uint32_t id = 0; id < model->class_count; id++) {
        table->rows[id] = (ms__chain_row){.first = UINT32_MAX};
    }
}

static int solve(solving *w, uint32_t threads)
{
    const ms__chain_model *model = w->work.table->model;
    uint64_t sums = ms__mul_sat(model->work, (uint64_t)w->work.table->top + 1);
    threads = sums < parallel_work_least ? 1 : threads < THREADS_MOST ? threads : THREADS_MOST;
    if (!reserve(w, threads)) {
        return MS_ENOMEM;
    }
    prepare(&w->work);
    if (!ms__chain_all_differ(model)) {
        sort_by_length(model, w);
    }
    solve_all(w, threads);
    return MS_OK;
}

int ms__chain_table_make(const ms__chain_model *model, uint64_t bucket, uint64_t low_units, uint64_t units,
                         uint32_t threads, ms__chain_table *table)
{
    solving w = {0};
    *table = (ms__chain_table){.model = model, .bucket = bucket, .inverse = UINT64_MAX / bucket};
    table->top = (uint32_t)(units / bucket);
    table->low = (uint32_t)ms__min_u64(low_units / bucket, table->top);
    table->shift = choose_shift(model);
    w.work.table = table;
    int rc = solve(&w, threads);
    ms_free(w.block);
    if (rc != MS_OK) {
        ms__chain_table_clear(table);
    }
    return rc;
}

ms__chain_times ms__chain_whole(const ms__chain_table *table)
{
    const ms__chain_row *row = &table->rows[ms__chain_class(table->model, 0, table->model->count - 1)];
    if (row->first > table->top) {
        return (ms__chain_times){0};
    }
    uint32_t last = table->top;
    while (last > row->first && row->times[last] == row->times[last - 1]) {
        last--;
    }
    return (ms__chain_times){.times = row->times + row->first, .first = row->first, .length = last - row->first + 1};
}

void ms__chain_table_clear(ms__chain_table *table)
{
    ms_free(table->rows);
    ms_free(table->pool);
    ms_free(table->end_pool);
    memset(table, 0, sizeof *table);
}
