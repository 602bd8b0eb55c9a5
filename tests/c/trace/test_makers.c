/*
 * Makers: the operators that can recompute single tensors, and those that a trace keeps.
 */
#include "trace_stream.h"

static void makers_are_known_by_name(void **state)
{
    (void)state;
    assert_true(ms_operator_is_maker("aten.addmm.default", false));
    assert_true(ms_operator_is_maker("aten.tanh.default", true));
    assert_true(ms_operator_is_maker("aten.native_layer_norm.default", false));
    assert_true(ms_operator_is_maker("aten._fused_rms_norm.default", false));
    assert_false(ms_operator_is_maker("aten._scaled_dot_product_flash_attention.default", false)); /* may draw */
    assert_false(ms_operator_is_maker("aten.tanh_.default", true));
    assert_false(ms_operator_is_maker("aten.tanh.default", false));
    assert_false(ms_operator_is_maker("aten.empty_like.default", true));
    assert_false(ms_operator_is_maker("aten.native_batch_norm.default", false));
    assert_false(ms_operator_is_maker("mylib.addmm.default", true));
    assert_false(ms_operator_is_maker("addmm", false));
    assert_false(ms_operator_is_maker("aten.", false));
}

static void made(uint64_t from, uint64_t key)
{
    work(64);
    assert_ms_ok(ms_trace_made(trace, &from, 1, &key, 1, true, &err), err);
}

/* x -> y -> z, all but y saved. */
static void begin_layer(void)
{
    born(1, 64);
    enter("h.0", 0);
    input(1);
    saved(1);
    born(2, 64);
    made(1, 2);
    born(3, 64);
    made(2, 3);
}

static void end_layer(token of_z)
{
    leave();
    phase(MS_TRACE_BACKWARD);
    unpacked(of_z, 0);
    dropped(of_z);
    phase(MS_TRACE_DONE);
}

static void makers_that_lead_to_a_saved_tensor_are_kept(void **state)
{
    (void)state;
    begin_layer();
    token z = saved(3);
    born(4, 64);
    made(3, 4); /* not saved */
    died(2);
    end_layer(z);
    assert_finishes_with("\"makers\":[[0,64,[0],[1]],[0,64,[1],[2]]]");
}

static void an_overwritten_operand_ends_its_makers(void **state)
{
    (void)state;
    begin_layer();
    token z = saved(3);
    assert_ms_ok(ms_trace_wrote(trace, 2, &err), err); /* y can no longer give z */
    end_layer(z);
    char *text = finish();
    assert_null(strstr(text, "makers"));
    ms_free(text);
}

static void a_parameter_needs_no_maker(void **state)
{
    (void)state;
    resident(9, 64, MS_RESIDENT_PARAMETER, true);
    born(1, 64);
    enter("h.0", 0);
    input(1);
    born(2, 64);
    made(9, 2);
    token y = saved(2);
    end_layer(y);
    assert_finishes_with("\"makers\":[[0,64,[],[1]]]");
}

static void a_buffer_that_the_step_writes_to_makes_nothing(void **state)
{
    (void)state;
    resident(9, 64, MS_RESIDENT_BUFFER, false);
    born(1, 64);
    enter("h.0", 0);
    input(1);
    assert_ms_ok(ms_trace_wrote(trace, 9, &err), err); /* the layer's next call may do so again */
    assert_ms_ok(ms_trace_wrote(trace, 9, &err), err);
    born(2, 64);
    made(9, 2);
    token y = saved(2);
    end_layer(y);
    char *text = finish();
    assert_null(strstr(text, "makers"));
    ms_free(text);
}

static void unknown_storages_make_an_operator_unknown(void **state)
{
    (void)state;
    born(1, 64);
    enter("h.0", 0);
    input(1);
    born(2, 64);
    made(77, 2);
    token y = saved(2);
    end_layer(y);
    char *text = finish();
    assert_null(strstr(text, "makers"));
    ms_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makers_are_known_by_name),
        cmocka_unit_test_setup_teardown(makers_that_lead_to_a_saved_tensor_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(an_overwritten_operand_ends_its_makers, setup, teardown),
        cmocka_unit_test_setup_teardown(a_parameter_needs_no_maker, setup, teardown),
        cmocka_unit_test_setup_teardown(a_buffer_that_the_step_writes_to_makes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_storages_make_an_operator_unknown, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
