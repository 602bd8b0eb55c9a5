/*
 * Storages that operators touch only in part: in the trace, in graphs, and as the kernel reports them.
 */
#include <sys/mman.h>

#include "memscale/hostmem.h"
#include "trace_stream.h"

/* A layer whose result 2, of 64 bytes, is saved; 48 of it are untouched. */
static char *told(uint64_t bytes)
{
    born(1, 64);
    enter("h.0", 0);
    input(1);
    born(2, 64);
    work(64);
    assert_ms_ok(ms_trace_untouched(trace, 2, bytes, &err), err);
    assert_ms_ok(ms_trace_untouched(trace, 77, 8, &err), err);
    token kept = saved(2);
    died(2);
    leave();
    phase(MS_TRACE_BACKWARD);
    unpacked(kept, 0);
    dropped(kept);
    phase(MS_TRACE_DONE);
    return finish();
}

static void reported_bytes_stand_in_the_graph(void **state)
{
    (void)state;
    char *text = told(48);
    assert_contains(text, "\"untouched\":[[1,48]]");
    ms_free(text);
}

static void untouched_bytes_do_not_exceed_the_storage(void **state)
{
    (void)state;
    char *text = told(4096);
    assert_contains(text, "\"untouched\":[[1,64]]");
    ms_free(text);
}

static void graphs_hold_them_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *to, *text;
    } rows[] = {
        {"[[0,48]]", "$.profiles[1].untouched[0]: storage 0 is not local to the node"},
        {"[[9,48]]", "storage 9 is not local to the node"},
        {"[[1,65]]", "has not so many bytes"},
        {"[[1,8],[1,8]]", "is out of order"},
        {"[[1,0]]", "untouched[0][1]"},
        {"[[1]]", "expected [storage, bytes]"},
    };
    char *text = told(48);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char changed[4096];
        const char *at = strstr(text, "[[1,48]]");
        assert_non_null(at);
        int length = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, rows[i].to, at + 8);
        assert_true(length > 0 && (size_t)length < sizeof changed);
        ms_graph *graph = NULL;
        assert_int_equal(ms_graph_parse(changed, &graph, &err), MS_EFORMAT);
        assert_contains(err.text, rows[i].text);
    }
    ms_graph *graph = NULL;
    assert_ms_ok(ms_graph_parse(text, &graph, &err), err);
    ms_graph *copy = ms_graph_copy(graph, &err);
    char *again = ms_graph_to_json(copy);
    assert_string_equal(text, again);
    ms_free(again);
    ms_graph_free(copy);
    ms_graph_free(graph);
    ms_free(text);
}

static void untouched_pages_are_reported(void **state)
{
    (void)state;
    enum { PAGE = 4096, PAGES = 3000 };
    char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(madvise(map, PAGES * PAGE, MADV_NOHUGEPAGE), 0);
    memset(map + 10 * PAGE, 1, 100 * PAGE);
    assert_int_equal(ms_hostmem_untouched(map, PAGES * PAGE), (PAGES - 100) * (uint64_t)PAGE);
    assert_int_equal(ms_hostmem_untouched(map + 1, 3 * PAGE), 2 * PAGE);
    assert_int_equal(ms_hostmem_untouched(map + 1, PAGE), 0);
    munmap(map, PAGES * PAGE);
    assert_int_equal(ms_hostmem_untouched(map, PAGES * PAGE), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(reported_bytes_stand_in_the_graph),
        CASE(untouched_bytes_do_not_exceed_the_storage),
        CASE(graphs_hold_them_strictly),
        CASE(untouched_pages_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
