/*
 * Floating-point operations, random numbers and evaluations follow from an operator's name and the
 * shapes of its operands.
 */
#include "test_common.h"
#include "trace/draws.h"
#include "trace/evaluations.h"
#include "trace/flops.h"

static ms_operand shape(uint32_t rank, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t bytes = 4;
    ms_operand operand = {.rank = rank, .size = {a, b, c, d}};
    for (uint32_t i = 0; i < rank; i++) {
        bytes *= operand.size[i];
    }
    operand.bytes = bytes;
    return operand;
}

#define FLOPS(name, output, ...) \
    ms__flops(name, (ms_operand[]){__VA_ARGS__}, sizeof((ms_operand[]){__VA_ARGS__}) / sizeof(ms_operand), \
              (ms_operand[]){output}, 1)

static void floating_point_operations_follow_from_names_and_shapes(void **state)
{
    (void)state;
    ms_operand m = shape(2, 4, 8, 0, 0);
    ms_operand k = shape(2, 8, 3, 0, 0);
    ms_operand mk = shape(2, 4, 3, 0, 0);
    ms_operand bias = shape(1, 3, 0, 0, 0);
    assert_int_equal(FLOPS("aten.mm.default", mk, m, k), 2 * 4 * 8 * 3);
    assert_int_equal(FLOPS("aten.addmm.default", mk, bias, m, k), 2 * 4 * 8 * 3);
    assert_int_equal(FLOPS("aten::mm", mk, m, k), 0);
    assert_int_equal(FLOPS("mm", mk, m, k), 2 * 4 * 8 * 3);
    assert_int_equal(FLOPS("aten.mv.default", shape(1, 4, 0, 0, 0), m, shape(1, 8, 0, 0, 0)), 64);
    assert_int_equal(FLOPS("aten.bmm.default", shape(3, 5, 4, 3, 0), shape(3, 5, 4, 8, 0), shape(3, 5, 8, 3, 0)),
                     2 * 5 * 4 * 8 * 3);
    assert_int_equal(FLOPS("aten.add.Tensor", mk, mk, mk), 0);
    assert_int_equal(FLOPS("aten.mmm.default", mk, m, k), 0);
    assert_int_equal(FLOPS("aten.m.default", mk, m, k), 0);
    assert_int_equal(FLOPS("", mk, m, k), 0);

    ms_operand image = shape(4, 2, 6, 10, 10);
    ms_operand filter = shape(4, 9, 6, 3, 3);
    ms_operand half = shape(4, 2, 9, 5, 5);
    uint64_t once = 2 * 2 * 9 * 25 * 6 * 9;
    assert_int_equal(FLOPS("aten.convolution.default", half, image, filter, shape(1, 9, 0, 0, 0)), once);
    /* The gradients of input and weight cost a forward each, the bias's is a sum. */
    ms_operand gradients[] = {image, filter, shape(1, 9, 0, 0, 0)};
    ms_operand operands[] = {half, image, filter};
    assert_int_equal(ms__flops("aten.convolution_backward.default", operands, 3, gradients, 3), 2 * once);
    assert_int_equal(ms__flops("aten.convolution_backward.default", operands, 3, gradients + 1, 2), once);
    /* Transposed, (in, out, kernel): from the small image to the large one. */
    assert_int_equal(
        FLOPS("aten.convolution.default", shape(4, 2, 6, 10, 10), shape(4, 2, 9, 5, 5), shape(4, 9, 6, 3, 3)),
        2 * 2 * 9 * 25 * 6 * 9);

    ms_operand q = shape(4, 2, 3, 7, 8);
    ms_operand v = shape(4, 2, 3, 7, 8);
    uint64_t product = 2 * 2 * 3 * 7 * 7 * 8;
    assert_int_equal(FLOPS("aten._scaled_dot_product_flash_attention_for_cpu.default", q, q, q, v), 2 * product);
    assert_int_equal(FLOPS("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", q, q, q, q, v),
                     5 * product);
    assert_int_equal(FLOPS("aten._scaled_dot_product_flash_attention_for_cpu.default", q, q, q), 0);

    ms_operand sequence = shape(3, 5, 2, 8, 0);
    ms_operand w_ih = shape(2, 64, 8, 0, 0);
    ms_operand w_hh = shape(2, 64, 16, 0, 0);
    ms_operand gates = shape(1, 64, 0, 0, 0);
    ms_operand hidden = shape(2, 2, 16, 0, 0);
    uint64_t steps = 2 * 5 * 2 * (64 * 8 + 64 * 16);
    assert_int_equal(FLOPS("aten.mkldnn_rnn_layer.default", shape(3, 5, 2, 16, 0), sequence, w_ih, w_hh, gates, gates,
                           hidden, hidden),
                     steps);
    assert_int_equal(
        FLOPS("aten.mkldnn_rnn_layer_backward.default", sequence, sequence, w_ih, w_hh, gates, gates, hidden, hidden),
        2 * steps);
    /* Sizes that do not fit saturate. */
    ms_operand huge = shape(2, UINT64_MAX, 4, 0, 0);
    assert_true(FLOPS("mm", mk, huge, k) == UINT64_MAX);
}

static uint64_t draws(const char *name, ms_operand output)
{
    return ms__draws(name, &output, 1);
}

static void random_numbers_are_one_for_each_element_of_the_result(void **state)
{
    (void)state;
    ms_operand mask = shape(3, 4, 8, 3, 0);
    assert_int_equal(draws("aten.bernoulli_.float", mask), 96);
    assert_int_equal(draws("aten.native_dropout.default", mask), 96);
    assert_int_equal(draws("_fused_dropout", mask), 96);
    assert_int_equal(draws("aten.uniform_.default", mask), 96);
    assert_int_equal(draws("randn", shape(0, 0, 0, 0, 0)), 1);
    assert_int_equal(draws("aten.add.Tensor", mask), 0);
    assert_int_equal(draws("aten.norm.Scalar", mask), 0);
    assert_int_equal(draws("aten.normalize.default", mask), 0);
    assert_int_equal(draws("", mask), 0);
    assert_int_equal(ms__draws("aten.normal_.default", NULL, 0), 0);
}

#define EVALUATIONS(name, flops, output, ...) \
    ms__evaluations(name, (ms_operand[]){__VA_ARGS__}, sizeof((ms_operand[]){__VA_ARGS__}) / sizeof(ms_operand), \
                    (ms_operand[]){output}, 1, flops)

static void evaluations_follow_the_elements_made_or_the_products(void **state)
{
    (void)state;
    ms_operand x = shape(2, 100, 7, 0, 0);
    assert_true(EVALUATIONS("aten.gelu.default", 0, x, x) >= 700);
    assert_true(EVALUATIONS("aten.gelu_tanh.default", 0, x, x) > EVALUATIONS("aten.gelu.default", 0, x, x));
    assert_int_equal(EVALUATIONS("gelu", 0, x, x), EVALUATIONS("aten.gelu.default", 0, x, x));
    assert_int_equal(EVALUATIONS("aten.gelu.default", 0, shape(2, 200, 7, 0, 0), x),
                     2 * EVALUATIONS("aten.gelu.default", 0, x, x));
    /* Each entry of the table is found. */
    static const char *const some[] = {"_log_softmax",
                                       "_safe_softmax",
                                       "bmm",
                                       "max_pool2d_with_indices",
                                       "native_batch_norm",
                                       "native_layer_norm_backward",
                                       "upsample_nearest2d"};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        assert_true(EVALUATIONS(some[i], 1000, x, x) > 0);
    }
    assert_int_equal(EVALUATIONS("aten.add.Tensor", 0, x, x, x), 0);
    assert_int_equal(EVALUATIONS("aten.mm.default", 1000000, x, x, x), 0);
    assert_int_equal(ms__evaluations("aten.gelu.default", &x, 1, NULL, 0, 0), 0);
    /* Filters of one channel are no matrix product. */
    ms_operand image = shape(4, 2, 64, 8, 8), filters = shape(4, 64, 64, 3, 3), single = shape(4, 64, 1, 3, 3);
    uint64_t whole = EVALUATIONS("aten.convolution.default", 1000000, image, image, filters);
    uint64_t depthwise = EVALUATIONS("aten.convolution.default", 1000000, image, image, single);
    assert_true(whole > 0 && depthwise > whole);
    assert_true(EVALUATIONS("aten.convolution_backward.default", 1000000, image, image, image, single) > 2 * depthwise);
    assert_true(EVALUATIONS("aten.gelu.default", 0, shape(2, UINT64_MAX / 2, 2, 0, 0), x) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_follow_the_elements_made_or_the_products),
        cmocka_unit_test(random_numbers_are_one_for_each_element_of_the_result),
        cmocka_unit_test(floating_point_operations_follow_from_names_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
