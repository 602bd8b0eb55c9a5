/*
 * Options over links, by prices. The recurrence knows no queues: it charges each transfer a
 * price, a share of the time that it takes, as if that share could not be hidden. At the
 * right price of a link its transfers take about as long as the compute that hides them
 * (Lagrange's multiplier of "a link is busy no longer than the step"). Prices are halved in
 * on, schedules of every table are replayed with their transfers beside the compute, and the
 * fastest that fits is the answer. Called by chain.c with an answer at full prices, in which
 * compute waits for every transfer; what leaves here is never slower.
 *
 * Which tables are solved, at which prices, and which of their schedules are looked at
 * depends on the chain and on the level of budgets, never on the budget itself: so a larger
 * budget can choose from all that a smaller one can.
 */
#include <string.h>

#include "base/units.h"
#include "chain/chain.h"

enum {
    ROUNDS_MOST = 5,      /* tables of a level while prices are halved in on */
    PRICE_FIRST = 8,      /* sixteenths */
    PRICE_MOST = 32,
    SCHEDULES_MOST = 64,  /* of a table that are replayed */
    BUCKETS_LEAST = 100,
    BUCKETS_MOST = 2000,
    LEVELS_MOST = 24,
    LAYERS_MOST = 300     /* in longer chains compute waits for every transfer */
};
/* Prices that every link has at once, and how many of them are tried where a table is dear. */
static const uint32_t common_prices[] = {0, MS__CHAIN_PRICE_ONE, 4, 8, 2, 12, 6, 24, 32};
enum { COMMON_PRICES = sizeof common_prices / sizeof common_prices[0], COMMON_PRICES_LEAST = 2 };
/* Splits times buckets: of a table, which has fewer buckets then; of the tables of a level while
 * prices are halved in on; of a table that is cheap; of one that gets more buckets than usual. */
static const uint64_t table_work_most = 300000000, rounds_work_most = 500000000, cheap_work = 20000000;
static const uint64_t short_work = 1000000;

/* Write and read windows in multiples of the largest transfer. */
static const uint32_t window_shapes[][2] = {{0, 0}, {1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}, {16, 8}};
enum { WINDOW_SHAPES = sizeof window_shapes / sizeof window_shapes[0] };

typedef struct linking {
    const ms_chain *chain;
    uint64_t budget_bytes;
    uint32_t threads;
    ms__chain_windows windows[WINDOW_SHAPES];
    ms__chain_schedule best; /* with its makespan and peak under best_windows */
    ms__chain_windows best_windows;
    bool found;
    uint64_t bound_ns;
} linking;

bool ms__chain_has_transfers(const ms_chain *chain)
{
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        for (uint32_t k = 0; k < chain->layers[i].option_count; k++) {
            if (chain->layers[i].options[k].link != 0) {
                return true;
            }
        }
    }
    return false;
}

/* ---- prices --------------------------------------------------------------------------- */

static uint64_t priced_ns(uint64_t ns, uint32_t price)
{
    return price == MS__CHAIN_PRICE_ONE ? ns : ms__mul_div(ns, price, MS__CHAIN_PRICE_ONE);
}

static int price_layer(const ms_chain *chain, uint32_t i, const uint32_t *prices, ms_chain_layer *out)
{
    const ms_chain_layer *layer = &chain->layers[i];
    *out = *layer;
    out->name = NULL;
    out->option_count = 0;
    out->options = ms_calloc(layer->option_count, sizeof *out->options);
    if (out->options == NULL) {
        return MS_ENOMEM;
    }
    out->option_count = layer->option_count;
    for (uint32_t k = 0; k < layer->option_count; k++) {
        const ms_chain_option *option = &layer->options[k];
        uint32_t price = option->link == 0 || prices == NULL ? MS__CHAIN_PRICE_ONE : prices[option->link - 1];
        uint64_t ns = priced_ns(ms__chain_transfer_ns(chain, option), price);
        out->options[k] = *option;
        out->options[k].kind = NULL;
        out->options[k].link = 0;
        out->options[k].link_bytes = 0;
        out->options[k].fwd_ns = ms__add_sat(option->fwd_ns, ns);
        out->options[k].bwd_ns = ms__add_sat(option->bwd_ns, ns);
    }
    return MS_OK;
}

int ms__chain_priced(const ms_chain *chain, const uint32_t *prices, ms_chain **priced)
{
    ms_chain *made = ms_calloc(1, sizeof *made);
    int rc = made == NULL ? MS_ENOMEM : MS_OK;
    if (rc == MS_OK) {
        made->input_bytes = chain->input_bytes;
        made->layers = ms_calloc(chain->layer_count, sizeof *made->layers);
        made->layer_count = made->layers == NULL ? 0 : chain->layer_count;
        rc = made->layers == NULL ? MS_ENOMEM : MS_OK;
    }
    for (uint32_t i = 0; rc == MS_OK && i < chain->layer_count; i++) {
        rc = price_layer(chain, i, prices, &made->layers[i]);
    }
    if (rc != MS_OK) {
        ms_chain_free(made);
        return rc;
    }
    *priced = made;
    return MS_OK;
}

/* ---- candidates ------------------------------------------------------------------------ */

static bool better(const linking *l, uint64_t makespan_ns, uint64_t peak_bytes)
{
    return !l->found || makespan_ns < l->best.makespan_ns ||
           (makespan_ns == l->best.makespan_ns && peak_bytes < l->best.peak_bytes);
}

/* Replays a schedule under the first so many windows; it is taken over. */
static int offer(linking *l, ms__chain_schedule *schedule, uint32_t windows)
{
    int rc = MS_OK;
    bool taken = false;
    for (uint32_t i = 0; rc == MS_OK && i < windows; i++) {
        uint64_t makespan_ns = 0, peak_bytes = 0;
        rc = ms__chain_overlap(l->chain, schedule, &l->windows[i], &makespan_ns, &peak_bytes);
        if (rc != MS_OK || peak_bytes > l->budget_bytes || peak_bytes == UINT64_MAX ||
            !better(l, makespan_ns, peak_bytes)) {
            continue;
        }
        if (!taken) {
            ms__chain_schedule_clear(&l->best);
            l->best = *schedule;
            taken = true;
        }
        l->best.makespan_ns = makespan_ns;
        l->best.peak_bytes = peak_bytes;
        l->best_windows = l->windows[i];
        l->found = true;
    }
    if (taken) {
        memset(schedule, 0, sizeof *schedule);
    }
    ms__chain_schedule_clear(schedule);
    return rc;
}

/* One table, and what it was made of. */
typedef struct market {
    const uint32_t *prices;
    uint32_t price_sum; /* of all links, and one for the compute */
    ms_chain *chain;    /* at these prices */
    ms__chain_model model;
    ms__chain_table table;
    uint64_t fastest_ns; /* at these prices */
} market;

/* A makespan is at least the compute and at least what each link is busy; so at least their
 * mean, weighted by the prices. */
static uint64_t bound_of(const market *m, uint64_t priced)
{
    return ms__mul_div(priced, MS__CHAIN_PRICE_ONE, m->price_sum);
}

static uint64_t entry_ns(const market *m, uint32_t time)
{
    return ms__add_sat(m->fastest_ns, (uint64_t)time << m->table.shift);
}

static int offer_entry(linking *l, const market *of, uint32_t m, ms_error *err)
{
    ms__chain_schedule schedule = {0};
    int rc = ms__chain_unfold(&of->table, m, &schedule);
    rc = rc != MS_OK ? ms_fail(err, rc, "chain: no schedule at %u buckets", m)
                     : ms__chain_replay(of->chain, &schedule, err);
    if (rc == MS_OK && schedule.peak_bytes <= l->budget_bytes && offer(l, &schedule, WINDOW_SHAPES) != MS_OK) {
        rc = ms_fail(err, MS_ENOMEM, "chain: out of memory");
    }
    ms__chain_schedule_clear(&schedule);
    return rc;
}

/* Whether the entry begins a time that is one of those looked at. */
static bool looked_at(const ms__chain_times *row, uint32_t i, uint32_t stride)
{
    return (i == 0 || row->times[i - 1] != row->times[i]) && (stride == 1 || i % stride == 0 || i + 1 == row->length);
}

/* Schedules of the table, the fastest at its prices first, until none can be faster. */
static int offer_table(linking *l, const market *of, ms_error *err)
{
    const ms__chain_times row = ms__chain_whole(&of->table);
    uint64_t units = ms__sub_sat(l->budget_bytes / of->model.unit_bytes, of->model.sizes[0]);
    uint64_t reach = ms__add_sat(units, ms__chain_rounding(&of->model, of->table.bucket, units, true));
    uint32_t stride = (uint32_t)ms__max_u64(row.length / SCHEDULES_MOST, 1);
    int rc = MS_OK;
    for (uint32_t i = row.length; rc == MS_OK && i-- > 0;) {
        if (l->found && bound_of(of, entry_ns(of, row.times[i])) > l->best.makespan_ns) {
            break;
        }
        bool fits = ms__mul_sat(row.first + i, of->table.bucket) <= reach;
        if (fits && looked_at(&row, i, stride)) {
            rc = offer_entry(l, of, row.first + i, err);
        }
    }
    return rc;
}

/* What the budget allows at these prices bounds every schedule's makespan from below. */
static void raise_bound(linking *l, const market *of)
{
    const ms__chain_times row = ms__chain_whole(&of->table);
    uint64_t units = ms__sub_sat(l->budget_bytes / of->model.unit_bytes, of->model.sizes[0]);
    uint64_t rounded = ms__add_sat(units, ms__chain_rounding(&of->model, of->table.bucket, units, true));
    uint64_t m = rounded / of->table.bucket, priced = of->fastest_ns;
    uint32_t time;
    if (m <= of->table.top && ms__chain_times_at(&row, (uint32_t)m, &time)) {
        priced = entry_ns(of, time);
    }
    l->bound_ns = ms__max_u64(l->bound_ns, bound_of(of, priced));
}

/* ---- adjusting prices --------------------------------------------------------------------- */

typedef struct price_range {
    uint32_t low, high, price;
} price_range;

/* Dearer where the link is busy for longer than there is compute, else cheaper. */
static void adjust(const linking *l, const ms__chain_schedule *schedule, price_range *ranges)
{
    uint64_t compute = 0, busy[MS_CHAIN_LINKS_MOST] = {0};
    for (size_t i = 0; i < schedule->ops.count; i++) {
        const ms_chain_op *op = &schedule->ops.items[i];
        const ms_chain_layer *layer = &l->chain->layers[op->layer];
        const ms_chain_option *option = &layer->options[op->option];
        bool passes = op->kind == MS_CHAIN_FWD_DROP || op->kind == MS_CHAIN_FWD_CKPT;
        compute = ms__add_sat(compute, passes                     ? layer->fwd_ns
                                       : op->kind == MS_CHAIN_BWD ? option->bwd_ns
                                                                  : option->fwd_ns);
        if (!passes && option->link != 0) {
            uint64_t *at = &busy[option->link - 1];
            *at = ms__add_sat(*at, ms__chain_transfer_ns(l->chain, option));
        }
    }
    for (uint32_t i = 0; i < l->chain->link_count; i++) {
        price_range *range = &ranges[i];
        *(busy[i] > compute ? &range->low : &range->high) = range->price;
        range->price = (range->low + range->high) / 2;
    }
}

/* The schedule that has all of the table's memory. */
static int adjust_by_table(const linking *l, const market *of, price_range *ranges, ms_error *err)
{
    const ms__chain_times row = ms__chain_whole(&of->table);
    ms__chain_schedule schedule = {0};
    int rc = MS_OK;
    if (row.length > 0) {
        rc = ms__chain_unfold(&of->table, row.first + row.length - 1, &schedule);
        rc = rc != MS_OK ? ms_fail(err, rc, "chain: no schedule") : MS_OK;
    }
    if (rc == MS_OK) {
        adjust(l, &schedule, ranges);
    }
    ms__chain_schedule_clear(&schedule);
    return rc;
}

/* ---- levels --------------------------------------------------------------------------------- */

/* A budget that the chain alone fixes, in units. */
typedef struct level {
    uint64_t units, bucket;
} level;

static void open_market(const linking *l, const uint32_t *prices, market *made)
{
    *made = (market){.prices = prices, .price_sum = MS__CHAIN_PRICE_ONE};
    for (uint32_t i = 0; i < l->chain->link_count; i++) {
        made->price_sum += prices[i];
    }
}

static void close_market(market *of)
{
    ms__chain_table_clear(&of->table);
    ms__chain_model_clear(&of->model);
    ms_chain_free(of->chain);
}

static uint64_t fastest_of(const ms__chain_model *model)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        sum = ms__add_sat(sum, model->steps[i].fastest_ns);
    }
    return sum;
}

static int solve_market(const linking *l, const level *at, market *of)
{
    int rc = ms__chain_priced(l->chain, of->prices, &of->chain);
    rc = rc != MS_OK ? rc : ms__chain_model_make(of->chain, &of->model);
    if (rc == MS_OK) {
        of->fastest_ns = fastest_of(&of->model);
        rc = ms__chain_table_make(&of->model, at->bucket, 0, ms__sub_sat(at->units, of->model.sizes[0]), l->threads,
                                  &of->table);
    }
    return rc;
}

static int solve_level(linking *l, const level *at, const uint32_t *prices, price_range *ranges, bool bound,
                       ms_error *err)
{
    market made;
    open_market(l, prices, &made);
    int rc = solve_market(l, at, &made);
    rc = rc != MS_OK ? ms_fail(err, rc, "chain: out of memory for the tables of links") : MS_OK;
    if (rc == MS_OK && bound) {
        raise_bound(l, &made);
    }
    rc = rc != MS_OK ? rc : offer_table(l, &made, err);
    rc = rc != MS_OK || ranges == NULL ? rc : adjust_by_table(l, &made, ranges, err);
    close_market(&made);
    return rc;
}

/* How much is solved at each level. */
typedef struct effort {
    uint32_t buckets, common, rounds;
} effort;

static effort choose_effort(const ms__chain_model *model)
{
    uint64_t work = ms__max_u64(model->work, 1);
    uint64_t affordable = ms__max_u64(table_work_most / work, BUCKETS_LEAST);
    uint64_t buckets = ms__min_u64(ms__max_u64(short_work / work, MS_CHAIN_BUCKETS), BUCKETS_MOST);
    buckets = ms__min_u64(buckets, affordable);
    work = ms__mul_sat(work, buckets);
    return (effort){.buckets = (uint32_t)buckets,
                    .common = work <= cheap_work ? COMMON_PRICES : COMMON_PRICES_LEAST,
                    .rounds = (uint32_t)ms__min_u64(rounds_work_most / work, ROUNDS_MOST)};
}

/* At common prices, then closing in on those of each link. */
static int solve_rounds(linking *l, const level *at, const effort *spent, bool bound, ms_error *err)
{
    uint32_t prices[MS_CHAIN_LINKS_MOST];
    price_range ranges[MS_CHAIN_LINKS_MOST];
    int rc = MS_OK;
    for (uint32_t round = 0; rc == MS_OK && round < spent->common; round++) {
        for (uint32_t i = 0; i < l->chain->link_count; i++) {
            prices[i] = common_prices[round];
        }
        rc = solve_level(l, at, prices, NULL, bound, err);
    }
    for (uint32_t i = 0; i < MS_CHAIN_LINKS_MOST; i++) {
        ranges[i] = (price_range){.high = PRICE_MOST, .price = PRICE_FIRST};
    }
    for (uint32_t round = 0; rc == MS_OK && round < spent->rounds; round++) {
        for (uint32_t i = 0; i < l->chain->link_count; i++) {
            prices[i] = ranges[i].price;
        }
        rc = solve_level(l, at, prices, ranges, bound, err);
    }
    return rc;
}

/* Halves of what the fastest schedule takes, and last the largest of buckets of one unit. */
static uint32_t list_levels(uint64_t most, uint64_t least, uint32_t buckets, level *levels)
{
    uint64_t one_unit = buckets;
    uint32_t count = 0;
    for (uint64_t units = most; units > one_unit && units >= least && count + 1 < LEVELS_MOST; units /= 2) {
        levels[count++] = (level){.units = units, .bucket = ms__div_up(units, buckets)};
    }
    if (least <= one_unit) {
        levels[count++] = (level){.units = one_unit, .bucket = 1};
    }
    return count;
}

/* Levels from the first that is not below the budget; below the least nothing fits. */
static int solve_levels(linking *l, const ms__chain_model *model, uint64_t most, uint64_t least, ms_error *err)
{
    level levels[LEVELS_MOST];
    effort spent = choose_effort(model);
    uint32_t count = list_levels(most, least, spent.buckets, levels);
    uint64_t budget = l->budget_bytes / model->unit_bytes;
    bool first = true;
    int rc = MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
        if (i + 1 < count && levels[i + 1].units >= budget) {
            continue;
        }
        rc = solve_rounds(l, &levels[i], &spent, first, err);
        first = false;
    }
    return rc;
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void set_windows(linking *l)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < l->chain->layer_count; i++) {
        for (uint32_t k = 0; k < l->chain->layers[i].option_count; k++) {
            const ms_chain_option *option = &l->chain->layers[i].options[k];
            largest = option->link != 0 ? ms__max_u64(largest, option->link_bytes) : largest;
        }
    }
    for (uint32_t i = 0; i < WINDOW_SHAPES; i++) {
        l->windows[i] =
            (ms__chain_windows){ms__mul_sat(largest, window_shapes[i][0]), ms__mul_sat(largest, window_shapes[i][1])};
    }
}

/* Takes the answer's operations over. Compute waits for all transfers: beside them its schedule
 * could be faster than that for a larger budget. */
static int offer_answer(linking *l, ms_chain_answer *answer)
{
    ms__chain_schedule schedule = {.makespan_ns = answer->makespan_ns, .peak_bytes = answer->peak_bytes};
    schedule.ops.items = answer->ops;
    schedule.ops.count = schedule.ops.capacity = answer->op_count;
    answer->ops = NULL;
    answer->op_count = 0;
    return offer(l, &schedule, 1);
}

static void give(linking *l, ms_chain_answer *answer)
{
    answer->makespan_ns = l->best.makespan_ns;
    answer->peak_bytes = l->best.peak_bytes;
    answer->write_window_bytes = l->best_windows.write_bytes;
    answer->read_window_bytes = l->best_windows.read_bytes;
    answer->ops = l->best.ops.items;
    answer->op_count = l->best.ops.count;
    memset(&l->best, 0, sizeof l->best);
}

/* The budget beyond which the table of free transfers changes nothing, and the rest. */
static int search(linking *l, uint64_t least_bytes, ms_error *err)
{
    uint32_t prices[MS_CHAIN_LINKS_MOST] = {0};
    ms_chain *freed = NULL;
    ms__chain_model model = {0};
    ms__chain_schedule fastest = {0};
    int rc = ms__chain_priced(l->chain, prices, &freed);
    rc = rc != MS_OK ? rc : ms__chain_model_make(freed, &model);
    rc = rc != MS_OK ? rc : ms__chain_fastest(freed, &fastest, &l->bound_ns);
    rc = rc != MS_OK ? ms_fail(err, rc, "chain: out of memory for links") : ms__chain_replay(freed, &fastest, err);
    bool done = l->found && l->best.makespan_ns == l->bound_ns;
    if (rc == MS_OK && l->found && !done && l->chain->layer_count <= LAYERS_MOST && fastest.peak_bytes != UINT64_MAX) {
        rc = solve_levels(l, &model, fastest.peak_bytes / model.unit_bytes, least_bytes / model.unit_bytes, err);
    }
    ms__chain_schedule_clear(&fastest);
    ms__chain_model_clear(&model);
    ms_chain_free(freed);
    return rc;
}

int ms__chain_links_improve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer,
                            ms_error *err)
{
    linking l = {.chain = chain, .budget_bytes = budget_bytes, .threads = threads};
    set_windows(&l);
    int rc = MS_OK;
    if (answer->feasible && offer_answer(&l, answer) != MS_OK) {
        rc = ms_fail(err, MS_ENOMEM, "chain: out of memory");
    }
    rc = rc != MS_OK ? rc : search(&l, answer->smallest_budget_bytes, err);
    if (rc == MS_OK) {
        /* Where a forward that saves takes less than one that doesn't, tables ask for more room than
         * their schedules use, and bound too much. */
        answer->lower_bound_ns = l.found ? ms__min_u64(l.bound_ns, l.best.makespan_ns) : l.bound_ns;
        answer->exact = !answer->feasible || l.best.makespan_ns == l.bound_ns;
    }
    if (rc == MS_OK && l.found) {
        give(&l, answer);
    }
    ms__chain_schedule_clear(&l.best);
    return rc;
}
