/* The 8-bit maps: the published values, and the nearest of them for every float. */
#include <math.h>

#include "memscale/optimizer.h"
#include "techniques/quantize8.h"
#include "test_common.h"

static void maps_are_the_published_ones(void **state)
{
    (void)state;
    const float *with_sign = ms_adamw_map(true);
    const float *without = ms_adamw_map(false);
    for (int i = 1; i < 256; i++) {
        assert_true(with_sign[i] > with_sign[i - 1]);
        assert_true(without[i] > without[i - 1]);
    }
    assert_true(with_sign[255] == 1.0f && without[255] == 1.0f);
    assert_true(with_sign[127] == 0.0f && without[0] == 0.0f);
    for (int i = 0; i < 127; i++) {
        assert_true(with_sign[i] == -with_sign[254 - i]);
    }
    /* The middles of the first and last part of the widest and the narrowest decade. */
    assert_true(fabs((double)with_sign[254] - (1.0 - 0.9 / 128)) < 1e-7);
    assert_true(fabs((double)with_sign[191] - (0.1 + 0.9 / 128)) < 1e-7);
    assert_true(fabs((double)with_sign[128] - 0.55e-6) < 1e-13);
    assert_true(fabs((double)without[254] - (1.0 - 0.9 / 256)) < 1e-7);
    assert_true(fabs((double)without[1] - 0.325e-6) < 1e-13);
}

/* Distance of the nearest value, by trying all. */
static double nearest(float x, const float *map)
{
    double best = INFINITY;
    for (int i = 0; i < 256; i++) {
        double distance = fabs((double)map[i] - (double)x);
        best = distance < best ? distance : best;
    }
    return best;
}

static void check_code(float x, bool is_signed)
{
    const float *map = ms_adamw_map(is_signed);
    float values[2] = {x, 1.0f};
    uint8_t codes[2];
    float absmax;
    ms_error err;
    assert_ms_ok(ms_adamw_quantize(values, 2, is_signed, codes, &absmax, &err), err);
    assert_true(absmax == 1.0f);
    assert_int_equal(codes[1], 255);
    if (!is_signed && x > 0.0f && x < map[1]) {
        assert_int_equal(codes[0], 1); /* positive stays positive */
        return;
    }
    double distance = fabs((double)map[codes[0]] - (double)x);
    /* A boundary is itself rounded to a float. */
    if (distance > nearest(x, map) + 3e-7 * fabs((double)x)) {
        fail_msg("%.9g became %.9g", (double)x, (double)map[codes[0]]);
    }
}

static void a_code_is_the_nearest_value(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const float *map = ms_adamw_map(is_signed);
        for (int i = 0; i < 256; i++) {
            check_code(map[i], is_signed);
            float middle = i < 255 ? (map[i] + map[i + 1]) * 0.5f : 1.0f;
            check_code(middle, is_signed);
            check_code(nextafterf(middle, -1.0f), is_signed);
            check_code(i < 255 ? nextafterf(middle, 1.0f) : middle, is_signed);
        }
        uint64_t seed = 3;
        for (int i = 0; i < 100000; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1;
            float x = ldexpf((float)(seed >> 40) * 0x1p-24f, -(int)(seed % 26));
            check_code(x, is_signed);
            if (is_signed) {
                check_code(-x, is_signed);
            }
        }
    }
}

static void no_bucket_holds_two_boundaries(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const ms__q8_table *table = ms__q8(is_signed);
        for (int i = 0; i + 1 < MS__Q8_BUCKETS; i++) {
            assert_true(table->rank[i + 1] - table->rank[i] <= 1);
        }
    }
}

static void values_come_back_within_the_maps_precision(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    float values[COUNT], back[COUNT], absmax[4];
    uint8_t codes[COUNT];
    ms_error err;
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)(i - 500) * 0.01f;
    }
    assert_ms_ok(ms_adamw_quantize(values, COUNT, true, codes, absmax, &err), err);
    assert_ms_ok(ms_adamw_dequantize(codes, absmax, COUNT, true, back, &err), err);
    for (int i = 0; i < COUNT; i++) {
        assert_true(fabs((double)values[i] - (double)back[i]) <= 0.008 * (double)absmax[i / 256]);
        assert_true(values[i] != 0.0f || back[i] == 0.0f);
    }
    assert_true(absmax[0] == 5.0f && absmax[3] == values[COUNT - 1]);
    memset(values, 0, sizeof values);
    assert_ms_ok(ms_adamw_quantize(values, COUNT, false, codes, absmax, &err), err);
    assert_true(absmax[0] == 0.0f && codes[0] == 0);
    values[3] = NAN;
    assert_ms_ok(ms_adamw_quantize(values, COUNT, true, codes, absmax, &err), err);
    assert_true(isnan(absmax[0]) && absmax[1] == 0.0f);
}

static void small_tensors_keep_their_floats(void **state)
{
    (void)state;
    ms_error err;
    ms_adamw_moments moments;
    assert_ms_ok(ms_adamw_choose_moments(4095, 8, &moments, &err), err);
    assert_int_equal(moments, MS_ADAMW_MOMENTS_FP32);
    assert_ms_ok(ms_adamw_choose_moments(4096, 8, &moments, &err), err);
    assert_int_equal(moments, MS_ADAMW_MOMENTS_8BIT);
    assert_ms_ok(ms_adamw_choose_moments(1u << 30, 32, &moments, &err), err);
    assert_int_equal(moments, MS_ADAMW_MOMENTS_FP32);
    assert_ms_fails(ms_adamw_choose_moments(1, 4, &moments, &err), MS_EINVAL, err, "8 and 32");
    assert_int_equal(ms_adamw_state_bytes(4095, 8, false), 2 * 4 * 4095);
    assert_int_equal(ms_adamw_state_bytes(4097, 8, false), 2 * (4097 + 4 * 17));
    assert_int_equal(ms_adamw_state_bytes(4097, 32, true), (2 * 4 + 2) * 4097);
    assert_ms_fails(ms_adamw_quantize(NULL, 1, true, NULL, NULL, &err), MS_EINVAL, err, "array");
    assert_ms_fails(ms_adamw_dequantize(NULL, NULL, 1, true, NULL, &err), MS_EINVAL, err, "array");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_are_the_published_ones),     cmocka_unit_test(a_code_is_the_nearest_value),
        cmocka_unit_test(no_bucket_holds_two_boundaries),  cmocka_unit_test(values_come_back_within_the_maps_precision),
        cmocka_unit_test(small_tensors_keep_their_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
