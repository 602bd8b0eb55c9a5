/*
 * Sums of gradients: one storage if autograd alone holds the first gradient, because untraced torch writes the sum
 * over it; two storages otherwise.
 */
#include "trace_stream.h"

static void adds(uint64_t key, uint64_t other)
{
    assert_ms_ok(ms_trace_adds(trace, key, other, &err), err);
}

/* A step whose backward has made the gradients 10 and 11. */
static void begin_backward(uint64_t first_bytes, uint64_t other_bytes)
{
    born(1, 64);
    enter("h.0", 0);
    input(1);
    work(64);
    leave();
    phase(MS_TRACE_BACKWARD);
    born(10, first_bytes);
    born(11, other_bytes);
    work(64);
}

/* The sum 12 is there. */
static void add(uint64_t key, uint64_t other, uint64_t bytes)
{
    adds(key, other);
    born(12, bytes);
    work(bytes);
}

static void end(const char *backward)
{
    died(12);
    died(1);
    phase(MS_TRACE_DONE);
    assert_finishes_with(backward);
}

static void a_sum_over_the_first_is_one_storage(void **state)
{
    (void)state;
    begin_backward(64, 64);
    add(10, 11, 64);
    died(10);
    assert_int_equal(ms_trace_live_bytes(trace), 64 + 64 + 64);
    assert_int_equal(ms_trace_peak_bytes(trace), 64 + 64 + 64);
    died(11);
    end("\"backward\":[[\"alloc\",1],[\"alloc\",2],[\"work\",0,64],[\"work\",0,64],[\"free\",2],[\"free\",1]");
}

static void sums_follow_one_another(void **state)
{
    (void)state;
    begin_backward(64, 64);
    add(10, 11, 64);
    died(10);
    died(11);
    born(11, 64);
    adds(12, 11);
    born(13, 64);
    work(64);
    died(12);
    died(11);
    died(13);
    phase(MS_TRACE_DONE);
    assert_finishes_with("[\"work\",0,64],[\"free\",2],[\"alloc\",3],[\"work\",0,64],[\"free\",3],[\"free\",1]");
}

static const char apart[] = "[\"alloc\",3],[\"work\",0,64],[\"free\",2],[\"free\",1],[\"free\",3]";

static void a_gradient_with_another_holder_is_not_overwritten(void **state)
{
    (void)state;
    begin_backward(64, 64);
    add(10, 11, 64);
    died(11);
    died(10);
    end(apart);
}

static void a_gradient_of_other_bytes_is_not_overwritten(void **state)
{
    (void)state;
    begin_backward(4, 64);
    add(10, 11, 64);
    died(10);
    died(11);
    end("[\"alloc\",3],[\"work\",0,64],[\"free\",1],[\"free\",2],[\"free\",3]");
}

static void a_gradient_added_to_itself_is_not_overwritten(void **state)
{
    (void)state;
    begin_backward(64, 64);
    add(10, 10, 64);
    died(10);
    died(11);
    end("[\"alloc\",3],[\"work\",0,64],[\"free\",1],[\"free\",2],[\"free\",3]");
}

static void an_unannounced_sum_is_its_own_storage(void **state)
{
    (void)state;
    begin_backward(64, 64);
    born(12, 64);
    work(64);
    died(10);
    died(11);
    end("[\"alloc\",3],[\"work\",0,64],[\"free\",1],[\"free\",2],[\"free\",3]");
}

static void a_sum_can_be_a_parameters_gradient(void **state)
{
    (void)state;
    begin_backward(64, 64);
    add(10, 11, 64);
    died(10);
    died(11);
    role(12, 64, MS_STORAGE_GRADIENT);
    died(1);
    phase(MS_TRACE_DONE);
    assert_finishes_with("{\"bytes\":64,\"role\":\"gradient\",\"first_node\":1,\"last_node\":1}]");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_sum_over_the_first_is_one_storage),
        CASE(sums_follow_one_another),
        CASE(a_gradient_with_another_holder_is_not_overwritten),
        CASE(a_gradient_of_other_bytes_is_not_overwritten),
        CASE(a_gradient_added_to_itself_is_not_overwritten),
        CASE(an_unannounced_sum_is_its_own_storage),
        CASE(a_sum_can_be_a_parameters_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
