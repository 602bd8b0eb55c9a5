/* The workspace of convolutions, against peaks measured in torch's allocator. */
#include "test_common.h"
#include "trace/workspace.h"

typedef struct measured {
    const char *what;
    uint32_t item;            /* bytes of an element */
    uint32_t rank;
    uint64_t input[5], weight[5], output[5];
    uint64_t forward, backward; /* measured, in kB */
} measured;

static const measured table[] = {
    {"3x3, 64 to 32", 4, 4, {4, 64, 192, 192}, {32, 64, 3, 3}, {4, 32, 192, 192}, 37700, 56600},
    {"3x3, 32 to 64", 4, 4, {4, 32, 192, 192}, {64, 32, 3, 3}, {4, 64, 192, 192}, 37700, 56600},
    {"3x3, 64 to 64", 4, 4, {4, 64, 128, 128}, {64, 64, 3, 3}, {4, 64, 128, 128}, 16800, 33600},
    {"7x7, stride 2", 4, 4, {8, 3, 224, 224}, {64, 3, 7, 7}, {8, 64, 112, 112}, 25700, 32500},
    {"1x1", 4, 4, {8, 256, 56, 56}, {64, 256, 1, 1}, {8, 64, 56, 56}, 25700, 32100},
    {"depthwise", 4, 4, {8, 128, 56, 56}, {128, 1, 3, 3}, {8, 128, 56, 56}, 12800, 25700},
    {"large weight", 4, 4, {2, 512, 28, 28}, {512, 512, 3, 3}, {2, 512, 28, 28}, 12600, 9400},
    {"bf16", 2, 4, {4, 64, 192, 192}, {32, 64, 3, 3}, {4, 32, 192, 192}, 18900, 37700},
    {"3 dimensions, bf16", 2, 5, {2, 16, 32, 64, 64}, {16, 16, 3, 3, 3}, {2, 16, 32, 64, 64}, 8400, 25300},
    {"fp64", 8, 4, {4, 64, 192, 192}, {32, 64, 3, 3}, {4, 32, 192, 192}, 679500, 679500},
    {"one dimension", 4, 3, {8, 64, 20000}, {64, 64, 5}, {8, 64, 20000}, 40960, 122880},
    {"3x3, stride 2", 4, 4, {4, 32, 192, 192}, {64, 32, 3, 3}, {4, 64, 96, 96}, 18830, 37600},
    {"7x7, fp64", 8, 4, {4, 32, 96, 96}, {32, 32, 7, 7}, {4, 32, 96, 96}, 462300, 462300},
    {"4 groups, fp64", 8, 4, {4, 64, 128, 128}, {64, 16, 3, 3}, {4, 64, 128, 128}, 92100, 92100},
    {"transposed, fp64", 8, 4, {4, 64, 96, 96}, {64, 32, 2, 2}, {4, 32, 192, 192}, 37600, 37600},
    {"3 dimensions, fp64", 8, 5, {2, 16, 32, 64, 64}, {16, 16, 3, 3, 3}, {2, 16, 32, 64, 64}, 905800, 905800},
    {"one small volume", 4, 5, {1, 8, 48, 48, 48}, {8, 8, 3, 3, 3}, {1, 8, 48, 48, 48}, 95500, 95500},
    {"one small volume, more channels",
     4,
     5,
     {1, 32, 24, 24, 24},
     {16, 32, 3, 3, 3},
     {1, 16, 24, 24, 24},
     47700,
     47600},
    {"transposed", 4, 4, {4, 64, 96, 96}, {64, 32, 2, 2}, {4, 32, 192, 192}, 37750, 28300},
};

static ms_operand operand_of(const measured *row, const uint64_t *size)
{
    ms_operand operand = {.rank = row->rank, .bytes = row->item};
    for (uint32_t i = 0; i < row->rank; i++) {
        operand.size[i] = size[i];
        operand.bytes *= size[i];
    }
    return operand;
}

/* At least the measured bytes, except for a few channels of padding, and not far more. */
static void assert_covers(const char *what, uint64_t bytes, uint64_t measured_kb)
{
    if (bytes < measured_kb * 930 || bytes > measured_kb * 1720 + 60000) {
        fail_msg("%s: %llu bytes for %llu kB", what, (unsigned long long)bytes, (unsigned long long)measured_kb);
    }
}

static void figures_cover_what_was_measured(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const measured *row = &table[i];
        ms_operand x = operand_of(row, row->input), w = operand_of(row, row->weight), y = operand_of(row, row->output);
        ms_operand forward[] = {x, w}, backward[] = {y, x, w};
        assert_covers(row->what, ms__workspace_bytes("aten.convolution.default", forward, 2, &y, 1, 0), row->forward);
        assert_covers(row->what, ms__workspace_bytes("aten.convolution_backward.default", backward, 3, &x, 1, 0),
                      row->backward);
    }
}

/* Measured on a CPU whose oneDNN has no 16-bit kernels: the batch is unfolded (bytes, torch 2.13's allocator), and
 * backward takes more beside that allocator (kB, resident memory on two threads; 0: not measured). */
static void images_of_halves_are_unfolded(void **state)
{
    (void)state;
    static const struct {
        uint64_t input[4], weight[4], output[4], unfolded, backward_kb;
    } rows[] = {
        {{2, 64, 32, 32}, {64, 64, 3, 3}, {2, 64, 32, 32}, 2359296, 0},
        {{2, 64, 32, 32}, {64, 64, 7, 7}, {2, 64, 32, 32}, 12845056, 0},
        {{2, 64, 32, 32}, {32, 64, 1, 1}, {2, 32, 16, 16}, 65536, 0},
        {{2, 32, 32, 32}, {64, 32, 3, 3}, {2, 64, 16, 16}, 294912, 0},
        {{2, 64, 16, 16}, {64, 32, 2, 2}, {2, 32, 32, 32}, 131072, 0}, /* transposed */
        {{6, 128, 48, 48}, {64, 128, 3, 3}, {6, 64, 48, 48}, 31850496, 47800},
        {{6, 64, 48, 48}, {128, 64, 3, 3}, {6, 128, 48, 48}, 15925248, 23900},
        {{3, 128, 48, 48}, {64, 128, 3, 3}, {3, 64, 48, 48}, 15925248, 31900},
        {{6, 128, 48, 48}, {64, 128, 1, 1}, {6, 64, 48, 48}, 0, 3408}, /* libc maps each block: no freed one serves */
    };
    const measured half = {.item = 2, .rank = 4};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ms_operand x = operand_of(&half, rows[i].input), w = operand_of(&half, rows[i].weight);
        ms_operand y = operand_of(&half, rows[i].output), forward[] = {x, w}, backward[] = {y, x, w};
        uint32_t unfolds = MS_WORKSPACE_UNFOLDS;
        assert_int_equal(ms_workspace_bytes("convolution", forward, 2, &y, 1, unfolds), rows[i].unfolded);
        assert_int_equal(ms_workspace_bytes("convolution", forward, 2, &y, 1, unfolds | 1), rows[i].unfolded + x.bytes);
        uint64_t taken = ms_workspace_bytes("convolution_backward", backward, 3, &x, 1, unfolds);
        assert_int_equal(taken, rows[i].unfolded);
        if (rows[i].backward_kb > 0) {
            taken += ms__libc_buffers("convolution_backward", backward, 3, &x, 1, unfolds, 2);
            assert_covers("backward", taken, rows[i].backward_kb);
        }
    }
}

/* The blocks that torch 2.13 takes from malloc(): an image's columns as they are, and in fp32. */
static void products_of_unfolded_images_take_buffers_from_libc(void **state)
{
    (void)state;
    static const struct {
        uint64_t rank, input[5], weight[5], output[5];
        uint32_t threads;
        uint64_t forward, backward;
    } rows[] = {
        {4, {6, 64, 48, 48}, {64, 64, 3, 3}, {6, 64, 48, 48}, 2, 0, 2 * (2654208 + 5308416)},
        {4, {6, 64, 48, 48}, {64, 64, 3, 3}, {6, 64, 48, 48}, 1, 0, 2654208 + 5308416},
        {4, {1, 64, 48, 48}, {64, 64, 3, 3}, {1, 64, 48, 48}, 2, 0, 2654208 + 5308416},
        {3, {6, 64, 2304}, {64, 64, 9}, {6, 64, 2304}, 2, 0, 2 * (2654208 + 5308416)},
        {4, {6, 64, 96, 96}, {64, 32, 3, 3}, {6, 64, 96, 96}, 2, 0, 2 * (5308416 + 10616832)}, /* groups */
        {4, {6, 256, 96, 96}, {64, 256, 1, 1}, {6, 64, 96, 96}, 2, 0, 2 * (4718592 + 9437184)},
        {4, {6, 64, 48, 48}, {64, 64, 3, 3}, {6, 64, 95, 95}, 2, 2 * 5308416, 0}, /* transposed */
        {5, {6, 16, 16, 16, 16}, {64, 16, 3, 3, 3}, {6, 64, 16, 16, 16}, 2, 0, 7077888},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const measured half = {.item = 2, .rank = (uint32_t)rows[i].rank};
        ms_operand x = operand_of(&half, rows[i].input), w = operand_of(&half, rows[i].weight);
        ms_operand y = operand_of(&half, rows[i].output), forward[] = {x, w}, backward[] = {y, x, w};
        uint32_t unfolds = MS_WORKSPACE_UNFOLDS, threads = rows[i].threads;
        assert_int_equal(ms__libc_buffers("convolution", forward, 2, &y, 1, unfolds, threads), rows[i].forward);
        assert_int_equal(ms__libc_buffers("convolution_backward", backward, 3, &x, 1, unfolds, threads),
                         rows[i].backward);
        assert_int_equal(ms__libc_buffers("convolution_backward", backward, 3, &x, 1, 0, threads), 0);
    }
    ms_operand rows_of = {2, {64, 64}, 8192}, pair[] = {rows_of, rows_of};
    assert_int_equal(ms__libc_buffers("aten.mm.default", pair, 2, &rows_of, 1, MS_WORKSPACE_UNFOLDS, 2), 0);
}

/* ConvNeXt's depthwise filters, measured with channels_last images: a small model passed its budget by 9 MB. */
static void a_grouped_filter_is_padded_in_channels_last(void **state)
{
    (void)state;
    ms_operand x = {4, {8, 256, 2, 2}, 32768}, weight = {4, {256, 1, 7, 7}, 50176}, narrow = {4, {256, 1, 3, 3}, 9216};
    ms_operand pairs = {4, {512, 1, 3, 3}, 18432};
    const ms_operand depthwise[] = {x, x, weight}, small[] = {x, x, narrow}, twice[] = {x, x, pairs};
    const char *name = "aten.convolution_backward.default";
    uint32_t last = MS_WORKSPACE_CHANNELS_LAST;
    assert_int_equal(ms_workspace_bytes(name, depthwise, 3, &x, 1, last), 12845056);
    assert_int_equal(ms_workspace_bytes(name, depthwise, 3, &x, 1, last | 1), 12845056 + x.bytes);
    assert_int_equal(ms_workspace_bytes(name, small, 3, &x, 1, last | 1), 0);
    assert_int_equal(ms_workspace_bytes(name, twice, 3, &x, 1, last), 2359296);
}

/* Of ResNet-50's and ViT's step with 32 pictures in BF16, the convolutions that take most: an H200 took 83 and 77 MB, the
 * second with the reserve of src/device/cuda.c. */
static void a_gpu_rewrites_images_for_its_kernels(void **state)
{
    (void)state;
    const uint64_t MB = 1000000;
    ms_operand x = {4, {32, 256, 56, 56}, 51380224}, w = {4, {128, 256, 1, 1}, 65536},
               y = {4, {32, 128, 56, 56}, 25690112};
    ms_operand picture = {4, {32, 3, 224, 224}, 9633792}, patches = {4, {768, 3, 16, 16}, 1179648};
    ms_operand tokens = {4, {32, 768, 14, 14}, 9633792};
    const ms_operand forward[] = {x, w}, backward[] = {tokens, picture, patches};
    const char *name = "aten.convolution.default", *back = "aten.convolution_backward.default";
    uint64_t resnet = ms_workspace_bytes(name, forward, 2, &y, 1, MS_WORKSPACE_GPU);
    uint64_t vit = ms_workspace_bytes(back, backward, 3, &patches, 1, MS_WORKSPACE_GPU);
    assert_int_equal(resnet, x.bytes + y.bytes + w.bytes);
    assert_in_range(resnet, 75 * MB, 83 * MB);
    assert_int_equal(vit, picture.bytes / 3 * 8 + tokens.bytes + patches.bytes / 3 * 8);
    uint32_t last = MS_WORKSPACE_GPU | MS_WORKSPACE_CHANNELS_LAST;
    assert_int_equal(ms_workspace_bytes(name, forward, 2, &y, 1, last), 0);
    assert_int_equal(ms_workspace_bytes(back, backward, 3, &patches, 1, last), vit - tokens.bytes);
    assert_int_equal(ms_workspace_bytes("aten.topk.default", &x, 1, &y, 1, MS_WORKSPACE_GPU), 0);
}

/* An expanded gradient, such as that of sum(), is written out first. */
static void copied_operands_are_added(void **state)
{
    (void)state;
    ms_operand x = operand_of(&table[0], table[0].input), w = operand_of(&table[0], table[0].weight);
    ms_operand y = operand_of(&table[0], table[0].output), backward[] = {y, x, w};
    uint64_t plain = ms_workspace_bytes("aten.convolution_backward.default", backward, 3, &x, 1, 0);
    assert_int_equal(plain, ms__workspace_bytes("convolution_backward", backward, 3, &x, 1, 0));
    assert_int_equal(ms_workspace_bytes("convolution_backward", backward, 3, &x, 1, 1), plain + y.bytes);
    assert_int_equal(ms_workspace_bytes("convolution_backward", backward, 3, &x, 1, 2), plain + x.bytes);
}

typedef struct recurrent_case {
    uint64_t batch, time, features, hidden;
    double forward_mb, backward_mb;
} recurrent_case;

static double taken_mb(const char *name, const ms_operand operands[3])
{
    uint64_t bytes = ms__workspace_bytes(name, operands, 3, operands, 1, 0);
    assert_int_equal(ms__libc_share_bytes(name, operands, 3), bytes < (uint64_t)64 << 20 ? bytes : (uint64_t)64 << 20);
    return (double)bytes / 1e6;
}

/* The bytes that oneDNN asked of posix_memalign() beyond results, on AVX2 with two threads. The few that a bound is short
 * of are a plan's reserve. */
static void recurrent_layers_take_memory_of_onednn(void **state)
{
    (void)state;
    static const recurrent_case cases[] = {
        {16, 128, 512, 512, 27.5, 45.1}, {8, 256, 1024, 1024, 71.2, 121.1}, {32, 128, 128, 128, 9.2, 11.2},
        {4, 512, 256, 768, 41.9, 61.8},  {64, 64, 256, 256, 19.2, 25.6},    {2, 100, 300, 2048, 83.7, 177.0},
        {1, 1000, 512, 512, 18.9, 33.2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const recurrent_case *c = &cases[i];
        uint64_t gates = 4 * c->hidden, rows = c->batch * c->time;
        ms_operand x = {3, {c->time, c->batch, c->features}, rows * c->features * 4};
        ms_operand of_x = {2, {gates, c->features}, gates * c->features * 4};
        ms_operand of_hidden = {2, {gates, c->hidden}, gates * c->hidden * 4};
        ms_operand operands[] = {x, of_x, of_hidden};
        double forward = taken_mb("aten.mkldnn_rnn_layer.default", operands);
        double backward = taken_mb("aten.mkldnn_rnn_layer_backward.default", operands);
        assert_true(forward > c->forward_mb - 2 && forward < 1.2 * c->forward_mb);
        assert_true(backward > c->backward_mb - 2 && backward < 1.4 * c->backward_mb);
    }
}

static void the_table_names_what_takes_memory(void **state)
{
    (void)state;
    ms_operand rows = {.rank = 2, .size = {100, 100}, .bytes = 40000}, twice[] = {rows, rows};
    assert_true(ms_operator_takes_workspace("aten.convolution.default"));
    assert_true(ms_operator_takes_workspace("aten.mkldnn_rnn_layer_backward.default"));
    assert_false(ms_operator_takes_workspace("aten.mm.default"));
    uint64_t one = ms__workspace_bytes("aten.mkldnn_rnn_layer_backward.default", twice, 1, &rows, 1, 0);
    assert_int_equal(one, 20000);
    assert_int_equal(ms__workspace_bytes("aten.mkldnn_rnn_layer_backward.default", twice, 2, &rows, 1, 0), 2 * one);
    ms_operand line = {.rank = 1, .size = {10000}, .bytes = 40000}, wide = {.rank = 1, .size = {10000}, .bytes = 80000};
    assert_int_equal(ms__workspace_bytes("aten.topk.default", &rows, 1, &rows, 1, 0), 1600);
    assert_int_equal(ms__workspace_bytes("aten.topk.default", &line, 1, &rows, 1, 0), 160000);
    assert_int_equal(ms__workspace_bytes("aten.abs.default", &line, 1, &line, 1, 0), 0);
    assert_int_equal(ms__workspace_bytes("aten.abs.default", &wide, 1, &line, 1, 0), 80000); /* of complex numbers */
}

/* A sum of another type than its operand's converts it first. */
static void a_sum_of_another_type_takes_its_converted_operand(void **state)
{
    (void)state;
    ms_operand mask = {.rank = 2, .size = {100, 100}, .bytes = 10000};
    ms_operand rows = {.rank = 2, .size = {100, 100}, .bytes = 40000};
    assert_int_equal(ms__workspace_bytes("aten.cumsum.default", &mask, 1, &rows, 1, 0), 40000);
    assert_int_equal(ms__workspace_bytes("aten.cumsum.default", &rows, 1, &rows, 1, 0), 0);
}

/* A product of two types converts the operand that has not the result's. */
static void arithmetic_of_two_types_takes_the_converted_operand(void **state)
{
    (void)state;
    ms_operand half = {.rank = 2, .size = {100, 100}, .bytes = 20000};
    ms_operand single = {.rank = 2, .size = {100, 100}, .bytes = 40000};
    ms_operand whole = {.rank = 2, .size = {100, 100}, .bytes = 80000};
    ms_operand row = {.rank = 1, .size = {100}, .bytes = 100}, number = {.rank = 0, .bytes = 8};
    ms_operand mixed[] = {half, single}, masked[] = {single, row}, whole_pair[] = {whole, whole};
    ms_operand equal[] = {single, single}, scaled[] = {single, number};
    static const char *const names[] = {"aten.add.Tensor",      "aten.div.Tensor", "aten.maximum.default",
                                        "aten.minimum.default", "aten.mul.Tensor", "aten.pow.Tensor_Tensor",
                                        "aten.sub.Tensor"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(ms__workspace_bytes(names[i], mixed, 2, &single, 1, 0), 40000);
        assert_int_equal(ms__workspace_bytes(names[i], masked, 2, &single, 1, 0), 400);
        assert_int_equal(ms__workspace_bytes(names[i], whole_pair, 2, &single, 1, 0), 80000); /* integers, divided */
        assert_int_equal(ms__workspace_bytes(names[i], equal, 2, &single, 1, 0), 0);
        assert_int_equal(ms__workspace_bytes(names[i], scaled, 2, &single, 1, 0), 0);
    }
}

/* torch's to_sparse() of 2048 x 2048 floats without a zero took 167.6 MB, result included, and of doubles 201.3. */
static void a_sparse_tensor_takes_indices_and_values_of_every_element_twice(void **state)
{
    (void)state;
    ms_operand dense = {.rank = 2, .size = {2048, 2048}, .bytes = 16777216},
               row = {.rank = 1, .size = {10}, .bytes = 80};
    ms_operand wide = {.rank = 2, .size = {2048, 2048}, .bytes = 33554432}, empty = {.rank = 1};
    assert_int_equal(ms__workspace_bytes("aten._to_sparse.default", &dense, 1, &empty, 1, 0), 167772160);
    assert_int_equal(ms__workspace_bytes("aten._to_sparse.default", &wide, 1, &empty, 1, 0), 201326592);
    assert_int_equal(ms__workspace_bytes("aten._to_sparse.sparse_dim", &row, 1, NULL, 0, 0), 320);
}

static void operators_that_convert_are_told_from_others(void **state)
{
    (void)state;
    static const char *const converting[] = {"aten.add.Tensor", "aten.mul_.Tensor", "aten.gt.Tensor",
                                             "aten.pow.Scalar"};
    static const char *const others[] = {"aten.sort.default", "aten.abs.default", "aten.mm.default",
                                         "aten.convolution.default"};
    for (size_t i = 0; i < 4; i++) {
        assert_true(ms_operator_converts(converting[i]));
        assert_false(ms_operator_converts(others[i]));
    }
}

static void comparisons_of_two_types_take_the_larger_copy(void **state)
{
    (void)state;
    ms_operand single = {.rank = 2, .size = {100, 100}, .bytes = 40000},
               whole = {.rank = 1, .size = {100}, .bytes = 800};
    ms_operand truths = {.rank = 2, .size = {100, 100}, .bytes = 10000}, number = {.rank = 0, .bytes = 8};
    ms_operand mixed[] = {single, whole}, turned[] = {whole, single}, equal[] = {single, single};
    ms_operand scaled[] = {single, number};
    static const char *const names[] = {"aten.eq.Tensor", "aten.ge.Tensor", "aten.gt.Tensor",
                                        "aten.le.Tensor", "aten.lt.Tensor", "aten.ne.Tensor"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(ms__workspace_bytes(names[i], mixed, 2, &truths, 1, 0), 80000);
        assert_int_equal(ms__workspace_bytes(names[i], turned, 2, &truths, 1, 0), 80000);
        assert_int_equal(ms__workspace_bytes(names[i], equal, 2, &truths, 1, 0), 0);
        assert_int_equal(ms__workspace_bytes(names[i], scaled, 2, &truths, 1, 0), 0);
        assert_int_equal(ms__workspace_bytes(names[i], mixed, 1, &truths, 1, 0), 0);
    }
}

/* What is added to 16-bit numbers in place widens them, and the result. */
static void arithmetic_in_place_takes_the_converted_operands(void **state)
{
    (void)state;
    ms_operand half = {.rank = 2, .size = {100, 100}, .bytes = 20000};
    ms_operand single = {.rank = 2, .size = {100, 100}, .bytes = 40000}, number = {.rank = 0, .bytes = 8};
    ms_operand widened[] = {half, single}, narrowed[] = {single, half}, scaled[] = {half, number};
    static const char *const names[] = {"aten.add_.Tensor", "aten.div_.Tensor", "aten.mul_.Tensor", "aten.sub_.Tensor"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(ms__workspace_bytes(names[i], widened, 2, &half, 1, 0), 80000);
        assert_int_equal(ms__workspace_bytes(names[i], narrowed, 2, &single, 1, 0), 40000);
        assert_int_equal(ms__workspace_bytes(names[i], scaled, 2, &half, 1, 0), 0);
        assert_int_equal(ms__workspace_bytes(names[i], scaled, 1, &half, 1, 0), 0);
    }
}

/* Measured: 69.6 MB for the gradient of the first of two operands, 2.2 forward, 2.1 for the weight's. */
static void the_backward_of_a_bilinear_layer_takes_rows_times_weights(void **state)
{
    (void)state;
    ms_operand rows = {.rank = 2, .size = {16384, 32}, .bytes = 2097152};
    ms_operand gradient = {.rank = 2, .size = {16384, 24}, .bytes = 1572864};
    ms_operand weight = {.rank = 3, .size = {24, 32, 32}, .bytes = 98304};
    ms_operand forward[] = {rows, weight, rows}, backward[] = {gradient, weight, rows}, own[] = {rows, gradient, rows};
    const char *name = "aten._trilinear.default";
    assert_true(ms_operator_takes_workspace(name));
    assert_int_equal(ms__workspace_bytes(name, forward, 3, &gradient, 1, 0), 2 * 1572864);
    assert_int_equal(ms__workspace_bytes(name, backward, 3, &rows, 1, 0), 2 * 2097152 + 16384 * 1024 * 4);
    assert_int_equal(ms__workspace_bytes(name, own, 3, &weight, 1, 0), 2 * 98304);
    assert_int_equal(ms__workspace_bytes(name, own, 1, &weight, 1, 0), 0);
    weight.size[0] = 32; /* as many outputs as inputs: which of the two it is, can't be told */
    assert_int_equal(ms__workspace_bytes(name, (ms_operand[]){rows, weight, rows}, 3, &rows, 1, 0),
                     2 * 2097152 + 16384 * 1024 * 4);
}

/* A strided operand of a real transform is copied. */
static void a_transform_takes_the_copy_of_its_operand(void **state)
{
    (void)state;
    ms_operand rows = {.rank = 2, .size = {100, 100}, .bytes = 40000};
    assert_int_equal(ms_workspace_bytes("aten._fft_r2c.default", &rows, 1, &rows, 1, 0), 0);
    assert_int_equal(ms_workspace_bytes("aten._fft_r2c.default", &rows, 1, &rows, 1, 1), 40000);
}

/* bsearch() finds each row. */
static void the_table_is_sorted(void **state)
{
    (void)state;
    static const char *const names[] = {
        "_ctc_loss_backward", "_euclidean_dist", "_fft_r2c",          "_linalg_svd", "_unique2", "abs", "cumsum",
        "kthvalue",           "linalg_lstsq",    "linalg_matrix_exp", "unique_dim"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_true(ms_operator_takes_workspace(names[i]));
    }
}

static void other_operators_and_odd_operands_take_nothing(void **state)
{
    (void)state;
    ms_operand x = operand_of(&table[0], table[0].input), w = operand_of(&table[0], table[0].weight);
    ms_operand pair[] = {x, w}, flat = {.rank = 2, .size = {4, 4}, .bytes = 64}, flats[] = {flat, flat, flat};
    assert_int_equal(ms__workspace_bytes("aten.mm.default", pair, 2, &x, 1, 0), 0);
    assert_int_equal(ms__workspace_bytes("aten.convolution_overrideable.default", pair, 2, &x, 1, 0), 0);
    assert_int_equal(ms__workspace_bytes("aten.convolution.default", pair, 1, &x, 1, 0), 0);
    assert_int_equal(ms__workspace_bytes("aten.convolution.default", pair, 2, NULL, 0, 0), 0);
    assert_int_equal(ms__workspace_bytes("aten.convolution.default", flats, 2, &flat, 1, 0), 0);
    assert_int_equal(ms__workspace_bytes("aten.convolution_backward.default", flats, 3, &flat, 1, 0), 0);
    ms_operand huge = {.rank = 4, .size = {UINT64_MAX, 2, 2, 2}, .bytes = UINT64_MAX}, huges[] = {huge, huge};
    assert_true(ms__workspace_bytes("convolution", huges, 2, &huge, 1, 0) > 0);
    ms_operand none = {.rank = 4, .size = {0, 0, 0, 0}}, nones[] = {none, none, none};
    assert_int_equal(ms__workspace_bytes("convolution_backward", nones, 3, &none, 1, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_cover_what_was_measured),
        cmocka_unit_test(images_of_halves_are_unfolded),
        cmocka_unit_test(products_of_unfolded_images_take_buffers_from_libc),
        cmocka_unit_test(a_grouped_filter_is_padded_in_channels_last),
        cmocka_unit_test(a_gpu_rewrites_images_for_its_kernels),
        cmocka_unit_test(copied_operands_are_added),
        cmocka_unit_test(recurrent_layers_take_memory_of_onednn),
        cmocka_unit_test(the_table_names_what_takes_memory),
        cmocka_unit_test(a_sum_of_another_type_takes_its_converted_operand),
        cmocka_unit_test(arithmetic_of_two_types_takes_the_converted_operand),
        cmocka_unit_test(a_sparse_tensor_takes_indices_and_values_of_every_element_twice),
        cmocka_unit_test(operators_that_convert_are_told_from_others),
        cmocka_unit_test(comparisons_of_two_types_take_the_larger_copy),
        cmocka_unit_test(arithmetic_in_place_takes_the_converted_operands),
        cmocka_unit_test(the_backward_of_a_bilinear_layer_takes_rows_times_weights),
        cmocka_unit_test(a_transform_takes_the_copy_of_its_operand),
        cmocka_unit_test(the_table_is_sorted),
        cmocka_unit_test(other_operators_and_odd_operands_take_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
