/* The AdamW update: every instruction set and thread count gives the plain kernels' bits, at every
 * tail and offset; bad calls are refused before a byte is written. */
#include <errno.h>
#include <math.h>

#include "hardware/isa.h"
#include "kernels_fixture.h"
#include "memscale/optimizer.h"
#include "techniques/adamw.h"

enum { COUNT_MAX = 2100, SETS_MAX = 4 };

static const ms_adamw_group ordinary = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0};

static const ms__adamw_constants constants = {.decay = 0.999f,
                                              .sign = -1.0f,
                                              .lerp = 0.1f,
                                              .beta2 = 0.999f,
                                              .one_minus_beta2 = 0.001f,
                                              .root_scale = 3.1f,
                                              .eps = 1e-8f,
                                              .minus_step_size = -0.05f};

/* ---- data ------------------------------------------------------------------------ */

/* Ordinary numbers over many decades; sometimes zero, a denormal, inf or NaN. */
static void fill(float *values, size_t count, uint64_t seed, bool is_positive)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t r = next_random(&seed);
        float value = ldexpf((float)(r & 0xffffff) * 0x1p-24f + 0.5f, (int)(r >> 24) % 30 - 20);
        switch (next_random(&seed) % 97) {
        case 0:
            value = 0.0f;
            break;
        case 1:
            value = 1e-41f;
            break;
        case 2:
            value = INFINITY;
            break;
        case 3:
            value = NAN;
            break;
        default:
            break;
        }
        values[i] = r & 0x800000 && !is_positive ? -value : value;
    }
}

static void assert_same_floats(const float *a, const float *b, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t x, y;
        memcpy(&x, &a[i], 4);
        memcpy(&y, &b[i], 4);
        if (x != y && !(isnan(a[i]) && isnan(b[i]))) {
            fail_msg("%s: element %zu of %zu is %.9g instead of %.9g", what, i, count, (double)b[i], (double)a[i]);
        }
    }
}

static size_t sets_here(const ms__adamw_kernels **sets)
{
    size_t count = 0;
    uint32_t isa = ms__isa_detect();
    (void)isa;
#if defined(__x86_64__)
    if (isa & MS_ISA_AVX2) {
        sets[count++] = &ms__adamw_avx2;
    }
    if (isa & MS_ISA_AVX512F) {
        sets[count++] = &ms__adamw_avx512;
    }
#endif
#if defined(__aarch64__)
    sets[count++] = &ms__adamw_neon;
#endif
    return count;
}

/* ---- kernels against the plain ones ----------------------------------------------- */

typedef struct arrays {
    float p[COUNT_MAX], g[COUNT_MAX], m[COUNT_MAX], v[COUNT_MAX], peak[COUNT_MAX];
} arrays;

static void fill_arrays(arrays *a, uint64_t seed)
{
    fill(a->p, COUNT_MAX, seed, false);
    fill(a->g, COUNT_MAX, seed + 1, false);
    fill(a->m, COUNT_MAX, seed + 2, false);
    fill(a->v, COUNT_MAX, seed + 3, true);
    fill(a->peak, COUNT_MAX, seed + 4, true);
}

static const size_t tails[] = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257, 1024, 2049};
enum { TAILS = sizeof tails / sizeof tails[0] };

static void updates_have_the_bits_of_the_plain_kernel(void **state)
{
    (void)state;
    const ms__adamw_kernels *sets[SETS_MAX];
    static arrays expected, got;
    for (size_t s = 0, many = sets_here(sets); s < many; s++) {
        for (size_t i = 0; i < TAILS * 8; i++) {
            size_t count = tails[i / 8], shift = i % 8;
            ms__adamw_constants c = constants;
            c.lerp_from_gradient = i % 3 == 0;
            c.lerp = c.lerp_from_gradient ? -0.3f : 0.1f;
            fill_arrays(&expected, i);
            got = expected;
            float *peak = i % 2 ? expected.peak + shift : NULL;
            ms__adamw_plain.update(expected.p + shift, expected.g + shift, expected.m + shift, expected.v + shift, peak,
                                   count, &c);
            peak = i % 2 ? got.peak + shift : NULL;
            sets[s]->update(got.p + shift, got.g + shift, got.m + shift, got.v + shift, peak, count, &c);
            assert_same_floats(expected.p, got.p, COUNT_MAX, "parameter");
            assert_same_floats(expected.m, got.m, COUNT_MAX, "exp_avg");
            assert_same_floats(expected.v, got.v, COUNT_MAX, "exp_avg_sq");
            assert_same_floats(expected.peak, got.peak, COUNT_MAX, "max_exp_avg_sq");
        }
    }
}

static void conversions_have_the_bits_of_the_plain_kernel(void **state)
{
    (void)state;
    const ms__adamw_kernels *sets[SETS_MAX];
    static float values[COUNT_MAX], a[COUNT_MAX], b[COUNT_MAX];
    static uint16_t high_a[COUNT_MAX], high_b[COUNT_MAX];
    static int16_t low_a[COUNT_MAX], low_b[COUNT_MAX];
    for (size_t s = 0, many = sets_here(sets); s < many; s++) {
        for (size_t i = 0; i < TAILS; i++) {
            size_t count = tails[i];
            fill(values, COUNT_MAX, i, false);
            memset(high_a, 0, sizeof high_a);
            memset(high_b, 0, sizeof high_b);
            memset(low_a, 0, sizeof low_a);
            memset(low_b, 0, sizeof low_b);
            ms__adamw_plain.split_store(values, high_a, low_a, count);
            sets[s]->split_store(values, high_b, low_b, count);
            assert_memory_equal(high_a, high_b, sizeof high_a);
            assert_memory_equal(low_a, low_b, sizeof low_a);
            ms__adamw_plain.split_load(high_a, low_a, a, count);
            sets[s]->split_load(high_a, low_a, b, count);
            assert_same_floats(a, b, count, "split");
            ms__adamw_plain.bf16_store(values, high_a, count);
            sets[s]->bf16_store(values, high_b, count);
            assert_memory_equal(high_a, high_b, sizeof high_a);
            ms__adamw_plain.bf16_load(high_a, a, count);
            sets[s]->bf16_load(high_a, b, count);
            assert_same_floats(a, b, count, "bf16");
            memcpy(a, values, sizeof a);
            memcpy(b, values, sizeof b);
            high_a[count / 2] ^= 1;
            ms__adamw_plain.master_adopt(high_a, a, count);
            sets[s]->master_adopt(high_a, b, count);
            assert_same_floats(a, b, COUNT_MAX, "master");
            ms__adamw_plain.divide(a, count, 3.0f);
            sets[s]->divide(b, count, 3.0f);
            assert_same_floats(a, b, COUNT_MAX, "quotient");
        }
    }
}

static void codes_have_the_bits_of_the_plain_kernel(void **state)
{
    (void)state;
    const ms__adamw_kernels *sets[SETS_MAX];
    static float values[MS_ADAMW_BLOCK], a[MS_ADAMW_BLOCK], b[MS_ADAMW_BLOCK];
    uint8_t codes_a[MS_ADAMW_BLOCK] = {0}, codes_b[MS_ADAMW_BLOCK] = {0};
    for (size_t s = 0, many = sets_here(sets); s < many; s++) {
        for (size_t i = 0; i < 4000; i++) {
            bool is_signed = i % 2;
            size_t count = i % 3 ? MS_ADAMW_BLOCK : i % MS_ADAMW_BLOCK;
            fill(values, MS_ADAMW_BLOCK, i, !is_signed);
            for (size_t k = 0; i % 5 && k < count; k++) {
                values[k] = isfinite(values[k]) ? values[k] : 1.0f;
            }
            float most_a = ms__adamw_plain.quantize(values, ms__q8(is_signed), codes_a, count);
            float most_b = sets[s]->quantize(values, ms__q8(is_signed), codes_b, count);
            assert_same_floats(&most_a, &most_b, 1, "absmax");
            assert_memory_equal(codes_a, codes_b, sizeof codes_a);
            ms__adamw_plain.dequantize(codes_a, most_a, ms__q8(is_signed), a, count);
            sets[s]->dequantize(codes_a, most_a, ms__q8(is_signed), b, count);
            assert_same_floats(a, b, count, "value");
        }
    }
}

/* ---- the split and the master ------------------------------------------------------ */

/* A mask or a clamp sets weights to zero and leaves their low bits. */
static void a_weight_that_other_code_sets_to_zero_or_infinity_becomes_no_nan(void **state)
{
    (void)state;
    static const uint16_t high[] = {0x0000, 0x8000, 0x7f80, 0xff80};
    for (int32_t low = INT16_MIN; low <= INT16_MAX; low++) {
        for (size_t i = 0; i < sizeof high / sizeof high[0]; i++) {
            int16_t kept = (int16_t)low;
            float value;
            ms__adamw_plain.split_load(&high[i], &kept, &value, 1);
            assert_false(isnan(value));
            assert_true(i >= 2 || fabsf(value) < 1e-38f);
        }
    }
}

static void a_split_holds_every_float(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = next_random(&seed);
        float value, back;
        memcpy(&value, &bits, 4);
        uint16_t high;
        int16_t low;
        ms__adamw_plain.split_store(&value, &high, &low, 1);
        ms__adamw_plain.split_load(&high, &low, &back, 1);
        assert_same_floats(&value, &back, 1, "split and joined");
        /* The upper half alone is the nearest bf16 (its neighbours are not nearer). */
        float rounded;
        ms__adamw_plain.bf16_load(&high, &rounded, 1);
        if (isfinite(value) && isfinite(rounded)) {
            uint16_t even;
            float other;
            ms__adamw_plain.bf16_store(&value, &even, 1);
            ms__adamw_plain.bf16_load(&even, &other, 1);
            double off = fabs((double)rounded - (double)value);
            assert_true(off <= fabs((double)other - (double)value));
        }
    }
}

static void a_master_keeps_what_bf16_cannot_hold_and_adopts_what_others_wrote(void **state)
{
    (void)state;
    float master[3] = {1.0f, 1.001f, -2.5f};
    uint16_t bf16[3];
    ms__adamw_plain.bf16_store(master, bf16, 3);
    bf16[2] = 0x4040; /* 3.0 */
    ms__adamw_plain.master_adopt(bf16, master, 3);
    assert_true(master[0] == 1.0f && master[1] == 1.001f && master[2] == 3.0f);
}

/* ---- whole steps -------------------------------------------------------------------- */

/* Several tensors of one kind, one of them empty and one of several pieces. */
typedef struct model {
    ms_adamw_tensor tensors[4];
    char *memory;
    size_t bytes;
} model;

static const uint64_t sizes[] = {5, 0, 300001, 70000};
enum { TENSORS = 4 };

static void *take(char **next, uint64_t bytes)
{
    char *array = *next;
    *next += (bytes + 15) / 16 * 16;
    return array;
}

static void fill_tensor(ms_adamw_tensor *t, char **next, uint64_t count)
{
    const bool is_fp32 = t->weights == MS_ADAMW_FP32;
    const uint64_t item = is_fp32 ? 4 : 2;
    const uint64_t blocks = (count + MS_ADAMW_BLOCK - 1) / MS_ADAMW_BLOCK;
    t->count = count;
    t->step = 3;
    t->parameter = take(next, count * item);
    t->gradient = take(next, count * item);
    float *room = take(next, count * 4);
    if (is_fp32) {
        fill(t->parameter, count, count, false);
        fill(t->gradient, count, count + 1, false);
    } else {
        fill(room, count, count, false);
        ms__adamw_plain.bf16_store(room, t->parameter, count);
        fill(room, count, count + 1, false);
        ms__adamw_plain.bf16_store(room, t->gradient, count);
    }
    t->extra = take(next, count * 4);
    t->exp_avg = take(next, count * 4);
    t->exp_avg_sq = take(next, count * 4);
    t->exp_avg_absmax = take(next, blocks * 4);
    t->exp_avg_sq_absmax = take(next, blocks * 4);
}

static void make_model(model *of, ms_adamw_weights weights, ms_adamw_moments moments, bool amsgrad)
{
    of->bytes = 400000 * 40;
    of->memory = test_calloc(of->bytes, 1);
    char *next = of->memory;
    for (size_t i = 0; i < TENSORS; i++) {
        of->tensors[i] = (ms_adamw_tensor){.weights = weights, .moments = moments};
        fill_tensor(&of->tensors[i], &next, sizes[i]);
        of->tensors[i].max_exp_avg_sq = amsgrad ? take(&next, sizes[i] * 4) : NULL;
    }
    assert_true((size_t)(next - of->memory) <= of->bytes);
}

/* Maps all NaNs in results to one: their payload is unspecified. */
static void settle_floats(float *values, uint64_t count)
{
    for (uint64_t i = 0; values != NULL && i < count; i++) {
        values[i] = isnan(values[i]) ? NAN : values[i];
    }
}

static void settle(model *of)
{
    for (size_t i = 0; i < TENSORS; i++) {
        ms_adamw_tensor *t = &of->tensors[i];
        if (t->weights == MS_ADAMW_FP32) {
            settle_floats(t->parameter, t->count);
        } else if (t->weights == MS_ADAMW_BF16_MASTER) {
            settle_floats(t->extra, t->count);
        }
        settle_floats(t->max_exp_avg_sq, t->count);
        if (t->moments == MS_ADAMW_MOMENTS_FP32) {
            settle_floats(t->exp_avg, t->count);
            settle_floats(t->exp_avg_sq, t->count);
        }
    }
}

static void steps_are_the_same_with_any_number_of_threads(void **state)
{
    (void)state;
    ms_error err;
    for (int kind = 0; kind < MS_ADAMW_WEIGHTS_COUNT * MS_ADAMW_MOMENTS_COUNT; kind++) {
        ms_adamw_weights weights = kind / MS_ADAMW_MOMENTS_COUNT;
        ms_adamw_moments moments = kind % MS_ADAMW_MOMENTS_COUNT;
        model one, many;
        make_model(&one, weights, moments, moments == MS_ADAMW_MOMENTS_FP32);
        assert_ms_ok(ms_adamw_step(&ordinary, one.tensors, TENSORS, 1, &err), err);
        assert_ms_ok(ms_adamw_step(&ordinary, one.tensors, TENSORS, 1, &err), err);
        settle(&one);
        for (uint32_t threads = 0; threads <= 4; threads++) {
            make_model(&many, weights, moments, moments == MS_ADAMW_MOMENTS_FP32);
            assert_ms_ok(ms_adamw_step(&ordinary, many.tensors, TENSORS, threads, &err), err);
            assert_ms_ok(ms_adamw_step(&ordinary, many.tensors, TENSORS, threads, &err), err);
            settle(&many);
            assert_memory_equal(one.memory, many.memory, one.bytes);
            test_free(many.memory);
        }
        test_free(one.memory);
    }
}

/* The formula in double, for ordinary numbers. */
static void a_step_is_adamw(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static float p[COUNT], g[COUNT], m[COUNT], v[COUNT], before[COUNT];
    uint64_t seed = 11;
    for (size_t i = 0; i < COUNT; i++) {
        p[i] = before[i] = (float)(next_random(&seed) % 2000) * 1e-3f - 1.0f;
        g[i] = (float)(next_random(&seed) % 2000) * 1e-3f - 1.0f;
        m[i] = (float)(next_random(&seed) % 2000) * 1e-4f - 0.1f;
        v[i] = (float)(next_random(&seed) % 2000) * 1e-4f;
    }
    static float m0[COUNT], v0[COUNT];
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    ms_adamw_tensor t = {.count = COUNT, .step = 5, .parameter = p, .gradient = g, .exp_avg = m, .exp_avg_sq = v};
    ms_error err;
    assert_ms_ok(ms_adamw_step(&ordinary, &t, 1, 1, &err), err);
    for (size_t i = 0; i < COUNT; i++) {
        double first = 0.9 * (double)m0[i] + 0.1 * (double)g[i];
        double second = 0.999 * (double)v0[i] + 0.001 * (double)g[i] * (double)g[i];
        double root = sqrt(second / (1 - pow(0.999, 5))) + 1e-8;
        double update = 1e-2 / (1 - pow(0.9, 5)) * first / root;
        double expected = (double)before[i] * (1 - 1e-2 * 0.1) - update;
        assert_true(fabs((double)m[i] - first) <= 1e-7);
        assert_true(fabs((double)v[i] - second) <= 1e-7);
        assert_true(fabs((double)p[i] - expected) <= 3e-7 * (1 + fabs(expected)));
    }
}

static void a_scaled_gradient_is_divided_and_written_back(void **state)
{
    (void)state;
    float p[2] = {1, 2}, g[2] = {8, -16}, m[2] = {0}, v[2] = {0};
    float p_plain[2] = {1, 2}, g_plain[2] = {2, -4}, m_plain[2] = {0}, v_plain[2] = {0};
    ms_adamw_tensor t = {.count = 2, .step = 1, .parameter = p, .gradient = g, .exp_avg = m, .exp_avg_sq = v};
    ms_adamw_tensor plain = {
        .count = 2, .step = 1, .parameter = p_plain, .gradient = g_plain, .exp_avg = m_plain, .exp_avg_sq = v_plain};
    ms_adamw_group scaled = ordinary;
    scaled.grad_scale = 4.0;
    ms_error err;
    assert_ms_ok(ms_adamw_step(&scaled, &t, 1, 1, &err), err);
    assert_ms_ok(ms_adamw_step(&ordinary, &plain, 1, 1, &err), err);
    assert_memory_equal(p, p_plain, sizeof p);
    assert_memory_equal(g, g_plain, sizeof g);
    assert_memory_equal(v, v_plain, sizeof v);
}

/* ---- failures ------------------------------------------------------------------------ */

static void bad_calls_are_refused_before_anything_is_written(void **state)
{
    (void)state;
    ms_error err;
    float p[1] = {1}, g[1] = {1}, m[1] = {1}, v[1] = {1}, peak[1] = {1};
    const ms_adamw_tensor good = {.count = 1, .step = 1, .parameter = p, .gradient = g, .exp_avg = m, .exp_avg_sq = v};
    ms_adamw_tensor pair[2] = {good, good};
#define REFUSED(change, part) \
    do { \
        pair[1] = good; \
        change; \
        assert_ms_fails(ms_adamw_step(&ordinary, pair, 2, 1, &err), MS_EINVAL, err, part); \
        assert_true(p[0] == 1 && m[0] == 1 && v[0] == 1); \
    } while (0)
    REFUSED(pair[1].parameter = NULL, "tensor 1 lacks the parameter");
    REFUSED(pair[1].gradient = NULL, "tensor 1 lacks the parameter");
    REFUSED(pair[1].exp_avg = NULL, "tensor 1 lacks a moment");
    REFUSED(pair[1].exp_avg_sq = NULL, "tensor 1 lacks a moment");
    REFUSED(pair[1].step = 0, "steps count from 1");
    REFUSED(pair[1].weights = MS_ADAMW_BF16_SPLIT, "low bits");
    REFUSED(pair[1].weights = MS_ADAMW_WEIGHTS_COUNT, "unknown kind");
    REFUSED(pair[1].moments = MS_ADAMW_MOMENTS_COUNT, "unknown kind");
    REFUSED(pair[1].moments = MS_ADAMW_MOMENTS_8BIT, "scales of the blocks");
    REFUSED((pair[1].moments = MS_ADAMW_MOMENTS_8BIT, pair[1].exp_avg_absmax = peak, pair[1].exp_avg_sq_absmax = peak,
             pair[1].max_exp_avg_sq = peak),
            "amsgrad has no 8-bit form");
#undef REFUSED
    const double bad[] = {-1e-9, NAN};
    for (size_t i = 0; i < 2; i++) {
        ms_adamw_group group = ordinary;
        group.lr = bad[i];
        assert_ms_fails(ms_adamw_step(&group, &good, 1, 1, &err), MS_EINVAL, err, "lr");
        group = ordinary;
        group.weight_decay = bad[i];
        assert_ms_fails(ms_adamw_step(&group, &good, 1, 1, &err), MS_EINVAL, err, "weight_decay");
    }
    ms_adamw_group group = ordinary;
    group.beta2 = 1.0;
    assert_ms_fails(ms_adamw_step(&group, &good, 1, 1, &err), MS_EINVAL, err, "beta2");
    assert_true(p[0] == 1);
    ms_adamw_tensor huge = good;
    huge.count = UINT64_MAX / 2;
    assert_ms_fails(ms_adamw_step(&ordinary, &huge, 1, 1, &err), MS_EOVERFLOW, err, "tensor 0");
}

static void without_memory_nothing_is_written(void **state)
{
    (void)state;
    ms_error err;
    float p[1] = {1}, g[1] = {1}, m[1] = {1}, v[1] = {1};
    ms_adamw_tensor t = {.count = 1, .step = 1, .parameter = p, .gradient = g, .exp_avg = m, .exp_avg_sq = v};
    for (uint64_t nth = 1; nth <= 2; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        assert_ms_fails(ms_adamw_step(&ordinary, &t, 1, 1, &err), MS_ENOMEM, err, "1 tensors");
        assert_true(p[0] == 1 && m[0] == 1 && v[0] == 1);
    }
    ms_fault_disarm_all();
    assert_ms_ok(ms_adamw_step(&ordinary, &t, 1, 1, &err), err);
}

static void without_threads_the_caller_does_all_work(void **state)
{
    (void)state;
    ms_error err;
    model one, refused;
    make_model(&one, MS_ADAMW_FP32, MS_ADAMW_MOMENTS_FP32, false);
    assert_ms_ok(ms_adamw_step(&ordinary, one.tensors, TENSORS, 1, &err), err);
    settle(&one);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        make_model(&refused, MS_ADAMW_FP32, MS_ADAMW_MOMENTS_FP32, false);
        ms_fault_arm(MS_FAULT_THREAD, nth, EAGAIN);
        assert_ms_ok(ms_adamw_step(&ordinary, refused.tensors, TENSORS, 4, &err), err);
        assert_true(nth > 1 || ms_fault_passed(MS_FAULT_THREAD) == 1);
        ms_fault_disarm_all();
        settle(&refused);
        assert_memory_equal(one.memory, refused.memory, one.bytes);
        test_free(refused.memory);
    }
    test_free(one.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_have_the_bits_of_the_plain_kernel),
        cmocka_unit_test(conversions_have_the_bits_of_the_plain_kernel),
        cmocka_unit_test(codes_have_the_bits_of_the_plain_kernel),
        cmocka_unit_test(a_split_holds_every_float),
        cmocka_unit_test(a_weight_that_other_code_sets_to_zero_or_infinity_becomes_no_nan),
        cmocka_unit_test(a_master_keeps_what_bf16_cannot_hold_and_adopts_what_others_wrote),
        cmocka_unit_test_teardown(steps_are_the_same_with_any_number_of_threads, no_fault_left),
        cmocka_unit_test(a_step_is_adamw),
        cmocka_unit_test(a_scaled_gradient_is_divided_and_written_back),
        cmocka_unit_test_teardown(bad_calls_are_refused_before_anything_is_written, no_fault_left),
        cmocka_unit_test_teardown(without_memory_nothing_is_written, no_fault_left),
        cmocka_unit_test_teardown(without_threads_the_caller_does_all_work, no_fault_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
