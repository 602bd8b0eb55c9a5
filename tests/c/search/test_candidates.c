/*
 * The candidates that each family proposes for some graphs on some machines are those of candidates.golden, and for random
 * steps those of random_candidates.golden: a change of a family shows there, also if no plan of plans.golden takes one of
 * its candidates. `MEMSCALE_WRITE_GOLDEN=1 meson test -C build/test candidates` writes the files.
 *
 * A line is a graph on a machine. For each family: how many candidates there are after it, and a checksum of them all.
 */
#include <xxhash.h>

#include "memscale/rules.h"
#include "plan_random.h"
#include "plan_subjects.h"
#include "search/search.h"

enum { LINE_MOST = 1024, FRONT_MOST = 20, RANDOM_STEPS = 150, NAME_MOST = 64 };

/* As after packing: single nodes are packed and unpacked. */
static void refine_packing(ms__search *search)
{
    search->packing_offered = true;
    ms__families_refine(search);
}

static void segments(ms__search *search)
{
    ms__families_segment(search);
    search->offered |= search->segment_techniques;
}

static void around_the_last(ms__search *search)
{
    ms__families_around(search, search->count - 1);
}

static const struct family {
    const char *name;
    void (*propose)(ms__search *search);
} families[] = {
    {"uniform", ms__families_uniform},
    {"split", ms__families_split},
    {"greedy", ms__families_greedy},
    {"mixed", ms__families_mixed},
    {"refine", ms__families_refine},
    {"selective", ms__families_selective},
    {"segments", segments},
    {"around", around_the_last},
    {"packing", ms__families_packing},
    {"packed moves", ms__families_packing_moves},
    {"refine packing", refine_packing},
};

static uint64_t checksum_of(ms__search *search)
{
    XXH64_state_t hash;
    size_t front[FRONT_MOST];
    XXH64_reset(&hash, 0);
    for (size_t i = 0; i < search->count; i++) {
        const ms__candidate *item = &search->items[i];
        const uint64_t numbers[] = {item->window,
                                    item->step,
                                    item->uniform,
                                    item->light,
                                    item->step_ns,
                                    item->work_ns,
                                    item->fixed_bytes,
                                    item->live_peak_bytes,
                                    item->activation_peak_bytes,
                                    item->boundary_bytes,
                                    item->held_most_bytes};
        XXH64_update(&hash, numbers, sizeof numbers);
        XXH64_update(&hash, ms__candidate_row(search, i), search->row_bytes);
    }
    size_t count = ms__search_front(search, MS__FRONT_UNCACHED, false, search->count, front, FRONT_MOST);
    XXH64_update(&hash, front, count * sizeof *front);
    return XXH64_digest(&hash);
}

/* Every family begins with as many replays, in each step in turn. */
static void write_families(FILE *out, ms__search *search)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        for (uint32_t step = 0; step < search->step_count; step++) {
            search->replays_left = search->replays_most / 8;
            ms__search_use(search, step);
            families[i].propose(search);
        }
        fprintf(out, "; %s %zu %016llx", families[i].name, search->count, (unsigned long long)checksum_of(search));
    }
    fputc('\n', out);
}

/* With all techniques that the rules admit at half the need. */
static void open_search(fixture_planning *f, ms__search *search)
{
    ms_admission *admissions = ms_calloc(f->graph->node_count, sizeof *admissions);
    ms_pressure pressure;
    uint32_t rules[MS_STEP_OPTION_COUNT];
    ms_error err;
    assert_non_null(admissions);
    uint64_t need_bytes = fixture_need(f);
    f->config.memory_budget_bytes = need_bytes / 2;
    ms_pressure_of(need_bytes, f->hardware, &f->config, &pressure);
    assert_ms_ok(ms_rules_admit(f->graph, f->hardware, &f->config, &pressure, admissions, &err), err);
    ms__step_case facts = {f->graph, f->hardware, &f->config, &pressure};
    uint32_t options = ms__step_options_admit(&facts, rules);
    assert_ms_ok(ms__search_open(f->graph, f->hardware, &f->config, admissions, false, options, search, &err), err);
    ms_free(admissions);
}

static void write_candidates(FILE *out, const char *name, fixture_planning *f)
{
    ms__search search;
    open_search(f, &search);
    fprintf(out, "%s: %u steps", name, search.step_count);
    write_families(out, &search);
    assert_false(search.out_of_memory);
    ms__search_close(&search);
    fixture_close(f);
}

/* The next line of the table is that of the documents, or becomes it. Closes them. */
static void compare_candidates(FILE *golden, bool writes, const char *name, fixture_planning *f)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    write_candidates(out, name, f);
    assert_int_equal(fclose(out), 0);
    golden_line(golden, writes, text);
    free(text);
}

static void candidates_of_random_steps_are_the_golden_ones(void **state)
{
    (void)state;
    bool writes = getenv("MEMSCALE_WRITE_GOLDEN") != NULL;
    FILE *golden = fopen(test_data("search/random_candidates.golden"), writes ? "w" : "r");
    assert_non_null(golden);
    for (uint64_t step = 1; step <= RANDOM_STEPS; step++) {
        uint64_t seed = step * 15485863;
        fixture_planning f = random_planning(&seed);
        char name[NAME_MOST];
        snprintf(name, sizeof name, "random %llu", (unsigned long long)step);
        compare_candidates(golden, writes, name, &f);
    }
    assert_int_equal(fclose(golden), 0);
}

static void candidates_are_the_golden_ones(void **state)
{
    (void)state;
    bool writes = getenv("MEMSCALE_WRITE_GOLDEN") != NULL;
    FILE *golden = fopen(test_data("search/candidates.golden"), writes ? "w" : "r");
    assert_non_null(golden);
    for (size_t i = 0; i < PLAN_SUBJECTS; i++) {
        for (size_t j = 0; j < PLAN_MACHINES; j++) {
            fixture_planning f = plan_subject_open(&plan_subjects[i], &plan_machines[j]);
            char name[NAME_MOST];
            snprintf(name, sizeof name, "%s, %s", plan_subjects[i].name, plan_machines[j].name);
            compare_candidates(golden, writes, name, &f);
        }
    }
    char more[LINE_MOST];
    assert_true(writes || fgets(more, sizeof more, golden) == NULL);
    assert_int_equal(fclose(golden), 0);
}

/* However long the chain is, one segment of all its layers is among the candidates. */
static void the_whole_chain_is_a_segment_too(void **state)
{
    (void)state;
    static const fixture_layer layer = {20 * MIB, 2 * MIB, 300000000, MIB, MS_NODE_CHAINED};
    for (uint32_t layers = 2; layers <= 70; layers += layers / 2) {
        fixture_chain chain = {.layer_count = layers, .layers = &layer, .uniform = true, .activation_bytes = 4 * MIB};
        fixture_planning f = fixture_open(fixture_chain_graph(&chain));
        f.config.mode = MS_MODE_CONSERVATIVE;
        ms__search search;
        open_search(&f, &search);
        ms__families_segment(&search);
        bool found = false;
        for (size_t i = 0; i < search.count; i++) {
            const uint8_t *row = ms__candidate_row(&search, i);
            uint32_t inner = 0;
            for (uint32_t node = 2; node <= layers; node++) {
                inner += row[node] == MS_TECHNIQUE_RECOMPUTE_SEGMENT;
            }
            found = found || (row[1] == MS_TECHNIQUE_RECOMPUTE && inner == layers - 1);
        }
        assert_true(found);
        ms__search_close(&search);
        fixture_close(&f);
    }
}

static void without_replays_only_what_must_be_added_is(void **state)
{
    (void)state;
    fixture_planning f = plan_subject_open(&plan_subjects[0], &plan_machines[0]);
    ms__search search;
    open_search(&f, &search);
    search.replays_left = 0;
    ms__families_uniform(&search);
    size_t count = search.count;
    assert_true(count > 1);
    assert_int_equal(search.replays_left, 0);
    ms__families_split(&search);
    ms__families_mixed(&search);
    ms__families_refine(&search);
    assert_int_equal(search.count, count);
    ms__search_close(&search);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_of_random_steps_are_the_golden_ones),
        cmocka_unit_test(the_whole_chain_is_a_segment_too),
        cmocka_unit_test(candidates_are_the_golden_ones),
        cmocka_unit_test(without_replays_only_what_must_be_added_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
