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

#include "base/thread.h"
#include "base/units.h"
#include "plan/chain.h"

enum {
    THREADS_MOST = 8,
    STRIP_LAYERS = 4, /* first layers that a thread takes at a time */
    CACHED_ENTRIES = 1 << 19, /* a table of no more is in the processor's cache */
    QUEUE_BLOCKS = 16 /* about what a miss of the cache takes to be answered */
};
/* Entries of a table that are worth a second thread. */
static const uint64_t parallel_work_least = 8000000;

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

ms__chain_move ms__chain_save_move(const ms__chain_table *table, uint32_t s, uint32_t t,
                                   const ms__chain_choice *choice)
{
    ms__chain_move move = {
        .start = ms__chain_buckets(table, ms__chain_all(table->model, s, t, choice)),
        .taken = s < t ? ms__chain_buckets(table, choice->saved) : 0,
        .time = (uint32_t)((choice->ns - table->model->steps[s].fastest_ns) >> table->shift),
    };
    move.start = move.start > move.taken ? move.start : move.taken;
    return move;
}

ms__chain_move ms__chain_split_move(const ms__chain_table *table, uint32_t class_id, uint32_t j, uint32_t passes)
{
    ms__chain_move move = {
        .start = ms__chain_buckets(table, table->model->none[class_id]),
        .taken = ms__chain_buckets(table, table->model->sizes[j]),
        .time = passes,
    };
    move.start = move.start > move.taken ? move.start : move.taken;
    return move;
}

/* ---- one class -------------------------------------------------------------------------- */

typedef struct solving {
    ms__chain_table *table;
    const ms__chain_kernels *kernels;
    uint32_t *sizes;         /* [layers + 1] x_i in buckets */
    uint32_t *flats;         /* [classes] no entry behind this one differs; at most top */
    uint32_t *order;         /* classes by length */
    uint32_t *lengths;       /* [layers + 2] where a length begins in `order` */
    _Atomic uint32_t *next;  /* [layers + 2] the next of a length to be solved; where all
                              * differ, the next strip and how far each strip is */
    _Atomic size_t used, ends_used; /* of the pools */
    uint32_t *scratch;       /* [threads][top + 1] */
    size_t entries;          /* of all rows, at most */
    uint32_t threads;
    ms__mutex lock;
    ms__cond moved_on;
    uint32_t waiting, round;
} solving;

/* Entries lo .. hi - 1 of a class that is being solved. Each entry of the row is at most the
 * one before it, here and after every step. */
typedef struct span {
    uint32_t *row;
    uint32_t lo, hi;
} span;

/* Entries from m on take at most `time`. */
static void put(const span *at, uint32_t m, uint32_t time)
{
    for (; m < at->hi && time < at->row[m]; m++) {
        at->row[m] = time;
    }
}

static uint32_t flat_of(const ms__chain_row *row)
{
    return row->first + row->length - 1;
}

static uint32_t last_of(const ms__chain_row *row)
{
    return row->times[row->length - 1];
}

/* row[m] = min(row[m], rest at m - taken + add). */
static void apply_one(const ms__chain_kernels *kernels, span at, const ms__chain_row *rest, uint32_t taken,
                      uint32_t add)
{
    uint32_t flat = taken + flat_of(rest);
    uint32_t varies = flat < at.hi ? flat : at.hi;
    if (at.lo < varies) {
        kernels->one(at.row + at.lo, rest->times + (at.lo - taken - rest->first), add, varies - at.lo);
        at.lo = varies;
    }
    put(&at, at.lo, last_of(rest) + add);
}

static uint32_t end_of(const ms__chain_row *row, uint32_t m)
{
    return row->ends[m / MS__CHAIN_BLOCK - row->first / MS__CHAIN_BLOCK];
}

/* Blocks of a row that are to be compared with the sum of two others. Each waits until a few
 * more are known: what it reads is then in the processor's cache. */
typedef struct sum_block {
    uint32_t *row;
    const uint32_t *left, *right;
    uint32_t add, count; /* count 0: no block */
} sum_block;

typedef struct queue {
    sum_block blocks[QUEUE_BLOCKS];
    uint32_t next;
    bool waits; /* the table is larger than a cache */
} queue;

static void run_block(const ms__chain_kernels *kernels, sum_block *one)
{
    if (one->count > 0) {
        kernels->both(one->row, one->left, one->right, one->add, one->count);
    }
    one->count = 0;
}

static void run_queue(const ms__chain_kernels *kernels, queue *waiting)
{
    for (uint32_t i = 0; i < QUEUE_BLOCKS; i++) {
        run_block(kernels, &waiting->blocks[i]);
    }
}

static void fetch(const uint32_t *times, uint32_t count)
{
    enum { LINE = 64 / sizeof *times };
    for (uint32_t i = 0; i < count; i += LINE) {
        __builtin_prefetch(times + i);
    }
    __builtin_prefetch(times + count - 1);
}

static void queue_block(const ms__chain_kernels *kernels, queue *waiting, sum_block one)
{
    if (!waiting->waits) {
        run_block(kernels, &one);
        return;
    }
    sum_block *place = &waiting->blocks[waiting->next++ % QUEUE_BLOCKS];
    run_block(kernels, place);
    *place = one;
    fetch(one.left, one.count);
    fetch(one.right, one.count);
}

/* The same with `left` at m - taken and `right` at m, where neither is flat. Most blocks
 * can't be better anywhere than the row is at their beginning: that is seen at their ends,
 * which lie close together. */
static void apply_sums(const ms__chain_kernels *kernels, queue *waiting, span at, const ms__chain_row *left,
                       uint32_t taken, const ms__chain_row *right, uint32_t add)
{
    for (uint32_t m = at.lo, next; m < at.hi; m = next) {
        next = (m / MS__CHAIN_BLOCK + 1) * MS__CHAIN_BLOCK;
        next = next < at.hi ? next : at.hi;
        if (end_of(left, next - 1 - taken) + end_of(right, next - 1) + add < at.row[m]) {
            queue_block(kernels, waiting,
                        (sum_block){.row = at.row + m,
                                .left = left->times + (m - taken - left->first),
                                .right = right->times + (m - right->first),
                                .add = add,
                                .count = next - m});
        }
    }
}

/* row[m] = min(row[m], left at m - taken + right at m + add). */
static void apply_both(const ms__chain_kernels *kernels, queue *waiting, span at, const ms__chain_row *left,
                       uint32_t taken, const ms__chain_row *right, uint32_t add)
{
    uint32_t left_flat = taken + flat_of(left), right_flat = flat_of(right);
    uint32_t flat = left_flat < right_flat ? left_flat : right_flat;
    uint32_t varies = flat < at.hi ? flat : at.hi;
    if (at.lo < varies) {
        apply_sums(kernels, waiting, (span){at.row, at.lo, varies}, left, taken, right, add);
        at.lo = varies;
    }
    if (left_flat < right_flat) {
        apply_one(kernels, at, right, 0, last_of(left) + add);
    } else {
        apply_one(kernels, at, left, taken, last_of(right) + add);
    }
}

/* The last entry that differs from the one before. */
static uint32_t find_last(const uint32_t *row, uint32_t first, uint32_t end)
{
    uint32_t last = end - 1;
    while (last > first && row[last] == row[last - 1]) {
        last--;
    }
    return last;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* (b): layer s saved. Gives the first finite entry, or `first`. */
static uint32_t apply_saves(const solving *w, uint32_t s, uint32_t t, uint32_t *row, uint32_t end)
{
    const ms__chain_table *table = w->table;
    const ms__chain_step *step = &table->model->steps[s];
    const ms__chain_row *rest = s < t ? &table->rows[ms__chain_class(table->model, s + 1, t)] : NULL;
    uint32_t first = end;
    if (rest != NULL && rest->length == 0) {
        return first;
    }
    for (uint32_t k = step->first; k < step->end; k++) {
        ms__chain_move move = ms__chain_save_move(table, s, t, &table->model->choices[k]);
        span at = {row, rest != NULL ? larger(move.start, move.taken + rest->first) : move.start, end};
        if (at.lo >= end) {
            continue;
        }
        first = at.lo < first ? at.lo : first;
        if (rest != NULL) {
            apply_one(w->kernels, at, rest, move.taken, move.time);
        } else {
            put(&at, at.lo, move.time);
        }
    }
    return first;
}

/* (a): x_j made and kept. A split's time is at least its passes, which grow with j: from
 * `hi` on the row is below them already. */
static uint32_t apply_splits(const solving *w, uint32_t id, uint32_t *row, uint32_t first, uint32_t end)
{
    const ms__chain_table *table = w->table;
    uint32_t s = table->model->starts[id], t = table->model->ends[id], hi = end, passes = 0;
    uint32_t none = ms__chain_buckets(table, table->model->none[id]);
    queue waiting;
    waiting.waits = w->entries > CACHED_ENTRIES;
    if (waiting.waits) {
        memset(&waiting.blocks, 0, sizeof waiting.blocks);
        waiting.next = 0;
    }
    for (uint32_t j = s + 1; j <= t; j++) {
        passes += ms__chain_pass_time(table, j - 1);
        while (hi > none && row[hi - 1] <= passes) {
            hi--;
        }
        if (hi <= none) {
            break;
        }
        const ms__chain_row *left = &table->rows[ms__chain_class(table->model, j, t)];
        const ms__chain_row *right = &table->rows[ms__chain_class(table->model, s, j - 1)];
        if (left->length == 0 || right->length == 0) {
            continue;
        }
        uint32_t taken = w->sizes[j];
        span at = {row, larger(larger(none, right->first), taken + left->first), hi};
        if (at.lo < hi) {
            first = at.lo < first ? at.lo : first;
            apply_both(w->kernels, &waiting, at, left, taken, right, passes);
        }
    }
    if (waiting.waits) {
        run_queue(w->kernels, &waiting);
    }
    return first;
}

/* Stores entries first .. last of a class. */
static void store(solving *w, uint32_t id, const uint32_t *row, uint32_t first, uint32_t last)
{
    ms__chain_table *table = w->table;
    ms__chain_row *out = &table->rows[id];
    uint32_t block = first / MS__CHAIN_BLOCK, blocks = last / MS__CHAIN_BLOCK - block + 1;
    out->first = first;
    out->length = last - first + 1;
    out->times = table->pool + atomic_fetch_add_explicit(&w->used, out->length, memory_order_relaxed);
    out->ends = table->end_pool + atomic_fetch_add_explicit(&w->ends_used, blocks, memory_order_relaxed);
    memcpy(out->times, row + first, out->length * sizeof *row);
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t end = (block + i + 1) * MS__CHAIN_BLOCK - 1;
        out->ends[i] = row[end < last ? end : last];
    }
}

static void solve_class(solving *w, uint32_t id, uint32_t *scratch)
{
    uint32_t s = w->table->model->starts[id], t = w->table->model->ends[id], end = w->flats[id] + 1;
    memset(scratch, 0xff, end * sizeof *scratch);
    uint32_t first = apply_saves(w, s, t, scratch, end);
    first = apply_splits(w, id, scratch, first, end);
    if (first < end) {
        store(w, id, scratch, first, find_last(scratch, first, end));
    }
}

/* ---- all classes --------------------------------------------------------------------------- */

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

static void solve_lengths(solving *w, uint32_t *scratch)
{
    for (uint32_t length = 1; length <= w->table->model->count; length++) {
        uint32_t at;
        while ((at = atomic_fetch_add_explicit(&w->next[length], 1, memory_order_relaxed)) < w->lengths[length + 1]) {
            solve_class(w, w->order[at], scratch);
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
static void solve_strips(solving *w, uint32_t *scratch)
{
    uint32_t count = w->table->model->count, strip;
    while ((uint64_t)(strip = atomic_fetch_add(&w->next[0], 1)) * STRIP_LAYERS < count) {
        uint32_t end = count - strip * STRIP_LAYERS;
        uint32_t start = end > STRIP_LAYERS ? end - STRIP_LAYERS : 0;
        for (uint32_t t = start; t < count; t++) {
            if (strip > 0 && t >= end) {
                wait_for_strip(w, strip - 1, t + 1);
            }
            for (uint32_t s = end; s-- > start;) {
                if (s <= t) {
                    solve_class(w, (uint32_t)ms__chain_segment(count, s, t), scratch);
                }
            }
            atomic_store_explicit(&w->next[strip + 1], t + 1, memory_order_release);
        }
    }
}

static void solve_share(solving *w, uint32_t *scratch)
{
    if (ms__chain_all_differ(w->table->model)) {
        solve_strips(w, scratch);
    } else {
        solve_lengths(w, scratch);
    }
}

typedef struct worker {
    solving *w;
    uint32_t *scratch;
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
    solve_share(self->w, self->scratch);
}

static void solve_all(solving *w, uint32_t threads)
{
    worker workers[THREADS_MOST] = {{0}};
    uint32_t started = 1;
    size_t size = (size_t)w->table->top + 1;
    ms__mutex_init(&w->lock);
    ms__cond_init(&w->moved_on);
    for (uint32_t i = 1; i < threads; i++) {
        worker *one = &workers[started];
        *one = (worker){.w = w, .scratch = w->scratch + started * size};
        if (ms__thread_start(&one->thread, "ms-chain", run_worker, one, NULL) != MS_OK) {
            break;
        }
        started++;
    }
    ms__mutex_lock(&w->lock);
    w->threads = started;
    ms__cond_broadcast(&w->moved_on);
    ms__mutex_unlock(&w->lock);
    solve_share(w, w->scratch);
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

/* Where nothing is dearer than the fastest any more: every layer saved with such a choice.
 * Gives the entries and blocks that all rows may need. */
static void find_flats(const ms__chain_table *table, uint32_t *flats, size_t *entries, size_t *blocks)
{
    const ms__chain_model *model = table->model;
    *entries = *blocks = 0;
    for (uint32_t id = 0; id < model->class_count; id++) {
        uint32_t s = model->starts[id], t = model->ends[id];
        uint32_t behind = s < t ? flats[ms__chain_class(model, s + 1, t)] : 0;
        flats[id] = table->top;
        for (uint32_t k = model->steps[s].first; k < model->steps[s].end; k++) {
            ms__chain_move move = ms__chain_save_move(table, s, t, &model->choices[k]);
            uint32_t flat = larger(move.start, move.taken + behind);
            flats[id] = move.time == 0 && flat < flats[id] ? flat : flats[id];
        }
        *entries += (size_t)flats[id] + 1;
        *blocks += flats[id] / MS__CHAIN_BLOCK + 1;
    }
}

static int solve(ms__chain_table *table, solving *w, uint32_t threads)
{
    const ms__chain_model *model = table->model;
    uint64_t work = ms__mul_sat(model->work, (uint64_t)table->top + 1);
    threads = work < parallel_work_least ? 1 : threads < THREADS_MOST ? threads : THREADS_MOST;
    w->table = table;
    w->kernels = ms__chain_kernels_select();
    w->sizes = ms_calloc((size_t)model->count + 1, sizeof *w->sizes);
    w->flats = ms_calloc(model->class_count, sizeof *w->flats);
    w->order = ms_calloc(model->class_count, sizeof *w->order);
    w->lengths = ms_calloc((size_t)model->count + 2, sizeof *w->lengths);
    w->next = ms_calloc((size_t)model->count + 2, sizeof *w->next);
    w->scratch = ms_calloc(threads, ((size_t)table->top + 1) * sizeof *w->scratch);
    table->rows = ms_calloc(model->class_count, sizeof *table->rows);
    if (w->sizes == NULL || w->flats == NULL || w->order == NULL || w->lengths == NULL || w->next == NULL || w->scratch == NULL ||
        table->rows == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i <= model->count; i++) {
        w->sizes[i] = ms__chain_buckets(table, model->sizes[i]);
    }
    size_t blocks;
    find_flats(table, w->flats, &w->entries, &blocks);
    /* Each entry is written before it is read: zeroing them would cost more than short chains. */
    table->pool = ms_realloc_array(NULL, w->entries, sizeof *table->pool);
    table->end_pool = ms_realloc_array(NULL, blocks, sizeof *table->end_pool);
    if (table->pool == NULL || table->end_pool == NULL) {
        return MS_ENOMEM;
    }
    if (!ms__chain_all_differ(model)) {
        sort_by_length(model, w);
    }
    solve_all(w, threads);
    return MS_OK;
}

int ms__chain_table_make(const ms__chain_model *model, uint64_t bucket, uint64_t units, uint32_t threads,
                         ms__chain_table *table)
{
    solving w = {0};
    *table = (ms__chain_table){.model = model, .bucket = bucket, .top = (uint32_t)(units / bucket)};
    table->shift = choose_shift(model);
    int rc = solve(table, &w, threads);
    ms_free(w.sizes);
    ms_free(w.flats);
    ms_free(w.order);
    ms_free(w.lengths);
    ms_free(w.next);
    ms_free(w.scratch);
    if (rc != MS_OK) {
        ms__chain_table_clear(table);
    }
    return rc;
}

void ms__chain_table_clear(ms__chain_table *table)
{
    ms_free(table->rows);
    ms_free(table->pool);
    ms_free(table->end_pool);
    memset(table, 0, sizeof *table);
}
