/*
 * Which tables are solved for a chain and a budget, and the answer.
 *
 * Levels. Where a bucket is one unit, one table gives the optimum. For larger budgets
 * there are levels, budgets that halve (where tables are cheap, in four steps) from what the
 * fastest schedule takes down to the least, and at last the largest budget whose buckets are one unit. The levels
 * depend on the chain alone; a budget is answered by the best replay among the schedules of the
 * smallest level that holds it and all smaller ones, so what a smaller budget can choose from,
 * a larger one can too. A table reaches as far as rounding can move a schedule that fits both
 * the level and the budget; where levels lie far apart, a quarter beyond the level counts too.
 *
 * Most levels need not be solved: a schedule in the table of a small level takes no more
 * than that level's memory and its rounding; a table already solved, with its own rounding
 * added, says how fast such a schedule can be at best. If that isn't faster than what was
 * found, the level changes nothing.
 *
 * Chains for which a table would be too dear have no levels. They, and all long chains, are
 * also solved as chains of groups of layers, of which the same holds.
 */
#include <sched.h>
#include <string.h>

#include "base/units.h"
#include "chain/chain.h"

enum {
    LEVELS_MOST = 256,
    LEVELS_HALVE = 4, /* levels lie a fourth root of 2 apart */
    BUCKETS_MOST = 1 << 16,
    BUCKETS_LEAST = 8,
    BUCKETS_FINE = 1500, /* the most that a chain gets for its length, so many for each layer: */
    BUCKETS_PER_LAYER = 50,
    BUCKETS_OF_USE = 200, /* with fewer only the table of one unit is solved */
    ENTRIES_MOST = 44 << 20, /* of all rows of a table */
    THREADS_MOST = 8,
    LONG_CHAIN = 300, /* longer ones are also solved as groups of COARSER layers */
    COARSER = 4
};
/* Splits times buckets. A chain gets more buckets than usual while a table costs no more
 * than the first (or, if it is long, the second), and fewer so that it costs no more than
 * the third. Tables of one unit have more buckets while they cost no more than exact_work. */
static const uint64_t exact_work = 1000000;
static const uint64_t fine_work = 300000000, cheap_long_work = 600000000, dear_work = 3000000000;

/* Times of the whole chain in a table that was solved. */
typedef struct level {
    ms__chain_times row;
    uint32_t *times; /* of the row */
    uint64_t bucket;
    uint32_t low, top, shift;
} level;

typedef struct solving {
    const ms_chain *chain;
    ms__chain_model model;
    uint64_t budget_bytes, budget; /* the second in units */
    uint64_t fastest_ns;
    uint64_t one_unit; /* up to this budget a bucket is a unit */
    uint32_t buckets, threads;
    MS__ARRAY(level) levels;
    ms__chain_schedule best; /* fits the budget */
    bool found, exact;
} solving;

/* ---- candidates ------------------------------------------------------------------------ */

static bool better(const ms__chain_schedule *a, const ms__chain_schedule *b)
{
    return a->makespan_ns != b->makespan_ns ? a->makespan_ns < b->makespan_ns : a->peak_bytes < b->peak_bytes;
}

/* Keeps a replayed schedule where it fits and is better; it is taken over. */
static void offer(solving *s, ms__chain_schedule *schedule)
{
    bool fits = schedule->peak_bytes <= s->budget_bytes && schedule->peak_bytes != UINT64_MAX;
    if (fits && (!s->found || better(schedule, &s->best))) {
        ms__chain_schedule_clear(&s->best);
        s->best = *schedule;
        s->found = true;
        memset(schedule, 0, sizeof *schedule);
    }
    ms__chain_schedule_clear(schedule);
}

static int offer_entry(solving *s, const ms__chain_table *table, uint32_t m, ms_error *err)
{
    ms__chain_schedule schedule = {0};
    int rc = ms__chain_unfold(table, m, &schedule);
    if (rc != MS_OK) {
        rc = ms_fail(err, rc, "chain: no schedule at %u buckets", m);
    } else {
        rc = ms__chain_replay(s->chain, &schedule, err);
    }
    if (rc == MS_OK) {
        offer(s, &schedule);
    }
    ms__chain_schedule_clear(&schedule);
    return rc;
}

static uint64_t entry_ns(const solving *s, uint32_t shift, uint32_t time)
{
    return ms__add_sat(s->fastest_ns, (uint64_t)time << shift);
}

/* Whether the first entry's time begins below what was made of the table. */
static bool is_cut(const ms__chain_table *table, const ms__chain_times *row)
{
    return table->low > 0 && row->length > 0 && row->first == table->low;
}

/* Schedules of every time that the table has, the fastest first, until none can be better
 * than what was found. Each from the least memory that gives its time: where times are rounded,
 * schedules of one time differ, and which is looked at must not depend on the budget. */
static int offer_entries(solving *s, const ms__chain_table *table, uint64_t reach, ms__chain_pending *stack,
                         ms_error *err)
{
    const ms__chain_times row = ms__chain_whole(table);
    bool rounded = table->shift > 0;
    int rc = MS_OK;
    for (uint32_t i = row.length; rc == MS_OK && i-- > 0;) {
        bool first_of_time = i == 0 ? !rounded || !is_cut(table, &row) : row.times[i - 1] != row.times[i], fits = false;
        if (s->found && entry_ns(s, table->shift, row.times[i]) > s->best.makespan_ns) {
            break;
        }
        if (!first_of_time || ms__mul_sat(row.first + i, table->bucket) > reach) {
            continue;
        }
        rc = ms__chain_fits(table, row.first + i, s->budget, stack, &fits);
        if (rc != MS_OK) {
            rc = ms_fail(err, rc, "chain: no schedule at %u buckets", row.first + i);
        } else if (fits) {
            rc = offer_entry(s, table, row.first + i, err);
        }
    }
    return rc;
}

static int offer_table(solving *s, const ms__chain_table *table, uint64_t reach, ms_error *err)
{
    ms__chain_pending *stack = ms_calloc(ms__chain_stack_size(table->model), sizeof *stack);
    int rc =
        stack == NULL ? ms_fail(err, MS_ENOMEM, "chain: out of memory") : offer_entries(s, table, reach, stack, err);
    ms_free(stack);
    return rc;
}

/* ---- what a level can give ------------------------------------------------------------ */

/* No schedule that takes `units` beside x_0 when it is rounded is faster than this. */
static uint64_t bound_at(const solving *s, const level *known, uint64_t units)
{
    uint64_t m = units / known->bucket;
    uint32_t time;
    if (m > known->top) {
        return s->fastest_ns;
    }
    /* Entries below `low` are not known, and no less than that. */
    bool any = ms__chain_times_at(&known->row, (uint32_t)ms__max_u64(m, known->low), &time);
    return any ? entry_ns(s, known->shift, time) : UINT64_MAX;
}

/* Whether the table shows that no schedule of up to `units` is faster than what was found. Rounding
 * is looked at only where it decides. */
static bool excludes(const solving *s, const level *known, uint64_t units)
{
    if (bound_at(s, known, units) < s->best.makespan_ns) {
        return false;
    }
    uint64_t rounding = ms__chain_rounding(&s->model, known->bucket, units, true);
    return bound_at(s, known, ms__add_sat(units, rounding)) >= s->best.makespan_ns;
}

/* Whether a schedule of up to `units` could be better than what was found. */
static bool may_help(const solving *s, uint64_t units)
{
    if (!s->found || s->levels.count == 0) {
        return true;
    }
    for (size_t i = 0; i < s->levels.count; i++) {
        if (excludes(s, &s->levels.items[i], units)) {
            return false;
        }
    }
    return true;
}

/* ---- tables --------------------------------------------------------------------------------- */

static int remember(solving *s, const ms__chain_table *table)
{
    level *known = MS__ARRAY_PUSH(&s->levels);
    if (known == NULL) {
        return MS_ENOMEM;
    }
    *known = (level){.row = ms__chain_whole(table), .bucket = table->bucket, .low = table->low};
    known->top = table->top;
    known->shift = table->shift;
    known->times = ms_realloc_array(NULL, known->row.length, sizeof *known->times);
    if (known->times == NULL) {
        s->levels.count--;
        return MS_ENOMEM;
    }
    if (known->row.length > 0) {
        memcpy(known->times, known->row.times, known->row.length * sizeof *known->times);
    }
    known->row.times = known->times;
    return MS_OK;
}

/* Whether entries that were left out may give the optimum with less memory, or where times are
 * rounded what is faster by less than that. */
static bool goes_on_below(const solving *s, const ms__chain_table *table)
{
    const ms__chain_times row = ms__chain_whole(table);
    return (table->bucket == 1 || table->shift > 0) && is_cut(table, &row) &&
           (!s->found || entry_ns(s, table->shift, row.times[0]) <= s->best.makespan_ns);
}

static int solve_table(solving *s, uint64_t bucket, uint64_t units, ms_error *err)
{
    ms__chain_table table;
    uint64_t beside = ms__sub_sat(s->budget, s->model.sizes[0]);
    /* What is below fits, and isn't faster. */
    uint64_t low = ms__sub_sat(ms__min_u64(beside, units), ms__chain_rounding_most(&s->model, bucket));
    bool again = false;
    int rc = MS_OK;
    do {
        low = again ? 0 : low;
        rc = ms__chain_table_make(&s->model, bucket, low, units, s->threads, &table);
        if (rc != MS_OK) {
            return ms_fail(err, rc, "chain: out of memory for %u classes of segments", s->model.class_count);
        }
        rc = offer_table(s, &table, units, err);
        again = rc == MS_OK && goes_on_below(s, &table);
        if (rc == MS_OK && !again && remember(s, &table) != MS_OK) {
            rc = ms_fail(err, MS_ENOMEM, "chain: out of memory");
        }
        s->exact = bucket == 1 && table.shift == 0;
        ms__chain_table_clear(&table);
    } while (again);
    return rc;
}

/* 1.25 times a budget. */
static uint64_t stretched(uint64_t units)
{
    return ms__add_sat(units, ms__div_up(units, 4));
}

/* Whether few levels are solved, and each as far as its table reaches. */
static bool dear(const solving *s)
{
    return ms__mul_sat(s->model.work, s->buckets) > fine_work;
}

/* Of the smaller of the level and the budget; what fits it takes no more than the table has when
 * it is rounded. */
static int solve_level(solving *s, uint64_t units, bool *may_follow, ms_error *err)
{
    uint64_t bucket = units <= s->one_unit ? 1 : ms__max_u64(ms__div_up(stretched(units), s->buckets), 1);
    uint64_t most = bucket > 1 && dear(s) ? stretched(units) : units;
    uint64_t beside_input = ms__sub_sat(ms__min_u64(most, s->budget), s->model.sizes[0]);
    /* If this changes nothing, smaller levels don't either: all of the sum falls with the level. */
    *may_follow = may_help(s, ms__add_sat(beside_input, ms__mul_sat(2, ms__chain_rounding_most(&s->model, bucket))));
    if (!*may_follow) {
        return MS_OK;
    }
    uint64_t rounding = ms__chain_rounding(&s->model, bucket, beside_input, true);
    uint64_t reach = ms__min_u64(ms__add_sat(beside_input, rounding), ms__sub_sat(stretched(units), s->model.sizes[0]));
    if (s->levels.count > 0 && !may_help(s, ms__add_sat(reach, ms__chain_rounding(&s->model, bucket, reach, false)))) {
        return MS_OK;
    }
    return solve_table(s, bucket, reach, err);
}

/* LEVELS_HALVE of them halve `most`, evenly but for the last bits; or one does. */
static uint64_t level_units(const solving *s, uint64_t most, uint32_t i)
{
    static const uint32_t shares[LEVELS_HALVE] = {1024, 861, 724, 609}; /* 1024 / 2^(i/4) */
    if (dear(s)) {
        return i < 64 ? most >> i : 0;
    }
    return ms__mul_div(most >> (i / LEVELS_HALVE), shares[i % LEVELS_HALVE], shares[0]);
}

static int solve_levels(solving *s, uint64_t most, uint64_t least, ms_error *err)
{
    uint64_t one_unit = s->one_unit;
    bool may_follow = true;
    int rc = MS_OK;
    if (s->budget <= one_unit) {
        return solve_level(s, s->budget, &may_follow, err);
    }
    for (uint32_t i = 0; rc == MS_OK && may_follow && s->buckets >= BUCKETS_OF_USE && i < LEVELS_MOST; i++) {
        uint64_t units = level_units(s, most, i), below = level_units(s, most, i + 1);
        if (units < least || units <= one_unit) {
            break;
        }
        rc = below >= s->budget ? MS_OK : solve_level(s, units, &may_follow, err);
    }
    bool exact = s->exact;
    if (rc == MS_OK && least <= one_unit) {
        rc = solve_level(s, one_unit, &may_follow, err);
    }
    s->exact = exact;
    return rc;
}

/* What rounding loses grows with what is held, so with the layers. */
static uint64_t wanted_buckets(const ms__chain_model *model)
{
    uint64_t work = ms__max_u64(model->work, 1), by_layers = (uint64_t)model->count * BUCKETS_PER_LAYER;
    if (model->count > LONG_CHAIN) {
        return ms__min_u64(ms__max_u64(cheap_long_work / work, MS_CHAIN_BUCKETS), BUCKETS_MOST);
    }
    uint64_t most = ms__min_u64(fine_work / work, BUCKETS_FINE);
    return ms__max_u64(ms__min_u64(by_layers, most), MS_CHAIN_BUCKETS);
}

static uint32_t choose_buckets(const ms__chain_model *model)
{
    uint64_t buckets = ms__min_u64(wanted_buckets(model), dear_work / ms__max_u64(model->work, 1));
    buckets = ms__min_u64(buckets, ENTRIES_MOST / model->class_count);
    return (uint32_t)ms__max_u64(buckets, BUCKETS_LEAST);
}

/* ---- the answer --------------------------------------------------------------------------- */

/* The fastest schedule and the smallest: what is sought lies between. */
static int offer_ends(solving *s, uint64_t *least, uint64_t *most_bytes, ms_error *err)
{
    ms__chain_schedule fastest = {0}, smallest = {0};
    int rc = ms__chain_fastest(s->chain, &fastest, &s->fastest_ns);
    rc = rc != MS_OK ? rc : ms__chain_least(&s->model, least, &smallest);
    if (rc != MS_OK) {
        ms_fail(err, rc, "chain: out of memory");
    }
    rc = rc != MS_OK ? rc : ms__chain_replay(s->chain, &fastest, err);
    rc = rc != MS_OK ? rc : ms__chain_replay(s->chain, &smallest, err);
    if (rc == MS_OK) {
        *most_bytes = fastest.peak_bytes;
        if (s->budget >= *least && *least != UINT64_MAX) {
            offer(s, &smallest);
            offer(s, &fastest);
        }
    }
    ms__chain_schedule_clear(&fastest);
    ms__chain_schedule_clear(&smallest);
    return rc;
}

static int search(solving *s, ms_chain_answer *answer, ms_error *err)
{
    uint64_t least = 0, most_bytes = 0, unit = s->model.unit_bytes;
    int rc = offer_ends(s, &least, &most_bytes, err);
    if (rc != MS_OK) {
        return rc;
    }
    answer->smallest_budget_bytes = ms__mul_sat(least, unit);
    answer->lower_bound_ns = s->fastest_ns;
    if (!s->found || s->best.makespan_ns == s->fastest_ns) {
        s->exact = true;
        return MS_OK;
    }
    return solve_levels(s, ms__div_up(most_bytes, unit), least, err);
}

static int finish(const ms_chain *chain, uint32_t per_group, solving *s, ms_chain_answer *answer, ms_error *err)
{
    ms__chain_schedule layers = {0};
    int rc = MS_OK;
    if (per_group == 1) {
        layers = s->best;
        memset(&s->best, 0, sizeof s->best);
    } else {
        rc = ms__chain_ungroup(chain, per_group, &s->best, &layers);
        rc = rc != MS_OK ? ms_fail(err, rc, "chain: out of memory") : ms__chain_replay(chain, &layers, err);
    }
    if (rc != MS_OK) {
        ms__chain_schedule_clear(&layers);
        return rc;
    }
    answer->feasible = true;
    answer->makespan_ns = layers.makespan_ns;
    answer->peak_bytes = layers.peak_bytes;
    answer->ops = layers.ops.items;
    answer->op_count = layers.ops.count;
    return MS_OK;
}

static int solve_model(const ms_chain *chain, uint32_t per_group, solving *s, ms_chain_answer *answer, ms_error *err)
{
    int rc = ms__chain_model_make(s->chain, &s->model);
    if (rc != MS_OK) {
        return ms_fail(err, rc, "chain: out of memory for %u layers", s->chain->layer_count);
    }
    s->budget = s->budget_bytes / s->model.unit_bytes;
    s->buckets = choose_buckets(&s->model);
    s->one_unit = ms__min_u64(exact_work / ms__max_u64(s->model.work, 1), BUCKETS_MOST);
    s->one_unit = ms__max_u64(s->one_unit, s->buckets) * 4 / 5;
    rc = search(s, answer, err);
    answer->buckets = s->buckets;
    answer->group_layers = per_group;
    answer->exact = s->exact && (per_group == 1 || (s->found && s->best.makespan_ns == s->fastest_ns));
    if (rc == MS_OK && s->found) {
        rc = finish(chain, per_group, s, answer, err);
    }
    for (size_t i = 0; i < s->levels.count; i++) {
        ms_free(s->levels.items[i].times);
    }
    MS__ARRAY_FREE(&s->levels);
    ms__chain_schedule_clear(&s->best);
    ms__chain_model_clear(&s->model);
    return rc;
}

/* Solves the chain as groups of `per_group` layers. */
static int solve_groups(const ms_chain *chain, uint32_t per_group, uint64_t budget_bytes, uint32_t threads,
                        ms_chain_answer *answer, ms_error *err)
{
    ms_chain *groups = NULL;
    ms_chain_answer made = {0};
    int rc = per_group > 1 ? ms__chain_group(chain, per_group, &groups) : MS_OK;
    if (rc != MS_OK) {
        return ms_fail(err, rc, "chain: out of memory for %u layers", chain->layer_count);
    }
    solving s = {.chain = groups != NULL ? groups : chain, .budget_bytes = budget_bytes, .threads = threads};
    rc = solve_model(chain, per_group, &s, &made, err);
    ms_chain_free(groups);
    if (rc != MS_OK) {
        ms_chain_answer_clear(&made);
        return rc;
    }
    *answer = made;
    return MS_OK;
}

/* A layer of a long chain is less than a bucket: groups of a few lose less by rounding
 * than they lose in choice. */
static int try_coarser(const ms_chain *chain, uint32_t per_group, uint64_t budget_bytes, uint32_t threads,
                       ms_chain_answer *answer, ms_error *err)
{
    ms_chain_answer coarse = {0};
    int rc = solve_groups(chain, per_group, budget_bytes, threads, &coarse, err);
    if (rc == MS_OK && answer->buckets < BUCKETS_OF_USE) {
        answer->buckets = coarse.buckets;
        answer->group_layers = coarse.group_layers;
    }
    bool faster = coarse.makespan_ns < answer->makespan_ns;
    bool smaller = coarse.makespan_ns == answer->makespan_ns && coarse.peak_bytes < answer->peak_bytes;
    if (rc == MS_OK && coarse.feasible && (faster || smaller)) {
        ms_chain_answer before = *answer;
        *answer = coarse;
        answer->smallest_budget_bytes = before.smallest_budget_bytes;
        answer->buckets = before.buckets;
        answer->group_layers = before.group_layers;
        coarse = before;
    }
    ms_chain_answer_clear(&coarse);
    return rc;
}

static int check_links(const ms_chain *chain, ms_error *err)
{
    if (chain->link_count > MS_CHAIN_LINKS_MOST) {
        return ms_fail(err, MS_EINVAL, "chain: %u links, more than %d", chain->link_count, MS_CHAIN_LINKS_MOST);
    }
    for (uint32_t i = 0; i < chain->link_count; i++) {
        if (chain->links[i].bytes_per_s == 0) {
            return ms_fail(err, MS_EINVAL, "chain: link %u moves nothing", i);
        }
    }
    return MS_OK;
}

static int check(const ms_chain *chain, ms_error *err)
{
    if (chain->layer_count == 0 || chain->layer_count > MS_CHAIN_LAYERS_MOST) {
        return ms_fail(err, MS_EINVAL, "chain: %u layers, not 1 to %d", chain->layer_count, MS_CHAIN_LAYERS_MOST);
    }
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        const ms_chain_layer *layer = &chain->layers[i];
        if (layer->option_count == 0 || layer->option_count > MS_CHAIN_OPTIONS_MOST) {
            return ms_fail(err, MS_EINVAL, "chain: layer %u has %u options, not 1 to %d", i, layer->option_count,
                           MS_CHAIN_OPTIONS_MOST);
        }
        for (uint32_t k = 0; k < layer->option_count; k++) {
            if (layer->options[k].saved_bytes < layer->output_bytes) {
                return ms_fail(err, MS_EINVAL, "chain: layer %u saves less than its output with option %u", i, k);
            }
            if (layer->options[k].link > chain->link_count) {
                return ms_fail(err, MS_EINVAL, "chain: layer %u has an option over link %u of %u", i,
                               layer->options[k].link, chain->link_count);
            }
        }
    }
    return check_links(chain, err);
}

static uint32_t usable_processors(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > THREADS_MOST ? THREADS_MOST : (uint32_t)count;
}

/* A chain without links. */
static int solve_chain(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer,
                       ms_error *err)
{
    uint32_t per_group = (uint32_t)ms__div_up(chain->layer_count, MS__CHAIN_GROUPS_MOST);
    int rc = solve_groups(chain, per_group, budget_bytes, threads, answer, err);
    if (rc == MS_OK && !answer->exact && chain->layer_count > LONG_CHAIN) {
        rc = try_coarser(chain, COARSER * per_group, budget_bytes, threads, answer, err);
    }
    return rc;
}

static int solve_with_links(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer,
                            ms_error *err)
{
    ms_chain *priced = NULL;
    int rc = ms__chain_priced(chain, NULL, &priced);
    if (rc != MS_OK) {
        return ms_fail(err, rc, "chain: out of memory for %u layers", chain->layer_count);
    }
    rc = solve_chain(priced, budget_bytes, threads, answer, err);
    ms_chain_free(priced);
    return rc != MS_OK ? rc : ms__chain_links_improve(chain, budget_bytes, threads, answer, err);
}

int ms_chain_solve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer,
                   ms_error *err)
{
    ms_chain_answer made = {0};
    int rc = check(chain, err);
    threads = threads != 0 ? threads : usable_processors();
    if (rc == MS_OK) {
        rc = ms__chain_has_transfers(chain) ? solve_with_links(chain, budget_bytes, threads, &made, err)
                                            : solve_chain(chain, budget_bytes, threads, &made, err);
    }
    if (rc != MS_OK) {
        ms_chain_answer_clear(&made);
        return rc;
    }
    *answer = made;
    return MS_OK;
}

void ms_chain_answer_clear(ms_chain_answer *answer)
{
    ms_free(answer->ops);
    memset(answer, 0, sizeof *answer);
}
