/*
 * Bit packing in the planner: its bytes and time in a replay, to the byte and the nanosecond; the tensors
 * that a plan packs at each budget; and their description in the plan.
 */
#include "base/units.h"
#include "plan_fixture.h"
#include "sim/sim.h"

enum { LAYERS = 2, NODES = LAYERS + 2, HEADER_BYTES = 48, BUDGETS = 9 };

/* ---- a replay ------------------------------------------------------------------------ */

/* Two layers that each save 8 MiB of two-valued floats; packed at 4 GB/s, unpacked at 2. */
static fixture_planning two_layers(void)
{
    static const fixture_layer layer = {8 * MIB, 4 * MIB, 1000000, MIB, 0, 0};
    fixture_chain chain = {.layer_count = LAYERS,
                           .layers = &layer,
                           .uniform = true,
                           .activation_bytes = 2 * MIB,
                           .logits_bytes = 16 * MIB};
    fixture_planning f = fixture_open(fixture_chain_graph(&chain));
    fixture_mark_masks(f.graph);
    ms_free(f.hardware);
    f.hardware = fixture_hardware();
    f.hardware->cpu.pack_bytes_per_s = 4000000000;
    f.hardware->cpu.unpack_bytes_per_s = 2000000000;
    return f;
}

static ms_replay replay(const fixture_planning *f, const uint8_t *techniques, const uint8_t *packed,
                        uint64_t least_bytes)
{
    ms_choices choices = {.technique = techniques,
                          .packed = packed,
                          .offload_min_bytes = least_bytes,
                          .write_window_bytes = 64 * MIB,
                          .read_window_bytes = 64 * MIB};
    ms_replay result;
    ms_error err;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &result, NULL, &err), err);
    return result;
}

static const uint64_t mask_bytes = 8 * MIB, bit_bytes = 8 * MIB / 32 + HEADER_BYTES;
/* 8 MiB at both rates, and the handling of each. */
static const uint64_t mask_ns = 2097152 + 4194304 + 2 * MS__HANDLING_NS;

static void packing_frees_and_costs_the_stated_amounts(void **state)
{
    (void)state;
    fixture_planning f = two_layers();
    static const uint8_t kept[NODES] = {0}, none[NODES] = {0}, one[NODES] = {0, 1, 0, 0}, both[NODES] = {0, 1, 1, 0};
    ms_replay as_it_is = replay(&f, kept, NULL, MIB);
    const uint8_t *const rows[] = {none, one, both};
    for (uint64_t count = 0; count <= LAYERS; count++) {
        ms_replay with = replay(&f, kept, rows[count], MIB);
        assert_int_equal(with.peak_bytes, as_it_is.peak_bytes - count * (mask_bytes - bit_bytes));
        assert_int_equal(with.step_ns, as_it_is.step_ns + count * mask_ns);
        assert_int_equal(with.packing_ns, count * mask_ns);
        assert_int_equal(with.packed_bytes, count * mask_bytes);
        assert_int_equal(with.moved_bytes, 0);
    }
    /* Too small for this plan: it stays. */
    assert_memory_equal(&(ms_replay[]){replay(&f, kept, both, 9 * MIB)}, &as_it_is, sizeof as_it_is);
    fixture_close(&f);
}

static void only_saved_storages_are_packed(void **state)
{
    (void)state;
    fixture_planning f = two_layers();
    static const uint8_t again[NODES] = {0, MS_TECHNIQUE_RECOMPUTE, MS_TECHNIQUE_RECOMPUTE, 0};
    static const uint8_t moved[NODES] = {0, MS_TECHNIQUE_OFFLOAD_DISK, MS_TECHNIQUE_OFFLOAD_DISK, 0};
    static const uint8_t all[NODES] = {255, 255, 255, 255};
    assert_memory_equal(&(ms_replay[]){replay(&f, again, all, MIB)}, &(ms_replay[]){replay(&f, again, NULL, MIB)},
                        sizeof(ms_replay));
    ms_replay without = replay(&f, moved, NULL, MIB), with = replay(&f, moved, all, MIB);
    assert_int_equal(with.packed_bytes, LAYERS * mask_bytes);
    assert_in_range(without.moved_bytes - with.moved_bytes, mask_bytes, 2 * LAYERS * mask_bytes);
    fixture_close(&f);
}

/* If the description lacks the rates, they are an eighth and a twelfth of the rate of element-wise work. */
static void unknown_rates_follow_the_memory_rate(void **state)
{
    (void)state;
    fixture_planning f = two_layers();
    static const uint8_t kept[NODES] = {0}, both[NODES] = {0, 1, 1, 0};
    uint64_t measured = replay(&f, kept, both, MIB).packing_ns;
    f.hardware->cpu.stream_bytes_per_s = 32000000000;
    f.hardware->cpu.pack_bytes_per_s = f.hardware->cpu.unpack_bytes_per_s = 0;
    uint64_t unknown = replay(&f, kept, both, MIB).packing_ns;
    /* 4 GB/s are 32 / 8; 2.667 instead of 2 take three quarters of the time. */
    assert_int_equal(measured - unknown, LAYERS * (4194304 - mask_bytes * 12 / 32));
    fixture_close(&f);
}

/* Storages on a GPU are never scanned for two values. The GPU's memory is read or written three times to pack a mask,
 * and four times to unpack it; the host's calls take 0.18 ms. */
static void a_gpu_packs_only_truth_values(void **state)
{
    (void)state;
    fixture_planning f = two_layers();
    fixture_use_card(f.hardware, 12000000000);
    static const uint8_t kept[NODES] = {0}, both[NODES] = {0, 1, 1, 0};
    ms_replay as_it_is = replay(&f, kept, NULL, MIB);
    assert_memory_equal(&(ms_replay[]){replay(&f, kept, both, MIB)}, &as_it_is, sizeof as_it_is);
    f.graph->profiles[0].two_valued.items[0].bytes = 1;
    ms_replay with = replay(&f, kept, both, MIB);
    assert_int_equal(with.packed_bytes, LAYERS * mask_bytes);
    assert_int_equal(with.peak_bytes, as_it_is.peak_bytes - LAYERS * (mask_bytes - mask_bytes / 8));
    assert_in_range(with.packing_ns, LAYERS * (7 * mask_bytes * 10 / 9000 + 180000), LAYERS * 246000);
    fixture_close(&f);
}

/* ---- several tensors of a layer ----------------------------------------------------------- */

/* Storage 5 has elements of 4 bytes, storage 6 of one byte: that one saves 7/8 of its bytes, so each byte
 * costs more. */
static void the_cheaper_tensor_comes_first(void **state)
{
    (void)state;
    fixture_planning f = two_layers();
    ms_profile *layer = &f.graph->profiles[0];
    ms__sim *sim;
    ms_error err;
    for (uint64_t first_bytes = 1; first_bytes <= 4; first_bytes += 3) {
        ms_storage_bytes *named = ms_calloc(2, sizeof *named);
        assert_non_null(named);
        named[0] = (ms_storage_bytes){0, first_bytes};
        named[1] = (ms_storage_bytes){5, 5 - first_bytes};
        ms_free(layer->two_valued.items);
        layer->two_valued.items = named;
        layer->two_valued.count = 2;
        assert_ms_ok(ms__sim_new(f.graph, f.hardware, &sim, &err), err);
        const ms__sim_profile *profile = &sim->profiles[0];
        assert_int_equal(profile->bits_count, 2);
        for (uint32_t slot = 0; slot < profile->save_count; slot++) {
            uint32_t storage = profile->saved[slot];
            uint32_t expected = storage == 0 ? 1 + (first_bytes == 1) : storage == 5 ? 1 + (first_bytes == 4) : 0;
            uint64_t value_bytes = storage == 0 ? first_bytes : 5 - first_bytes;
            assert_int_equal(profile->bits[slot].rank, expected);
            if (expected > 0) { /* floats 32 : 1, truth values 8 : 1 */
                assert_int_equal(profile->bits[slot].bytes,
                                 layer->storage_bytes[storage] / value_bytes / 8 + HEADER_BYTES);
            }
        }
        ms__sim_free(sim);
    }
    fixture_close(&f);
}

/* ---- plans ------------------------------------------------------------------------------------ */

static fixture_planning masked(int which, uint64_t pack_bytes_per_s)
{
    fixture_planning f = fixture_open(fixture_graph(which));
    fixture_mark_masks(f.graph);
    f.hardware->cpu.pack_bytes_per_s = f.hardware->cpu.unpack_bytes_per_s = pack_bytes_per_s;
    return f;
}

static void packing_is_chosen_if_bytes_are_short_and_cheap(void **state)
{
    (void)state;
    fixture_planning fast = masked(0, 50000000000), slow = masked(0, 100000000);
    uint64_t need = fixture_need(&fast);
    ms_plan *room = fixture_plan_at(&fast, need + need / 4), *tight = fixture_plan_at(&fast, need - need / 4);
    ms_plan *dear = fixture_plan_at(&slow, need - need / 4);
    assert_true(room->skipped);
    assert_int_equal(room->replay.packed_bytes, 0);
    assert_int_equal(room->entries[1].packing.rule, MS_RULE_COMFORTABLE);
    assert_true(tight->replay.packed_bytes > 0);
    /* Recompute is faster than so slow a scan. */
    assert_int_equal(dear->replay.packed_bytes, 0);
    assert_true(dear->replay.step_ns > tight->replay.step_ns);
    ms_plan_free(room);
    ms_plan_free(tight);
    ms_plan_free(dear);
    fixture_close(&fast);
    fixture_close(&slow);
}

/* A larger budget is never slower, nor smaller; and a plan with the option is never worse than without. */
static void plans_stay_monotone_and_gain_from_packing(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = masked(which, 8000000000), without = fixture_open(fixture_graph(which));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f), step_ns = UINT64_MAX, taken = 0;
        assert_true(smallest <= fixture_smallest_budget(&without));
        for (uint64_t k = 0; k < BUDGETS; k++) {
            uint64_t budget = fixture_budget(smallest, need, k, BUDGETS);
            ms_plan *plan = fixture_plan_at(&f, budget), *other;
            ms_error err;
            uint64_t takes = plan->replay.peak_bytes + plan->reserve_bytes;
            assert_true(plan->skipped || takes <= budget);
            assert_true(plan->replay.step_ns <= step_ns);
            assert_true(plan->skipped || takes >= taken);
            assert_true(plan->why.lower_bound_ns <= plan->replay.step_ns);
            step_ns = plan->replay.step_ns;
            taken = takes;
            if (fixture_try_plan(&without, budget, &other, &err) == MS_OK) {
                assert_true(plan->replay.step_ns <= other->replay.step_ns);
                ms_plan_free(other);
            }
            ms_plan_free(plan);
        }
        fixture_close(&f);
        fixture_close(&without);
    }
}

static void an_entry_states_bytes_time_and_alternative_of_packing(void **state)
{
    (void)state;
    fixture_planning f = masked(0, 50000000000);
    uint64_t need = fixture_need(&f);
    ms_plan *plan = fixture_plan_at(&f, need - need / 8);
    uint32_t packed = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const ms_plan_entry *entry = &plan->entries[i];
        if (entry->packing.packed == 0) {
            continue;
        }
        const ms_selection *selection = &plan->selections[entry->selection - 1];
        assert_int_equal(entry->packing.rule, MS_RULE_PRESSURE);
        assert_int_equal(selection->two_valued_count, 1);
        assert_true(selection->two_valued[0].packed);
        assert_int_equal(selection->two_valued[0].saved_bytes, 340 * MIB - 340 * MIB / 32 - HEADER_BYTES);
        assert_int_equal(selection->slot_bytes[selection->two_valued[0].slot], 340 * MIB);
        assert_int_equal(entry->packing.saved_bytes, selection->two_valued[0].saved_bytes);
        assert_int_equal(entry->packing.runner_up, 0);
        /* With less room for the cache it need not be faster. */
        assert_true(entry->packing.runner_up_ns > 0);
        assert_true(entry->packing.runner_up_peak_bytes > plan->pressure.allowed_bytes - entry->packing.saved_bytes);
        char *text = ms_plan_explain(plan, i);
        assert_non_null(strstr(text, "1 of 1 two-valued saved tensors are bit-packed (rule pressure): frees"));
        assert_non_null(strstr(text, "with none packed the step would take"));
        ms_free(text);
        packed++;
    }
    assert_true(packed > 0 && packed < plan->entry_count);
    char *text = ms_plan_explain(plan, -1);
    assert_non_null(strstr(text, "two-valued saved tensors are bit-packed"));
    ms_free(text);
    text = ms_plan_table(plan, NULL);
    assert_non_null(strstr(text, "two-valued saved tensors are bit-packed"));
    ms_free(text);
    ms_plan_free(plan);
    fixture_close(&f);
}

static void packing_follows_the_offloading_flag(void **state)
{
    (void)state;
    fixture_planning f = masked(0, 50000000000);
    uint64_t need = fixture_need(&f);
    f.config.enable_offloading = false;
    ms_plan *off = fixture_plan_at(&f, need - need / 8);
    f.config.enable_offloading = true;
    f.config.mode = MS_MODE_CONSERVATIVE;
    ms_plan *conservative = fixture_plan_at(&f, need - need / 8);
    assert_int_equal(off->replay.packed_bytes, 0);
    assert_int_equal(conservative->replay.packed_bytes, 0);
    for (uint32_t i = 0; i < off->entry_count; i++) {
        bool told = off->entries[i].packing.tensors > 0;
        assert_int_equal(off->entries[i].packing.rule, told ? MS_RULE_FLAG_OFF : 0);
        told = conservative->entries[i].packing.tensors > 0;
        assert_int_equal(conservative->entries[i].packing.rule, told ? MS_RULE_MODE : 0);
    }
    ms_plan_free(off);
    ms_plan_free(conservative);
    fixture_close(&f);
}

/* ---- documents ----------------------------------------------------------------------------------- */

static char *planned_text(void)
{
    fixture_planning f = masked(0, 50000000000);
    uint64_t need = fixture_need(&f);
    ms_plan *plan = fixture_plan_at(&f, need - need / 8);
    char *text = ms_plan_to_json(plan);
    assert_non_null(text);
    ms_plan_free(plan);
    fixture_close(&f);
    return text;
}

static void plans_with_packing_are_read_back_as_written(void **state)
{
    (void)state;
    char *text = planned_text();
    ms_plan *plan;
    ms_error err;
    assert_ms_ok(ms_plan_parse(text, &plan, &err), err);
    char *again = ms_plan_to_json(plan);
    assert_string_equal(text, again);
    assert_true(plan->replay.packed_bytes > 0 && plan->replay.packing_ns > 0);
    ms_free(again);
    ms_plan_free(plan);
    ms_free(text);
}

/* The text with the first `from` replaced by `to`. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    size_t head = (size_t)(at - text), size = strlen(text) + strlen(to) + 1;
    char *made = ms_malloc(size);
    assert_non_null(made);
    snprintf(made, size, "%.*s%s%s", (int)head, text, to, at + strlen(from));
    return made;
}

static void malformed_packing_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *where;
    } cases[] = {
        {"\"slot\": ", "\"slot\": 99", "two_valued[0].slot"},
        {"\"slot\": ", "\"slots\": ", "two_valued[0]"},
        {"\"packed\": true", "\"packed\": 1", "two_valued[0].packed"},
        {"\"packed\": 1,", "\"packed\": 2,", "packing.packed"},
        {"\"tensors\": 1,", "\"tensors\": 0,", "packing.tensors"},
        {"\"runner_up\": 0,", "\"runner_up\": 7,", "packing.runner_up"},
        {"\"packing_ns\": ", "\"packing\": ", "packing_ns"},
    };
    char *text = planned_text();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *bad = changed(text, cases[i].from, cases[i].to);
        ms_plan *plan;
        ms_error err = {0};
        assert_int_equal(ms_plan_parse(bad, &plan, &err), MS_EFORMAT);
        if (strstr(err.text, cases[i].where) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, cases[i].where);
        }
        ms_free(bad);
    }
    ms_free(text);
}

static void packing_plans_fail_cleanly_out_of_memory(void **state)
{
    (void)state;
    fixture_planning f = masked(4, 50000000000);
    uint64_t need = fixture_need(&f);
    fixture_plan_without_memory(&f, need - need / 8);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_frees_and_costs_the_stated_amounts),
        cmocka_unit_test(only_saved_storages_are_packed),
        cmocka_unit_test(unknown_rates_follow_the_memory_rate),
        cmocka_unit_test(a_gpu_packs_only_truth_values),
        cmocka_unit_test(the_cheaper_tensor_comes_first),
        cmocka_unit_test(packing_is_chosen_if_bytes_are_short_and_cheap),
        cmocka_unit_test(plans_stay_monotone_and_gain_from_packing),
        cmocka_unit_test(an_entry_states_bytes_time_and_alternative_of_packing),
        cmocka_unit_test(packing_follows_the_offloading_flag),
        cmocka_unit_test(plans_with_packing_are_read_back_as_written),
        cmocka_unit_test(malformed_packing_is_refused),
        cmocka_unit_test(packing_plans_fail_cleanly_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
