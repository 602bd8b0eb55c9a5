/*
 * Checksums of plans: see plan_checksum.h.
 */
#include "plan/plan_checksum.h"

#include <xxhash.h>

enum { NODES_MOST = 64 };

static void hash_text(XXH64_state_t *hash, char *text)
{
    assert_non_null(text);
    XXH64_update(hash, text, strlen(text));
    ms_free(text);
}

static void hash_timeline(XXH64_state_t *hash, const fixture_planning *f, const ms_plan *plan)
{
    uint8_t rows[2 * NODES_MOST];
    ms_sample samples[2 * NODES_MOST];
    assert_true(plan->entry_count <= NODES_MOST);
    ms_choices choices = ms_plan_choices(plan, rows);
    ms_replay replay;
    ms_error err;
    memset(samples, 0, sizeof samples);
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, samples, &err), err);
    XXH64_update(hash, samples, 2 * plan->entry_count * sizeof *samples);
}

/* The plan with a corrected document, if its choices stay. */
static void hash_again(XXH64_state_t *hash, const fixture_planning *f, uint64_t budget_bytes, const ms_plan *plan)
{
    ms_config config = f->config;
    config.memory_budget_bytes = budget_bytes;
    uint64_t before = f->graph->residents.buffer_bytes;
    f->graph->residents.buffer_bytes += MIB / 2;
    ms_plan *again;
    ms_error err;
    assert_ms_ok(ms_plan_again(f->graph, f->hardware, &config, plan, &again, &err), err);
    if (again != NULL) {
        hash_text(hash, ms_plan_to_json(again));
        ms_plan_free(again);
    }
    f->graph->residents.buffer_bytes = before;
}

void plan_assert_read_back(const ms_plan *plan)
{
    char *text = ms_plan_to_json(plan), *again;
    ms_plan *read;
    ms_error err;
    assert_non_null(text);
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    again = ms_plan_to_json(read);
    assert_non_null(again);
    assert_string_equal(text, again);
    ms_plan_free(read);
    ms_free(text);
    ms_free(again);
}

uint64_t plan_checksum(const fixture_planning *f, uint64_t budget_bytes, const ms_plan *plan)
{
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    hash_text(&hash, ms_plan_to_json(plan));
    hash_text(&hash, ms_plan_table(plan, f->hardware));
    for (int64_t entry = -1; entry < (int64_t)plan->entry_count; entry++) {
        hash_text(&hash, ms_plan_explain(plan, entry));
    }
    hash_timeline(&hash, f, plan);
    hash_again(&hash, f, budget_bytes, plan);
    return XXH64_digest(&hash);
}
