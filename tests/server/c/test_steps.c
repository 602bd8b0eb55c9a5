/* Steps: any values come back from the stored form; damaged ones are refused; points are the largest or mean. */
#include "store/steps.h"
#include "test_common.h"

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed;
}

static void fill(mss_steps *steps, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        mss_step *step = MS__ARRAY_PUSH(steps);
        assert_non_null(step);
        for (int column = 0; column < MSS_STEP_COLUMNS; column++) {
            uint64_t value = next_random(&seed);
            step->value[column] = value % 5 == 0 ? UINT64_MAX : value % 5 == 1 ? value >> 2 : value >> (value & 63);
        }
        step->value[MSS_STEP_NUMBER] = i + 1;
    }
}

static void test_any_values_come_back(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        mss_steps in = {0}, out = {0};
        unsigned char *data;
        size_t bytes;
        ms_error err;
        fill(&in, seed % 50 + 1, seed);
        assert_ms_ok(mss_steps_pack(&in, &data, &bytes, &err), err);
        assert_ms_ok(mss_steps_unpack(data, bytes, in.count, &out, &err), err);
        assert_int_equal(out.count, in.count);
        assert_memory_equal(out.items, in.items, in.count * sizeof in.items[0]);
        ms_free(data);
        MS__ARRAY_FREE(&in);
        MS__ARRAY_FREE(&out);
    }
}

/* Cut anywhere or with another count it is damaged; with any byte changed it is read or refused. */
static void test_damaged_batches_are_refused(void **state)
{
    (void)state;
    mss_steps in = {0}, out = {0};
    unsigned char *data;
    size_t bytes;
    fill(&in, 20, 3);
    assert_int_equal(mss_steps_pack(&in, &data, &bytes, NULL), MS_OK);
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(mss_steps_unpack(data, cut, in.count, &out, NULL), MS_EFORMAT);
        assert_int_equal(out.count, 0);
    }
    assert_int_equal(mss_steps_unpack(data, bytes, in.count - 1, &out, NULL), MS_EFORMAT);
    assert_int_equal(mss_steps_unpack(data, bytes, SIZE_MAX, &out, NULL), MS_EFORMAT);
    for (size_t at = 0; at < bytes; at++) {
        data[at] ^= 0x80;
        (void)!mss_steps_unpack(data, bytes, in.count, &out, NULL);
        data[at] ^= 0x80;
    }
    ms_free(data);
    MS__ARRAY_FREE(&in);
    MS__ARRAY_FREE(&out);
}

static void test_points(void **state)
{
    (void)state;
    mss_steps steps = {0};
    for (uint64_t i = 1; i <= 10; i++) {
        mss_step *step = MS__ARRAY_PUSH(&steps);
        assert_non_null(step);
        memset(step, 0xff, sizeof *step);
        step->value[MSS_STEP_NUMBER] = i;
        step->value[MSS_STEP_NS] = i == 2 ? UINT64_MAX : 10 * i;
        step->value[MSS_STEP_PEAK] = 100 - i;
    }
    assert_int_equal(mss_steps_thin(&steps, 100), 1);
    assert_int_equal(steps.count, 10);
    assert_int_equal(mss_steps_thin(&steps, 4), 3);
    assert_int_equal(steps.count, 4);
    assert_int_equal(steps.items[0].value[MSS_STEP_NUMBER], 3);
    assert_int_equal(steps.items[0].value[MSS_STEP_NS], 20); /* of the two that are known */
    assert_int_equal(steps.items[0].value[MSS_STEP_PEAK], 99);
    assert_true(steps.items[0].value[MSS_STEP_TIER] == UINT64_MAX);
    assert_int_equal(steps.items[3].value[MSS_STEP_NUMBER], 10);
    assert_int_equal(mss_steps_thin(&steps, 1), 4);
    assert_int_equal(steps.count, 1);
    MS__ARRAY_FREE(&steps);
}

static int read_text(const char *text, mss_steps *steps, ms_error *err)
{
    json_t *tree;
    ms__json_at root;
    int rc = ms__json_parse(text, strlen(text), "body", &tree, &root, err);
    if (rc == MS_OK) {
        rc = mss_steps_read(&root, "columns", steps);
        json_decref(tree);
    }
    return rc;
}

static void test_steps_are_read_from_json(void **state)
{
    (void)state;
    mss_steps steps = {0};
    ms_error err;
    assert_ms_ok(read_text("{\"columns\":{\"step\":[3,5],\"peak_bytes\":[7,null]}}", &steps, &err), err);
    assert_int_equal(steps.count, 2);
    assert_int_equal(steps.items[0].value[MSS_STEP_PEAK], 7);
    assert_true(steps.items[1].value[MSS_STEP_PEAK] == UINT64_MAX);
    assert_true(steps.items[1].value[MSS_STEP_NS] == UINT64_MAX);
    MS__ARRAY_FREE(&steps);
    static const char *const wrong[][2] = {
        {"{\"columns\":{\"step\":[3,3]}}", "must rise"},
        {"{\"columns\":{\"step\":[3],\"loss\":[1]}}", "loss"},
        {"{\"columns\":{\"step\":[]}}", "1 to 1000"},
        {"{\"columns\":{\"step\":[1],\"tier_bytes\":[]}}", "$.columns.tier_bytes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_ms_fails(read_text(wrong[i][0], &steps, &err), MS_EFORMAT, err, wrong[i][1]);
        MS__ARRAY_FREE(&steps);
    }
}

/* Each allocation on the way fails once: an error, and nothing is left. */
static void test_memory_that_runs_out(void **state)
{
    (void)state;
    mss_steps steps = {0}, out = {0};
    unsigned char *data = NULL;
    size_t bytes;
    fill(&steps, 5, 9);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(mss_steps_pack(&steps, &data, &bytes, NULL), MS_ENOMEM);
    ms_fault_disarm_all();
    assert_int_equal(mss_steps_pack(&steps, &data, &bytes, NULL), MS_OK);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(mss_steps_unpack(data, bytes, 5, &out, NULL), MS_ENOMEM);
    ms_fault_disarm_all();
    ms_free(data);
    MS__ARRAY_FREE(&steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_values_come_back),
        cmocka_unit_test(test_damaged_batches_are_refused),
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_steps_are_read_from_json),
        cmocka_unit_test(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
