/* Token buckets: a burst, then the rate; everyone has one of their own; a clock that stands still gives nothing. */
#include "limits/limits.h"
#include "test_common.h"

#define SECOND_NS ((uint64_t)1000000000)

static size_t take_all(mss_limits *limits, mss_limit limit, const char *who, uint64_t now_ns)
{
    size_t taken = 0;
    while (mss_limits_take(limits, limit, who, now_ns) == 0) {
        taken++;
    }
    return taken;
}

static void test_a_burst_and_then_the_rate(void **state)
{
    (void)state;
    mss_limits *limits;
    uint64_t now_ns = 1000 * SECOND_NS;
    assert_int_equal(mss_limits_new(100, &limits, NULL), MS_OK);
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "a", now_ns), 10);
    assert_int_equal(mss_limits_take(limits, MSS_LIMIT_SIGN_IN, "a", now_ns), 7); /* one in six seconds */
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "a", now_ns + 12 * SECOND_NS), 2);
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "a", now_ns + 3600 * SECOND_NS), 10); /* and no more */
    mss_limits_free(limits);
}

static void test_everyone_has_a_bucket_in_every_class(void **state)
{
    (void)state;
    mss_limits *limits;
    assert_int_equal(mss_limits_new(100, &limits, NULL), MS_OK);
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "a", SECOND_NS), 10);
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "b", SECOND_NS), 10);
    assert_int_equal(take_all(limits, MSS_LIMIT_TELEMETRY, "a", SECOND_NS), 60);
    assert_int_equal(mss_limits_take(limits, MSS_LIMIT_NONE, "a", SECOND_NS), 0);
    mss_limits_free(limits);
}

/* Whoever comes with many names makes room for themselves, not for others. */
static void test_a_flood_of_names_does_not_free_who_is_waiting(void **state)
{
    (void)state;
    mss_limits *limits;
    char name[32];
    assert_int_equal(mss_limits_new(100, &limits, NULL), MS_OK);
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "guesser", SECOND_NS), 10);
    for (int i = 0; i < 30000; i++) {
        snprintf(name, sizeof name, "name %d", i);
        assert_int_equal(mss_limits_take(limits, MSS_LIMIT_SIGN_IN, name, SECOND_NS), 0);
    }
    assert_int_not_equal(mss_limits_take(limits, MSS_LIMIT_SIGN_IN, "guesser", SECOND_NS), 0);
    mss_limits_free(limits);
}

static void test_a_scale(void **state)
{
    (void)state;
    mss_limits *limits;
    assert_int_equal(mss_limits_new(50, &limits, NULL), MS_OK);
    assert_int_equal(take_all(limits, MSS_LIMIT_SIGN_IN, "a", SECOND_NS), 5);
    mss_limits_free(limits);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(mss_limits_new(100, &limits, NULL), MS_ENOMEM);
    ms_fault_disarm_all();
}

/* Two servers borrow from one bucket: together they get its burst, and then its rate. */
static void test_borrowers_get_what_one_server_would_give(void **state)
{
    (void)state;
    mss_limits *servers[2];
    int64_t now_ns = (int64_t)(1000 * SECOND_NS), full_at_ns = 0, given = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mss_limits_new(100, &servers[i], NULL), MS_OK);
    }
    for (int i = 0;; i ^= 1) {
        mss_loan loan = mss_limits_borrow(servers[i], MSS_LIMIT_WRITE, full_at_ns, now_ns);
        if (loan.tokens == 0) {
            assert_int_equal(loan.wait_s, 1);
            break;
        }
        assert_true(loan.tokens <= 600 / 16);
        full_at_ns = loan.full_at_ns;
        given += loan.tokens;
    }
    assert_int_equal(given, 600);
    assert_int_equal(mss_limits_borrow(servers[0], MSS_LIMIT_WRITE, full_at_ns, now_ns + 100000000).tokens, 10);
    assert_int_equal(mss_limits_borrow(servers[0], MSS_LIMIT_SIGN_IN, 0, now_ns).tokens, 1); /* a small burst: one */
    for (int i = 0; i < 2; i++) {
        mss_limits_free(servers[i]);
    }
}

static void test_what_is_borrowed_is_spent_once(void **state)
{
    (void)state;
    mss_limits *limits;
    assert_int_equal(mss_limits_new(100, &limits, NULL), MS_OK);
    assert_false(mss_limits_spend(limits, MSS_LIMIT_WRITE, "a"));
    mss_limits_keep(limits, MSS_LIMIT_WRITE, "a", 2);
    assert_false(mss_limits_spend(limits, MSS_LIMIT_WRITE, "b"));
    assert_false(mss_limits_spend(limits, MSS_LIMIT_PAGE, "a"));
    assert_true(mss_limits_spend(limits, MSS_LIMIT_WRITE, "a"));
    assert_true(mss_limits_spend(limits, MSS_LIMIT_WRITE, "a"));
    assert_false(mss_limits_spend(limits, MSS_LIMIT_WRITE, "a"));
    assert_int_not_equal(mss_limits_key(MSS_LIMIT_WRITE, "a"), mss_limits_key(MSS_LIMIT_PAGE, "a"));
    mss_limits_free(limits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_burst_and_then_the_rate),
        cmocka_unit_test(test_everyone_has_a_bucket_in_every_class),
        cmocka_unit_test(test_a_flood_of_names_does_not_free_who_is_waiting),
        cmocka_unit_test(test_a_scale),
        cmocka_unit_test(test_borrowers_get_what_one_server_would_give),
        cmocka_unit_test(test_what_is_borrowed_is_spent_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
