/* The slab's place: asked for where memory has several nodes, and told of either way. */
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

static void memory_of_one_node_needs_no_word(void **state)
{
    (void)state;
    ms_error err = {0};
    ms__slab slab;
    assert_ms_ok(ms__slab_open(&slab, 64 << 10, &err), err);
    assert_string_equal(said_of(&slab, 1), "");
    ms__slab_close(&slab);
}

static void among_several_nodes_the_nearest_is_asked_for(void **state)
{
    (void)state;
    ms_error err = {0};
    ms__slab slab;
    assert_ms_ok(ms__slab_open(&slab, 64 << 10, &err), err);
    const char *said = said_of(&slab, 2);
    assert_true(strstr(said, "transfer slots: 65.54 kB from memory node ") == said ||
                strstr(said, "takes no wish") != NULL);
    ms_fault_arm(MS_FAULT_MAP, 1, 0);
    assert_non_null(strstr(said_of(&slab, 2), "of 2 memory nodes is nearest"));
    ms_fault_disarm_all();
    memset(slab.address, 1, slab.bytes); /* it is memory all the same */
    ms__slab_close(&slab);
    assert_null(slab.address);
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
        cmocka_unit_test_setup_teardown(memory_of_one_node_needs_no_word, setup, teardown),
        cmocka_unit_test_setup_teardown(among_several_nodes_the_nearest_is_asked_for, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
