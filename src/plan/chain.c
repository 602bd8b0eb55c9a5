/*
 * Which tables are solved for a chain and a budget, and the answer.
 *
 * Levels. Where a bucket is one unit, one table gives the optimum. For larger budgets
 * there are levels, budgets that halve (where tables are cheap, in two steps) from what the
 * fastest schedule takes down to the least, and at last the largest budget whose buckets are one unit. The levels depend on
 * the chain alone; a budget is answered by the best replay among the schedules of the
 * first level of which the next is not large enough for it (a table reaches a quarter beyond
 * its level) and all smaller ones, so what a smaller budget can choose from, a larger one can too.
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
#include "plan/chain.h"

enum {
    LEVELS_MOST = 128,
    BUCKETS_MOST = 1 << 16,
    BUCKETS_LEAST = 8,
    BUCKETS_OF_USE = 200, /* with fewer only the table of one unit is solved */
    ENTRIES_MOST = 44 << 20, /* of all rows of a table */
    THREADS_MOST = 8,
    LONG_CHAIN = 300, /* longer ones are also solved as groups of COARSER layers */
    COARSER = 4
};
/* Splits times buckets. A chain gets more buckets than usual while a table costs no more
 * than the first (or, if it is long, the second), and fewer so that it costs no more than
 * the third. Levels lie close while a table costs no more than the last. */
static const uint64_t cheap_work = 1000000, cheap_long_work = 600000000, dear_work = 3000000000;
static const uint64_t fine_work = 200000000;

/* Times of the whole chain in a table that was solved. */
typedef struct level {
    ms__chain_row row;
    uint64_t bucket;
    uint32_t top, shift;
} level;

typedef struct solving {
    const ms_chain *chain;
    ms__chain_model model;
    uint64_t budget_bytes, budget; /* the second in units */
    uint64_t fastest_ns;
    uint32_t buckets, threads;
    level levels[LEVELS_MOST + 1];
    uint32_t level_count;
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

/* A schedule that fits the budget takes no more than this beside x_0 when it is rounded. */
static uint64_t reach_of(const solving *s, uint64_t bucket)
{
    uint64_t units = ms__sub_sat(s->budget, s->model.sizes[0]);
    return ms__add_sat(units, ms__chain_rounding(&s->model, bucket, units, true));
}

/* Schedules of every time that the table has, the fastest first, until none can be better
 * than what was found. Each from the least memory that gives its time. */
static int offer_table(solving *s, const ms__chain_table *table, uint64_t reach, ms_error *err)
{
    const ms__chain_row *row = ms__chain_whole(table);
    uint64_t fits = reach / table->bucket;
    int rc = MS_OK;
    for (uint32_t i = row->length; rc == MS_OK && i-- > 0;) {
        if (row->first + i > fits) {
            continue;
        }
        bool first_of_time = i == 0 || row->times[i - 1] != row->times[i];
        if (s->found && entry_ns(s, table->shift, row->times[i]) > s->best.makespan_ns) {
            break;
        }
        rc = first_of_time ? offer_entry(s, table, row->first + i, err) : MS_OK;
    }
    return rc;
}

/* ---- what a level can give ------------------------------------------------------------ */

/* No schedule that takes `units` beside x_0 when it is rounded is faster than this. */
static uint64_t bound_at(const solving *s, const level *known, uint64_t units)
{
    uint64_t m = units / known->bucket;
    uint32_t first = known->row.first, length = known->row.length;
    if (m > known->top) {
        return s->fastest_ns;
    }
    if (length == 0 || m < first) {
        return UINT64_MAX;
    }
    uint64_t i = ms__min_u64(m - first, length - 1);
    return entry_ns(s, known->shift, known->row.times[i]);
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

/* Whether a table over `units` could hold a schedule better than what was found. */
static bool may_help(const solving *s, uint64_t bucket, uint64_t units)
{
    if (!s->found || s->level_count == 0) {
        return true;
    }
    uint64_t reach = ms__add_sat(units, ms__chain_rounding(&s->model, bucket, units, false));
    for (uint32_t i = 0; i < s->level_count; i++) {
        if (excludes(s, &s->levels[i], reach)) {
            return false;
        }
    }
    return true;
}

/* ---- tables --------------------------------------------------------------------------------- */

static int remember(solving *s, const ms__chain_table *table)
{
    const ms__chain_row *row = ms__chain_whole(table);
    level *known = &s->levels[s->level_count];
    *known = (level){.row = *row, .bucket = table->bucket, .top = table->top, .shift = table->shift};
    known->row.times = ms_calloc(row->length, sizeof *row->times);
    if (known->row.times == NULL) {
        return MS_ENOMEM;
    }
    if (row->length > 0) {
        memcpy(known->row.times, row->times, row->length * sizeof *row->times);
    }
    s->level_count++;
    return MS_OK;
}

static int solve_table(solving *s, uint64_t bucket, uint64_t units, ms_error *err)
{
    ms__chain_table table;
    uint64_t reach = reach_of(s, bucket);
    int rc = ms__chain_table_make(&s->model, bucket, ms__min_u64(units, reach), s->threads, &table);
    if (rc != MS_OK) {
        return ms_fail(err, rc, "chain: out of memory for %u classes of segments", s->model.class_count);
    }
    rc = offer_table(s, &table, reach, err);
    if (rc == MS_OK && remember(s, &table) != MS_OK) {
        rc = ms_fail(err, MS_ENOMEM, "chain: out of memory");
    }
    s->exact = bucket == 1 && table.shift == 0;
    ms__chain_table_clear(&table);
    return rc;
}

/* 1.25 times a budget. */
static uint64_t stretched(uint64_t units)
{
    return ms__add_sat(units, ms__div_up(units, 4));
}

static int solve_level(solving *s, uint64_t units, ms_error *err)
{
    uint64_t bucket = ms__max_u64(ms__div_up(stretched(units), s->buckets), 1);
    uint64_t reach = bucket == 1 ? ms__min_u64(units, s->budget) : stretched(ms__min_u64(units, s->budget));
    uint64_t beside_input = ms__sub_sat(reach, s->model.sizes[0]);
    return may_help(s, bucket, beside_input) ? solve_table(s, bucket, beside_input, err) : MS_OK;
}

/* Halves of `most`, or where tables are cheap 3/4 and 2/3 of the level before in turn. */
static uint64_t level_units(const solving *s, uint64_t most, uint32_t i)
{
    if (ms__mul_sat(s->model.work, s->buckets) > fine_work) {
        return most >> i;
    }
    uint64_t halved = most >> (i / 2);
    return i % 2 == 0 ? halved : halved - halved / 4;
}

static int solve_levels(solving *s, uint64_t most, uint64_t least, ms_error *err)
{
    uint64_t one_unit = (uint64_t)s->buckets * 4 / 5;
    int rc = MS_OK;
    if (s->budget <= one_unit) {
        return solve_level(s, s->budget, err);
    }
    for (uint32_t i = 0; rc == MS_OK && s->buckets >= BUCKETS_OF_USE && i < LEVELS_MOST; i++) {
        uint64_t units = level_units(s, most, i), below = level_units(s, most, i + 1);
        if (units < least || units <= one_unit) {
            break;
        }
        bool next_is_one = below >= least && below > one_unit;
        bool next_serves = (next_is_one ? ms__add_sat(below, below / 8) : below) >= s->budget;
        rc = next_serves ? MS_OK : solve_level(s, units, err);
    }
    bool exact = s->exact;
    if (rc == MS_OK && least <= one_unit) {
        rc = solve_level(s, one_unit, err);
    }
    s->exact = exact;
    return rc;
}

uint32_t ms__chain_choose_buckets(const ms__chain_model *model)
{
    uint64_t work = ms__max_u64(model->work, 1);
    uint64_t cheap = model->count > LONG_CHAIN ? cheap_long_work : cheap_work;
    uint64_t buckets = ms__min_u64(ms__max_u64(cheap / work, MS_CHAIN_BUCKETS), BUCKETS_MOST);
    buckets = ms__min_u64(buckets, dear_work / work);
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
    s->buckets = ms__chain_choose_buckets(&s->model);
    rc = search(s, answer, err);
    answer->buckets = s->buckets;
    answer->group_layers = per_group;
    answer->exact = s->exact && (per_group == 1 || (s->found && s->best.makespan_ns == s->fastest_ns));
    if (rc == MS_OK && s->found) {
        rc = finish(chain, per_group, s, answer, err);
    }
    for (uint32_t i = 0; i < s->level_count; i++) {
        ms_free(s->levels[i].row.times);
    }
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
    solving *s = ms_calloc(1, sizeof *s);
    int rc = s == NULL ? MS_ENOMEM : per_group > 1 ? ms__chain_group(chain, per_group, &groups) : MS_OK;
    if (rc != MS_OK) {
        ms_free(s);
        return ms_fail(err, rc, "chain: out of memory for %u layers", chain->layer_count);
    }
    s->chain = groups != NULL ? groups : chain;
    s->budget_bytes = budget_bytes;
    s->threads = threads;
    rc = solve_model(chain, per_group, s, &made, err);
    ms_free(s);
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
