/*
 * Two graphs of one step: equal graphs have no difference. If only one of them allocates or saves a storage, or its
 * sizes differ, the report names it with its node, its bytes and the operator before it.
 */
#include "plan_fixture.h"

static const fixture_layer layer = {.saved_bytes = 8 * MIB, .temp_bytes = 2 * MIB, .flops = 1000000};

static ms_graph *chain(uint32_t layers, uint64_t saved_bytes)
{
    fixture_layer own = layer;
    own.saved_bytes = saved_bytes;
    return fixture_chain_graph(&(fixture_chain){
        .layer_count = layers, .layers = &own, .uniform = true, .activation_bytes = 4 * MIB, .logits_bytes = MIB});
}

static char *report_of(ms_graph *traced, ms_graph *seen, uint32_t *differences)
{
    ms_hardware *hardware = fixture_hardware();
    ms_error err;
    char *report;
    assert_ms_ok(ms_pipeline_trace_diff(traced, seen, hardware, &report, differences, &err), err);
    ms_free(hardware);
    ms_graph_free(traced);
    ms_graph_free(seen);
    return report;
}

static void assert_says(const char *report, const char *part)
{
    if (report == NULL || strstr(report, part) == NULL) {
        fail_msg("\"%s\" is not in:\n%s", part, report != NULL ? report : "(nothing)");
    }
}

static void equal_graphs_do_not_differ(void **state)
{
    (void)state;
    uint32_t differences;
    char *report = report_of(chain(6, 8 * MIB), chain(6, 8 * MIB), &differences);
    assert_int_equal(differences, 0);
    assert_says(report, "no difference");
    ms_free(report);
}

/* All layers share a profile, so the first one's report stands for all. */
static void a_storage_of_other_bytes_is_named_once(void **state)
{
    (void)state;
    uint32_t differences;
    char *report = report_of(chain(6, 8 * MIB), chain(6, 16 * MIB), &differences);
    assert_true(differences > 0);
    assert_says(report, "h.0, call 0");
    assert_null(strstr(report, "h.1, call 0"));
    assert_says(report, "- save       8.39 MB");
    assert_says(report, "+ save      16.78 MB");
    assert_says(report, "only in the step");
    ms_free(report);
}

static void a_node_of_one_side_is_named(void **state)
{
    (void)state;
    uint32_t differences;
    char *report = report_of(chain(3, 8 * MIB), chain(4, 8 * MIB), &differences);
    assert_int_equal(differences, 1);
    assert_says(report, "h.3, call 0: only in the step");
    ms_free(report);
    report = report_of(chain(4, 8 * MIB), chain(3, 8 * MIB), &differences);
    assert_int_equal(differences, 1);
    assert_says(report, "h.3, call 0: only in the trace");
    ms_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_graphs_do_not_differ),
        cmocka_unit_test(a_storage_of_other_bytes_is_named_once),
        cmocka_unit_test(a_node_of_one_side_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
