/* The loss head in C: every instruction set gives the plain kernels' bits, the number of threads
 * changes none, the results are those of the formulas, and chunks are never short. */
#include <errno.h>
#include <math.h>

#include "hardware/isa.h"
#include "kernels_fixture.h"
#include "memscale/loss.h"
#include "techniques/loss.h"

enum { COUNT_MAX = 1100, SETS_MAX = 4 };

static float uniform(uint64_t *seed, float low, float high)
{
    return low + (high - low) * ((float)(next_random(seed) >> 8) * 0x1p-24f);
}

static void assert_same(const float *a, const float *b, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            fail_msg("%s: element %zu of %zu is %.9g instead of %.9g", what, i, count, (double)b[i], (double)a[i]);
        }
    }
}

static size_t sets_here(const ms__loss_kernels **sets)
{
    size_t count = 0;
    uint32_t isa = ms__isa_detect();
    (void)isa;
    sets[count++] = &ms__loss_plain;
#if defined(__x86_64__)
    if (isa & MS_ISA_AVX2) {
        sets[count++] = &ms__loss_avx2;
    }
    if (isa & MS_ISA_AVX512F) {
        sets[count++] = &ms__loss_avx512;
    }
#endif
#if defined(__aarch64__)
    sets[count++] = &ms__loss_neon;
#endif
    return count;
}

/* ---- kernels ---------------------------------------------------------------------- */

static void kernels_have_the_bits_of_the_plain_ones(void **state)
{
    (void)state;
    const ms__loss_kernels *sets[SETS_MAX];
    const size_t tails[] = {1, 3, 7, 8, 9, 15, 16, 17, 33, 255, 1025};
    static float values[COUNT_MAX], expected[COUNT_MAX], got[COUNT_MAX];
    uint64_t seed = 1;
    for (size_t s = 1, many = sets_here(sets); s < many; s++) {
        for (size_t i = 0; i < 11 * 9; i++) {
            size_t count = tails[i % 11], shift = i / 11;
            for (size_t k = 0; k < COUNT_MAX; k++) {
                values[k] = uniform(&seed, -120.0f, 5.0f);
            }
            values[shift + next_random(&seed) % count] = i % 4 == 0 ? -INFINITY : -104.0f;
            values[shift + next_random(&seed) % count] = i % 5 == 0 ? NAN : 0.0f;
            const float *from = values + shift;
            float a = sets[0]->largest(from, count), b = sets[s]->largest(from, count);
            assert_same(&a, &b, 1, "largest");
            memset(expected, 0, sizeof expected);
            memset(got, 0, sizeof got);
            sets[0]->exponentials(from, 1.5f, expected, count);
            sets[s]->exponentials(from, 1.5f, got, count);
            assert_same(expected, got, COUNT_MAX, "exponential");
            sets[0]->gradient(from, 1.5f, 2.5f, -0.3f, expected, count);
            sets[s]->gradient(from, 1.5f, 2.5f, -0.3f, got, count);
            assert_same(expected, got, COUNT_MAX, "gradient");
            sets[s]->gradient(from, 1.5f, 2.5f, -0.3f, values + shift, count);
            assert_same(expected, from, count, "gradient in place");
        }
    }
}

static double ulps(float value, double exact)
{
    float near = (float)exact;
    return fabs((double)value - exact) / (double)(nextafterf(fabsf(near), INFINITY) - fabsf(near));
}

static void exponential_and_logarithm_are_within_one_ulp(void **state)
{
    (void)state;
    uint64_t seed = 2;
    for (int i = 0; i < 300000; i++) {
        float x = uniform(&seed, -103.0f, 0.0f), result;
        ms__loss_plain.exponentials(&x, 0.0f, &result, 1);
        assert_true(ulps(result, exp((double)x)) <= 1.0);
        float y = ldexpf(uniform(&seed, 1.0f, 2.0f), i % 20);
        assert_true(ulps(ms__loss_log(y), log((double)y)) <= 1.0);
    }
    float edge[] = {-1000.0f, 101.0f, -INFINITY, NAN}, result[4];
    ms__loss_plain.exponentials(edge, 0.0f, result, 4);
    assert_true(result[0] == 0.0f && isinf(result[1]) && result[2] == 0.0f && isnan(result[3]));
    assert_true(ms__loss_log(1.0f) == 0.0f && isnan(ms__loss_log(NAN)));
}

static void the_largest_logit_is_found(void **state)
{
    (void)state;
    const float values[] = {-3.0f, -1.0f, -INFINITY, -2.0f};
    assert_true(ms__loss_plain.largest(values, 4) == -1.0f);
    const float mixed[] = {-3.0f, INFINITY, 7.0f};
    assert_true(ms__loss_plain.largest(mixed, 1) == -3.0f);
    assert_true(isinf(ms__loss_plain.largest(mixed, 3)));
    const float bad[] = {INFINITY, -NAN};
    assert_true(isnan(ms__loss_plain.largest(bad, 2)));
}

/* Lane by lane, then halves: an independent implementation. */
static void sums_run_in_lanes(void **state)
{
    (void)state;
    float values[61];
    uint64_t seed = 4;
    for (size_t i = 0; i < 61; i++) {
        values[i] = uniform(&seed, 0.0f, 1.0f);
    }
    for (uint32_t lanes = 8; lanes <= 16; lanes += 8) {
        float lane_sums[16] = {0};
        for (size_t i = 0; i < 61; i++) {
            lane_sums[i % lanes] += values[i];
        }
        float expected[16];
        memcpy(expected, lane_sums, sizeof expected);
        for (uint32_t n = lanes; n > 1; n /= 2) {
            for (uint32_t k = 0; k < n / 2; k++) {
                expected[k] = expected[k] + expected[k + n / 2];
            }
        }
        float running[16] = {0};
        ms__loss_add_lanes(running, lanes, values, 32);
        ms__loss_add_lanes(running, lanes, values + 32, 29);
        float sum = ms__loss_fold_lanes(running, lanes);
        assert_same(expected, &sum, 1, "sum");
    }
}

/* ---- rows ------------------------------------------------------------------------- */

enum { ROWS = 37, VOCABULARY = 20011 };

typedef struct head {
    float *logits, *gradient;
    float largest[ROWS], log_sum[ROWS], picked[ROWS], by_picked[ROWS];
    int64_t classes[ROWS];
    ms_loss_rows rows;
} head;

static void make_head(head *h, uint32_t lanes)
{
    uint64_t seed = 5;
    h->logits = test_malloc(sizeof(float) * ROWS * VOCABULARY);
    h->gradient = test_malloc(sizeof(float) * ROWS * VOCABULARY);
    for (size_t i = 0; i < (size_t)ROWS * VOCABULARY; i++) {
        h->logits[i] = uniform(&seed, -9.0f, 9.0f);
    }
    for (size_t i = 0; i < ROWS; i++) {
        h->classes[i] = next_random(&seed) % VOCABULARY;
        h->by_picked[i] = i % 5 == 0 ? 0.0f : uniform(&seed, -1.0f, 1.0f);
    }
    h->rows = (ms_loss_rows){.logits = h->logits,
                             .rows = ROWS,
                             .vocabulary = VOCABULARY,
                             .classes = h->classes,
                             .largest = h->largest,
                             .log_sum = h->log_sum,
                             .lanes = lanes};
}

static void free_head(head *h)
{
    test_free(h->logits);
    test_free(h->gradient);
}

static void losses_and_gradients_are_those_of_the_formula(void **state)
{
    (void)state;
    ms_error err;
    head h;
    make_head(&h, 16);
    assert_ms_ok(ms_loss_forward(&h.rows, h.picked, 1, &err), err);
    assert_ms_ok(ms_loss_backward(&h.rows, h.by_picked, h.gradient, 1, &err), err);
    for (size_t i = 0; i < ROWS; i++) {
        const float *row = h.logits + i * VOCABULARY;
        double sum = 0;
        for (size_t k = 0; k < VOCABULARY; k++) {
            sum += exp((double)row[k]);
        }
        double expected = (double)row[h.classes[i]] - log(sum);
        assert_true(fabs((double)h.picked[i] - expected) < 1e-5);
        for (size_t k = 0; k < VOCABULARY; k += 7) {
            double by = (int64_t)k == h.classes[i] ? (double)h.by_picked[i] : 0.0;
            double exact = by - exp((double)row[k]) / sum * (double)h.by_picked[i];
            assert_true(fabs((double)h.gradient[i * VOCABULARY + k] - exact) < 1e-6);
        }
    }
    free_head(&h);
}

static void threads_and_offsets_change_no_bit(void **state)
{
    (void)state;
    ms_error err;
    for (uint32_t lanes = 8; lanes <= 16; lanes += 8) {
        head one, other;
        make_head(&one, lanes);
        assert_ms_ok(ms_loss_forward(&one.rows, one.picked, 1, &err), err);
        assert_ms_ok(ms_loss_backward(&one.rows, one.by_picked, one.gradient, 1, &err), err);
        for (uint32_t threads = 0; threads <= 4; threads++) {
            make_head(&other, lanes);
            ms_fault_arm(MS_FAULT_THREAD, threads == 4 ? 2 : 0, EAGAIN);
            assert_ms_ok(ms_loss_forward(&other.rows, other.picked, threads, &err), err);
            assert_same(one.picked, other.picked, ROWS, "picked");
            assert_ms_ok(ms_loss_backward(&other.rows, other.by_picked, other.logits, threads, &err), err);
            assert_same(one.gradient, other.logits, (size_t)ROWS * VOCABULARY, "in place");
            ms_fault_disarm_all();
            free_head(&other);
        }
        free_head(&one);
    }
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    ms_error err;
    head h;
    make_head(&h, 16);
    h.picked[0] = 5.0f;
    ms_loss_rows bad = h.rows;
    bad.lanes = 4;
    assert_ms_fails(ms_loss_forward(&bad, h.picked, 1, &err), MS_ENOTSUP, err, "4 lanes");
    bad = h.rows;
    bad.vocabulary = 15;
    assert_ms_fails(ms_loss_forward(&bad, h.picked, 1, &err), MS_ENOTSUP, err, "15 classes");
    bad = h.rows;
    bad.log_sum = NULL;
    assert_ms_fails(ms_loss_forward(&bad, h.picked, 1, &err), MS_EINVAL, err, "missing");
    assert_ms_fails(ms_loss_forward(&h.rows, NULL, 1, &err), MS_EINVAL, err, "missing");
    assert_ms_fails(ms_loss_backward(&h.rows, NULL, h.gradient, 1, &err), MS_EINVAL, err, "missing");
    h.classes[3] = VOCABULARY;
    assert_ms_fails(ms_loss_forward(&h.rows, h.picked, 1, &err), MS_EINVAL, err, "row 3");
    h.classes[3] = -1;
    assert_ms_fails(ms_loss_backward(&h.rows, h.by_picked, h.gradient, 1, &err), MS_EINVAL, err, "class -1 of row 3");
    assert_true(h.picked[0] == 5.0f);
    bad = (ms_loss_rows){.vocabulary = 100, .lanes = 8};
    assert_ms_ok(ms_loss_forward(&bad, NULL, 1, &err), err);
    assert_ms_ok(ms_loss_backward(&bad, NULL, NULL, 1, &err), err);
    free_head(&h);
}

static void only_known_capabilities_are_supported(void **state)
{
    (void)state;
    assert_int_equal(ms_loss_lanes("AVX512", 16), 16);
    assert_int_equal(ms_loss_lanes("AVX512", 15), 0);
    assert_int_equal(ms_loss_lanes("AVX2", 8), 8);
    assert_int_equal(ms_loss_lanes("DEFAULT", 1000), 0);
}

/* ---- chunks ----------------------------------------------------------------------- */

static void chunks_are_small_and_never_short(void **state)
{
    (void)state;
    const uint64_t vocabularies[] = {1, 7, 1000, 50257, 128256, 20000000};
    for (size_t v = 0; v < sizeof vocabularies / sizeof vocabularies[0]; v++) {
        for (uint64_t tokens = 1; tokens < 3000; tokens += tokens < 300 ? 1 : 37) {
            for (uint32_t threads = 1; threads <= 64; threads *= 4) {
                uint64_t rows = ms_loss_chunk_rows(tokens, vocabularies[v], 4, threads);
                uint64_t least = threads > 2 ? threads : 2;
                assert_true(rows >= 1 && rows <= tokens);
                assert_true(rows == tokens || rows >= least);
                uint64_t last = tokens % rows;
                assert_true(rows == tokens || last == 0 || last >= least);
                /* Larger than the size only if the shortest chunk needs it (a few rows more if
                 * several sizes in a row leave one row over). */
                uint64_t room = (24 << 20) / (vocabularies[v] * 4);
                assert_true(rows <= (room > least ? room : least) + least + 10);
            }
        }
    }
    assert_int_equal(ms_loss_chunk_rows(0, 0, 0, 0), 1);
    assert_int_equal(ms_loss_chunk_rows(10, UINT64_MAX, 8, 0), 2);
    assert_int_equal(ms_loss_chunk_rows(10, 0, 4, 1), 10);
}

static void chunks_on_a_gpu_keep_rows_aligned(void **state)
{
    (void)state;
    const uint64_t vocabularies[] = {1, 7, 50257, 128256, 20000000};
    for (size_t v = 0; v < sizeof vocabularies / sizeof vocabularies[0]; v++) {
        for (uint64_t tokens = 1; tokens < 3000; tokens += tokens < 300 ? 1 : 37) {
            uint64_t rows = ms_loss_device_chunk_rows(tokens, vocabularies[v], 2, 16);
            assert_true(rows == tokens || (rows % 8 == 0 && rows >= 16 && rows < tokens));
            uint64_t last = tokens % rows;
            assert_true(last == 0 || last >= 16);
        }
    }
    assert_int_equal(ms_loss_device_chunk_rows(8192, 50257, 4, 1), 120); /* of 125 in 24 MiB */
    assert_int_equal(ms_loss_device_chunk_rows(0, 0, 0, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_on_a_gpu_keep_rows_aligned),
        cmocka_unit_test(kernels_have_the_bits_of_the_plain_ones),
        cmocka_unit_test(exponential_and_logarithm_are_within_one_ulp),
        cmocka_unit_test(the_largest_logit_is_found),
        cmocka_unit_test(sums_run_in_lanes),
        cmocka_unit_test(losses_and_gradients_are_those_of_the_formula),
        cmocka_unit_test_teardown(threads_and_offsets_change_no_bit, no_fault_left),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(only_known_capabilities_are_supported),
        cmocka_unit_test(chunks_are_small_and_never_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
