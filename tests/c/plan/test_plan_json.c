/*
 * Plans as JSON: a document is written again as it was read; a malformed one is refused with its place named;
 * any allocation may fail.
 */
#include <jansson.h>

#include "plan_fixture.h"

static ms_plan *some_plan(uint64_t budget_bytes)
{
    ms_graph *graph = fixture_graph(3);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan;
    ms_error err;
    ms_config_default(&config);
    config.memory_budget_bytes = budget_bytes;
    assert_ms_ok(ms_pipeline_plan(graph, hardware, &config, &plan, &err), err);
    ms_graph_free(graph);
    ms_free(hardware);
    return plan;
}

static void every_member_survives_the_round_trip(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {2000 * MIB, 20000 * MIB, MS_UNSET};
    for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++) {
        ms_plan *plan = some_plan(budgets[i]), *read;
        ms_error err;
        char *text = ms_plan_to_json(plan);
        assert_ms_ok(ms_plan_parse(text, &read, &err), err);
        char *again = ms_plan_to_json(read);
        assert_string_equal(text, again);
        assert_memory_equal(&plan->replay, &read->replay, sizeof plan->replay);
        assert_memory_equal(&plan->pressure, &read->pressure, sizeof plan->pressure);
        assert_int_equal(plan->ceiling_bytes, read->ceiling_bytes);
        assert_int_equal(plan->smallest_budget_bytes, read->smallest_budget_bytes);
        assert_int_equal(plan->entry_count, read->entry_count);
        for (uint32_t e = 0; e < plan->entry_count; e++) {
            assert_int_equal(plan->entries[e].technique, read->entries[e].technique);
            assert_int_equal(plan->entries[e].rule, read->entries[e].rule);
            assert_int_equal(plan->entries[e].runner_up, read->entries[e].runner_up);
        }
        assert_true(plan->why.known && read->why.known);
        assert_int_equal(plan->why.part_count, read->why.part_count);
        assert_memory_equal(plan->why.parts, read->why.parts, plan->why.part_count * sizeof *plan->why.parts);
        assert_memory_equal(&plan->why.larger, &read->why.larger, sizeof plan->why.larger);
        assert_memory_equal(&plan->why.smaller, &read->why.smaller, sizeof plan->why.smaller);
        assert_int_equal(plan->why.lower_bound_ns, read->why.lower_bound_ns);
        assert_int_equal(plan->why.timed_bytes, read->why.timed_bytes);
        ms_free(text);
        ms_free(again);
        ms_plan_free(plan);
        ms_plan_free(read);
    }
}

/* A plan for unknown layers is a document too. */
static void a_plan_without_entries_survives(void **state)
{
    (void)state;
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan, *read;
    ms_error err;
    ms_config_default(&config);
    assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_RECOMPUTE, &plan, &err), err);
    char *text = ms_plan_to_json(plan);
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    assert_int_equal(read->fallback, MS_TECHNIQUE_RECOMPUTE);
    assert_int_equal(read->entry_count, 0);
    ms_free(text);
    text = ms_plan_table(plan, hardware); /* nothing is predicted of unknown layers */
    assert_non_null(text);
    assert_null(strstr(text, "predicted"));
    assert_null(strstr(text, "pressure"));
    ms_free(text);
    ms_plan_free(plan);
    ms_plan_free(read);
    ms_free(hardware);
}

/* The document with one change made by jansson, parsed. */
static void refused(const char *path, json_t *value, int code, const char *part)
{
    ms_plan *plan = some_plan(2000 * MIB), *read = NULL;
    char *text = ms_plan_to_json(plan);
    json_t *tree = json_loads(text, 0, NULL);
    assert_non_null(tree);
    json_t *at = tree;
    char steps[64];
    snprintf(steps, sizeof steps, "%s", path);
    char *last = strrchr(steps, '/');
    if (last != NULL) {
        *last++ = '\0';
        json_t *peak = json_object_get(json_object_get(tree, "explanation"), "peak");
        at = strcmp(steps, "entry") == 0  ? json_array_get(json_object_get(tree, "entries"), 1)
             : strcmp(steps, "peak") == 0 ? peak
             : strcmp(steps, "part") == 0 ? json_array_get(json_object_get(peak, "parts"), 0)
                                          : json_object_get(tree, steps);
    } else {
        last = steps;
    }
    assert_non_null(at);
    if (value == NULL) {
        assert_int_equal(json_object_del(at, last), 0);
    } else {
        json_object_set_new(at, last, value);
    }
    char *changed = json_dumps(tree, 0);
    ms_error err;
    assert_ms_fails(ms_plan_parse(changed, &read, &err), code, err, part);
    assert_null(read);
    ms_free(changed);
    json_decref(tree);
    ms_free(text);
    ms_plan_free(plan);
}

static void a_malformed_plan_is_refused_with_its_place(void **state)
{
    (void)state;
    refused("version", json_integer(2), MS_EVERSION, "version");
    refused("version", NULL, MS_EFORMAT, "version");
    refused("model", json_integer(1), MS_EFORMAT, "$.model");
    refused("skipped", json_string("no"), MS_EFORMAT, "$.skipped");
    refused("fallback", json_string("teleport"), MS_EFORMAT, "$.fallback");
    refused("extra", json_true(), MS_EFORMAT, "extra");
    refused("pressure/permille", json_integer(-1), MS_EFORMAT, "$.pressure.permille");
    refused("pressure/extra", json_true(), MS_EFORMAT, "$.pressure");
    refused("predicted/peak_bytes", json_real(1.5), MS_EFORMAT, "$.predicted.peak_bytes");
    refused("predicted/step_ns", NULL, MS_EFORMAT, "$.predicted");
    refused("unoptimized", json_null(), MS_EFORMAT, "$.unoptimized");
    refused("settings/ceiling_bytes", json_string("4 GB"), MS_EFORMAT, "$.settings.ceiling_bytes");
    refused("smallest_budget_bytes", json_integer(0), MS_EFORMAT, "$.smallest_budget_bytes");
    refused("entries", json_object(), MS_EFORMAT, "$.entries");
    refused("entry/technique", json_string("KEEP"), MS_EFORMAT, "$.entries[1].technique");
    refused("entry/rule", json_string("whim"), MS_EFORMAT, "$.entries[1].rule");
    refused("entry/name", json_null(), MS_EFORMAT, "$.entries[1].name");
    refused("entry/node", json_integer(-4), MS_EFORMAT, "$.entries[1].node");
    refused("entry/extra", json_true(), MS_EFORMAT, "$.entries[1]");
    refused("assumed/extra", json_true(), MS_EFORMAT, "$.assumed");
    refused("explanation/extra", json_true(), MS_EFORMAT, "$.explanation");
    refused("explanation/timed_bytes", NULL, MS_EFORMAT, "$.explanation.timed_bytes");
    refused("explanation/lower_bound_ns", json_integer(0), MS_EFORMAT, "$.explanation.lower_bound_ns");
    refused("explanation/larger_budget", json_integer(5), MS_EFORMAT, "$.explanation.larger_budget");
    refused("explanation/smaller_budget", json_object(), MS_EFORMAT, "$.explanation.smaller_budget");
    refused("peak/phase", json_string("night"), MS_EFORMAT, "$.explanation.peak.phase");
    refused("peak/parts", json_null(), MS_EFORMAT, "$.explanation.peak.parts");
    refused("part/kind", json_string("dust"), MS_EFORMAT, "$.explanation.peak.parts[0].kind");
    refused("part/node", json_integer(-1), MS_EFORMAT, "$.explanation.peak.parts[0].node");
    refused("part/extra", json_true(), MS_EFORMAT, "$.explanation.peak.parts[0]");
}

static void selections_refused(const char *selections, const char *part)
{
    refused("selections", json_loads(selections, JSON_DECODE_ANY, NULL), MS_EFORMAT, part);
}

static void a_malformed_selection_is_refused_with_its_place(void **state)
{
    (void)state;
    selections_refused("5", "$.selections");
    selections_refused("[5]", "$.selections[0]");
    selections_refused("[{\"slot_bytes\": [4]}]", "$.selections[0]");
    selections_refused("[{\"dropped\": []}]", "$.selections[0]");
    selections_refused("[{\"slot_bytes\": [4], \"dropped\": [], \"extra\": 1}]", "extra");
    selections_refused("[{\"slot_bytes\": [-4], \"dropped\": []}]", "$.selections[0].slot_bytes[0]");
    selections_refused("[{\"slot_bytes\": [], \"dropped\": [0]}]", "there are no slots");
    selections_refused("[{\"slot_bytes\": [4, 8], \"dropped\": [2]}]", "$.selections[0].dropped[0]");
    selections_refused("[{\"slot_bytes\": [4, 8], \"dropped\": [1, 1]}]", "a slot is listed twice");
    selections_refused("[{\"slot_bytes\": [4], \"dropped\": [], \"two_valued\": [{\"slot\": 0}]}]",
                       "$.selections[0].two_valued[0]");
#define TWO_VALUED(list) "[{\"slot_bytes\": [4, 8], \"dropped\": [], \"two_valued\": [" list "]}]"
#define SLOT(number, more) "{\"slot\": " number ", \"packed\": true, \"saved_bytes\": 1, \"cost_ns\": 1" more "}"
    selections_refused(TWO_VALUED(SLOT("2", "")), "$.selections[0].two_valued[0].slot");
    selections_refused(TWO_VALUED(SLOT("0", ", \"extra\": 1")), "$.selections[0].two_valued[0]");
    selections_refused(TWO_VALUED(SLOT("0", "") "," SLOT("0", "")), "slots do not ascend");
    selections_refused(TWO_VALUED(SLOT("1", "") "," SLOT("0", "")), "slots do not ascend");
#undef SLOT
#undef TWO_VALUED
}

static void malformed_json_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{", "[]", "null", "{\"version\":1}", "{\"version\":1,\"version\":1}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ms_plan *plan = NULL;
        ms_error err;
        assert_ms_fails(ms_plan_parse(texts[i], &plan, &err), MS_EFORMAT, err, "plan");
        assert_null(plan);
    }
}

static void reading_and_writing_fail_cleanly_out_of_memory(void **state)
{
    (void)state;
    ms_plan *plan = some_plan(2000 * MIB), *read = NULL;
    char *text = ms_plan_to_json(plan), *again;
    ms_error err;
    uint64_t before = ms_memory_live_blocks(), nth = 0;
    int rc;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        rc = ms_plan_parse(text, &read, &err);
        assert_true(rc == MS_OK || (rc == MS_ENOMEM && ms_memory_live_blocks() == before));
    } while (rc != MS_OK);
    ms_plan_free(read);
    assert_int_equal(ms_memory_live_blocks(), before);
    nth = 0;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        again = ms_plan_to_json(plan);
        assert_true(again != NULL || ms_memory_live_blocks() == before);
    } while (again == NULL);
    ms_fault_disarm_all();
    assert_string_equal(text, again);
    ms_free(again);
    ms_free(text);
    ms_plan_free(plan);
}

/* ---- texts for people --------------------------------------------------------------------- */

static void contains(const char *text, const char *part)
{
    if (text == NULL) {
        fail_msg("no text, where \"%s\" should be", part);
        return;
    }
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in:\n%s", part, text);
    }
}

static void the_table_names_need_budget_and_layers(void **state)
{
    (void)state;
    ms_plan *plan = some_plan(1400 * MIB);
    ms_hardware *hardware = fixture_real_hardware();
    char *text = ms_plan_table(plan, hardware);
    contains(text, "memscale plan for Fixture");
    contains(text, "disk 1.70 GB/s down, 1.40 GB/s back");
    contains(text, "1.47 GB"); /* the budget */
    contains(text, "offload_disk");
    contains(text, "predicted");
    contains(text, "against unoptimized");
    assert_null(strstr(text, "times as long"));
    ms_free(text);
    hardware->pace_permille = 1257;
    text = ms_plan_table(plan, hardware);
    contains(text, "steps here take 1.25 times as long");
    ms_free(text);
    hardware->pace_permille = 2040;
    text = ms_plan_table(plan, hardware);
    contains(text, "steps here take 2.04 times as long");
    ms_free(text);
    text = ms_plan_table(plan, NULL);
    assert_null(strstr(text, "machine"));
    ms_free(text);
    ms_plan_free(plan);
    ms_free(hardware);
}

static void every_entry_is_explained(void **state)
{
    (void)state;
    ms_plan *plan = some_plan(1400 * MIB);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        char *text = ms_plan_explain(plan, i);
        contains(text, ms_technique_name((ms_technique)plan->entries[i].technique));
        contains(text, ms_rule_text((ms_rule)plan->entries[i].rule));
        contains(text, plan->entries[i].name);
        contains(text, "runner-up");
        ms_free(text);
    }
    char *whole = ms_plan_explain(plan, -1);
    contains(whole, "the smallest that fits is");
    contains(whole, "a larger budget would buy back");
    contains(whole, "in the ");
    contains(whole, "optimizer state");
    contains(whole, "no plan that fits takes less than");
    contains(whole, "the next larger budget");
    ms_free(whole);
    char *none = ms_plan_explain(plan, plan->entry_count);
    contains(none, "does not exist");
    ms_free(none);
    ms_plan_free(plan);
}

/* The 24 largest parts of a peak have lines of their own, the others one together. */
static void the_largest_parts_of_a_peak_are_listed(void **state)
{
    (void)state;
    enum { SHOWN = 24, ALL = SHOWN + 2 };
    ms_plan *plan = some_plan(1400 * MIB);
    ms_peak_part *own = plan->why.parts, parts[ALL];
    uint32_t own_count = plan->why.part_count;
    for (uint32_t i = 0; i < ALL; i++) {
        parts[i] = (ms_peak_part){.kind = MS_PEAK_SAVED, .node = 1, .storages = 1, .bytes = (ALL - i) * MIB};
    }
    plan->why.parts = parts;
    for (uint32_t count = SHOWN - 1; count <= ALL; count++) {
        plan->why.part_count = count;
        char *text = ms_plan_explain(plan, -1), more[16];
        snprintf(more, sizeof more, "  %u more\n", count - SHOWN);
        assert_non_null(text);
        assert_int_equal(strstr(text, count > SHOWN ? more : " more\n") != NULL, count > SHOWN);
        ms_free(text);
    }
    plan->why.parts = own;
    plan->why.part_count = own_count;
    ms_plan_free(plan);
}

static void texts_fail_cleanly_out_of_memory(void **state)
{
    (void)state;
    ms_plan *plan = some_plan(1400 * MIB);
    uint64_t before = ms_memory_live_blocks(), nth = 0;
    char *text;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        text = ms_plan_explain(plan, -1);
        assert_true(text != NULL || ms_memory_live_blocks() == before);
    } while (text == NULL);
    ms_free(text);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_null(ms_plan_table(plan, NULL));
    ms_fault_disarm_all();
    ms_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_survives_the_round_trip),
        cmocka_unit_test(a_plan_without_entries_survives),
        cmocka_unit_test(a_malformed_plan_is_refused_with_its_place),
        cmocka_unit_test(a_malformed_selection_is_refused_with_its_place),
        cmocka_unit_test(malformed_json_is_refused),
        cmocka_unit_test(reading_and_writing_fail_cleanly_out_of_memory),
        cmocka_unit_test(the_table_names_need_budget_and_layers),
        cmocka_unit_test(every_entry_is_explained),
        cmocka_unit_test(the_largest_parts_of_a_peak_are_listed),
        cmocka_unit_test(texts_fail_cleanly_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
