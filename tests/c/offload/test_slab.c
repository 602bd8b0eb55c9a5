/* The slab's memory node: requested if memory has several, and logged either way. */
#include "base/os/map.h"
#include "offload/slab.h"
#include "test_common.h"

static char line[1024];

static void remember_line(void *context, ms_log_level level, const char *text)
{
    (void)context;
    (void)level;
    snprintf(line, sizeof line, "%s", text);
}

static const char *said_of(ms__slab *slab, uint32_t node_count)
{
    line[0] = '\0';
    ms__keep_near(slab->address, slab->bytes, node_count, "transfer slots");
    return line;
}

static void memory_of_one_node_is_not_logged(void **state)
{
    (void)state;
    ms_error err = {0};
    ms__slab slab;
    assert_ms_ok(ms__slab_open(&slab, 64 << 10, &err), err);
    assert_string_equal(said_of(&slab, 1), "");
    ms__slab_close(&slab);
}

static void the_nearest_of_several_nodes_is_requested(void **state)
{
    (void)state;
    ms_error err = {0};
    ms__slab slab;
    assert_ms_ok(ms__slab_open(&slab, 64 << 10, &err), err);
    const char *said = said_of(&slab, 2);
    assert_true(strstr(said, "transfer slots: 65.54 kB from memory node ") == said ||
                strstr(said, "refused a choice") != NULL);
    ms_fault_arm(MS_FAULT_MAP, 1, 0);
    assert_non_null(strstr(said_of(&slab, 2), "from the memory node, of 2, nearest"));
    ms_fault_disarm_all();
    memset(slab.address, 1, slab.bytes); /* the memory is usable all the same */
    ms__slab_close(&slab);
    assert_null(slab.address);
}

/* All pages are touched, whichever thread can't be started. */
static void a_large_range_is_touched_by_several_threads(void **state)
{
    (void)state;
    enum { BYTES = 33 << 20, STARTED = 3 };
    ms_error err = {0};
    for (uint64_t nth = 1; nth <= STARTED + 1; nth++) {
        ms__slab slab;
        assert_ms_ok(ms__slab_open(&slab, BYTES, &err), err);
        assert_int_equal(ms__slab_resident_bytes(&slab), 0);
        ms_fault_arm(MS_FAULT_THREAD, nth, 0);
        ms__touch(slab.address, slab.bytes);
        assert_int_equal(ms_fault_passed(MS_FAULT_THREAD), STARTED);
        ms_fault_disarm_all();
        assert_int_equal(ms__slab_resident_bytes(&slab), BYTES);
        ms__untouch(slab.address, slab.bytes);
        assert_int_equal(ms__slab_resident_bytes(&slab), 0);
        ms__slab_close(&slab);
    }
}

static void a_small_range_is_touched_by_the_caller(void **state)
{
    (void)state;
    ms_error err = {0};
    ms__slab slab;
    assert_ms_ok(ms__slab_open(&slab, 1 << 20, &err), err);
    ms_fault_arm(MS_FAULT_THREAD, 1, 0);
    ms__touch(slab.address, slab.bytes);
    assert_int_equal(ms_fault_passed(MS_FAULT_THREAD), 0);
    ms_fault_disarm_all();
    assert_int_equal(ms__slab_resident_bytes(&slab), 1 << 20);
    ms__slab_close(&slab);
}

static int setup(void **state)
{
    (void)state;
    ms_log_set_sink(remember_line, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    ms_log_set_sink(NULL, NULL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(memory_of_one_node_is_not_logged, setup, teardown),
        cmocka_unit_test_setup_teardown(the_nearest_of_several_nodes_is_requested, setup, teardown),
        cmocka_unit_test_setup_teardown(a_large_range_is_touched_by_several_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(a_small_range_is_touched_by_the_caller, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
