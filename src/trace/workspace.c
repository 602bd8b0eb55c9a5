/*
 * The figures of workspace.h. Those of convolutions fit the measured peak of torch 2.13's allocator beyond operands and results, over
 * shapes, strides, groups and dilations (tests/c/trace/test_workspace.c has the figures). If kernels differ, the
 * larger workspace counts; the padding of narrow images to a few more channels is left out.
 */
#include "trace/workspace.h"

#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "trace/operand.h"

/* (input, weight) and the forward's output. */
typedef struct convolution {
    const ms_operand *input, *weight, *output;
} convolution;

static uint64_t item_bytes(const ms_operand *operand)
{
    uint64_t count = ms__operand_elements(operand);
    return count > 0 ? operand->bytes / count : 0;
}

static uint64_t larger_image(const convolution *c)
{
    return ms__max_u64(c->input->bytes, c->output->bytes);
}

static bool has_groups(const convolution *c)
{
    return c->weight->size[1] < c->input->size[1];
}

/* torch hands a single fp32 image to oneDNN only if it is larger than this, if the filter is wide or if there are groups
 * (use_mkldnn() in ATen's Convolution.cpp). The size leaves out a volume's last dimension, so the columns of a volume
 * may be large. */
enum { SMALL_IMAGE_ELEMENTS = 20480, WIDE_FILTER = 4 };

static bool is_small_image(const convolution *c)
{
    const ms_operand *input = c->input, *weight = c->weight;
    if (input->rank < 4 || input->size[0] != 1 || has_groups(c) ||
        (weight->size[weight->rank - 1] >= WIDE_FILTER && weight->size[weight->rank - 2] >= WIDE_FILTER)) {
        return false;
    }
    return ms__mul_sat(ms__mul_sat(input->size[1], input->size[2]), input->size[3]) <= SMALL_IMAGE_ELEMENTS;
}

/* A filter of one place that does not stride reads its images as they are. */
static bool is_pointwise(const convolution *c)
{
    return c->weight->rank == 4 && c->weight->size[2] == 1 && c->weight->size[3] == 1 &&
           c->input->size[2] == c->output->size[2] && c->input->size[3] == c->output->size[3];
}

/* An output that is larger than the input. */
static bool is_transposed(const convolution *c)
{
    uint32_t last = c->input->rank - 1;
    return c->output->size[last] > c->input->size[last];
}

/* The whole batch unfolded: one column of a filter's length per place of the output. */
static uint64_t batch_columns(const convolution *c)
{
    const ms_operand *image = is_transposed(c) ? c->input : c->output;
    uint64_t per_channel = image->bytes / ms__max_u64(image->size[1], 1);
    return ms__mul_sat(per_channel, ms__operand_elements(c->weight) / ms__max_u64(c->weight->size[0], 1));
}

/* Without a kernel of oneDNN (fp64, complex, a small image, 16-bit numbers on many CPUs). Groups are cut out and joined
 * again. */
static uint64_t columns_bytes(const convolution *c)
{
    if (is_pointwise(c) && !has_groups(c)) {
        return 0;
    }
    bool joins_groups = has_groups(c) && !is_transposed(c);
    return ms__add_sat(batch_columns(c), joins_groups ? ms__mul_sat(2, larger_image(c)) : 0);
}

/* One image is reordered at a time; a transposed convolution, whose output grows, holds two. */
static uint64_t forward_bytes(const convolution *c)
{
    uint64_t images = is_transposed(c) ? 2 : 1;
    return ms__add_sat(ms__mul_sat(images, larger_image(c)), c->weight->bytes);
}

/* Input and gradient together, or the input twice if the filter strides; 16-bit ones are summed in a wider type, and
 * images of one dimension are copied once more on their way to two. */
static uint64_t backward_bytes(const convolution *c)
{
    uint64_t images = ms__add_sat(c->input->bytes, c->output->bytes);
    uint32_t last = c->input->rank - 1;
    bool strides = c->output->size[last] <= (c->input->size[last] + 1) / 2;
    if (c->input->rank == 3) {
        images = ms__mul_sat(3, larger_image(c));
    } else if (item_bytes(c->input) < 4) {
        images = ms__add_sat(images, larger_image(c));
    } else if (strides && c->weight->size[last] > 1) {
        images = ms__add_sat(c->input->bytes, larger_image(c));
    }
    return ms__add_sat(images, c->weight->bytes);
}

enum { CHANNEL_BLOCK = 16, NARROW_FILTER = 3, COPIES_OF_HALVES = 5 };

/* A depthwise filter of a few places has kernels of its own, in two dimensions. */
static bool is_narrow_depthwise(const ms_operand *weight, uint64_t out_of_group)
{
    uint32_t last = weight->rank - 1;
    return weight->rank == 4 && weight->size[1] == 1 && out_of_group == 1 && weight->size[last] <= NARROW_FILTER &&
           weight->size[last - 1] <= NARROW_FILTER;
}

/* In channels_last a filter of groups is padded to blocks of 16 channels on both sides: a depthwise 7 x 7 filter of 256
 * channels takes 13 MB. Of 16-bit numbers there is a 32-bit copy too. */
static uint64_t padded_filter_bytes(const convolution *c)
{
    uint64_t in_group = ms__max_u64(c->weight->size[1], 1), groups = c->input->size[1] / in_group;
    uint64_t out_of_group = c->weight->size[0] / ms__max_u64(groups, 1);
    if (groups < 2 || out_of_group == 0 || is_narrow_depthwise(c->weight, out_of_group)) {
        return 0;
    }
    uint64_t wide_in = ms__div_up(in_group, CHANNEL_BLOCK) * CHANNEL_BLOCK;
    uint64_t wide_out = ms__div_up(out_of_group, CHANNEL_BLOCK) * CHANNEL_BLOCK;
    uint64_t padded = ms__mul_sat(c->weight->bytes / (in_group * out_of_group), wide_in * wide_out);
    bool is_half = item_bytes(c->input) < 4;
    return is_half ? ms__add_sat(ms__mul_sat(3, padded), ms__mul_sat(COPIES_OF_HALVES, larger_image(c))) : padded;
}

/*
 * cuDNN computes in channels_last, with channels in whole blocks. It writes images and filters of another layout anew, in
 * the workspace, and the result once more on its way back. Nothing tells the workspace of the kernel that its heuristics
 * choose, so this is what is expected; kernels that sum in parts take more (the reserve of src/device/cuda.c). Measured on
 * an H200 with BF16, 32 pictures: 40 to 83 MB in ResNet-50's step (expected: 77 at most), 46 to 77 in ViT's (39).
 */
enum { GPU_CHANNEL_BLOCK = 8 };

static uint64_t rewritten_bytes(const ms_operand *image, bool channels_last)
{
    uint64_t channels = ms__max_u64(image->size[1], 1);
    uint64_t whole = ms__div_up(channels, GPU_CHANNEL_BLOCK) * GPU_CHANNEL_BLOCK;
    return channels_last && whole == channels ? 0 : ms__mul_sat(image->bytes / channels, whole);
}

static uint64_t gpu_bytes(const convolution *c, bool channels_last)
{
    uint64_t images = ms__add_sat(rewritten_bytes(c->input, channels_last), rewritten_bytes(c->output, channels_last));
    bool is_padded = !has_groups(c);
    return ms__add_sat(images, is_padded ? rewritten_bytes(c->weight, channels_last) : c->weight->bytes);
}

static bool is_named(const char *name, const char *wanted)
{
    const char *dot = strchr(name, '.');
    const char *bare = dot != NULL ? dot + 1 : name;
    size_t length = strcspn(bare, ".");
    return strlen(wanted) == length && strncmp(bare, wanted, length) == 0;
}

static bool is_image(const convolution *c)
{
    return c->input->rank >= 3 && c->weight->rank >= 3 && c->output->rank == c->input->rank;
}

/* Of other operators: what bench/workspaces.py measured, rounded up (docs/results/workspaces.md). In percent of the
 * operands' and of the results' bytes; plus bytes per element of the longest dimension, for operators that work on one
 * line at a time. Sorted by name (strcmp), for bsearch. */
typedef enum workspace_when {
    ALWAYS,
    CONVERTS, /* only if operands and results have elements of other sizes */
    PROMOTES, /* each operand whose elements are not of the result's size is first written in the result's type */
    PROMOTES_IN_PLACE, /* the same, into the first operand */
    COMPARES, /* one of two operands is first written in the other's type */
    BILINEAR, /* a part of nn.Bilinear, forward or backward */
    RECURRENT, /* one layer of an LSTM, forward */
    RECURRENT_BACKWARD,
    SPARSE /* indices and values of each element, twice; a trace sees an empty result */
} workspace_when;

typedef struct workspace_rule {
    const char *name;
    uint32_t operands_percent, results_percent, line_bytes;
    workspace_when when;
} workspace_rule;

static const workspace_rule rules[] = {
    {"_ctc_loss_backward", 50, 0, 0, ALWAYS},
    {"_euclidean_dist", 110, 0, 0, ALWAYS},
    {"_fft_r2c", 0, 0, 0, ALWAYS}, /* copies a strided operand */
    {"_linalg_svd", 0, 75, 0, ALWAYS},
    {"_to_sparse", 0, 0, 0, SPARSE},
    {"_trilinear", 0, 0, 0, BILINEAR},
    {"_unique2", 400, 0, 0, ALWAYS},
    {"abs", 100, 0, 0, CONVERTS},
    {"add", 0, 0, 0, PROMOTES},
    {"add_", 0, 0, 0, PROMOTES_IN_PLACE},
    {"cumsum", 0, 100, 0, CONVERTS},
    {"div", 0, 0, 0, PROMOTES},
    {"div_", 0, 0, 0, PROMOTES_IN_PLACE},
    {"eq", 0, 0, 0, COMPARES},
    {"ge", 0, 0, 0, COMPARES},
    {"gt", 0, 0, 0, COMPARES},
    {"kthvalue", 300, 0, 0, ALWAYS},
    {"le", 0, 0, 0, COMPARES},
    {"linalg_eig", 0, 50, 0, ALWAYS},
    {"linalg_inv_ex", 0, 100, 0, ALWAYS},
    {"linalg_lstsq", 100, 0, 0, ALWAYS},
    {"linalg_matrix_exp", 0, 1000, 0, ALWAYS},
    {"linalg_pinv", 0, 310, 0, ALWAYS},
    {"lt", 0, 0, 0, COMPARES},
    {"masked_select", 120, 0, 0, ALWAYS},
    {"maximum", 0, 0, 0, PROMOTES},
    {"minimum", 0, 0, 0, PROMOTES},
    {"mkldnn_rnn_layer", 0, 0, 0, RECURRENT},
    {"mkldnn_rnn_layer_backward", 50, 0, 0, RECURRENT_BACKWARD},
    {"mul", 0, 0, 0, PROMOTES},
    {"mul_", 0, 0, 0, PROMOTES_IN_PLACE},
    {"ne", 0, 0, 0, COMPARES},
    {"pow", 0, 0, 0, PROMOTES},
    {"sort", 0, 0, 8, ALWAYS},
    {"sub", 0, 0, 0, PROMOTES},
    {"sub_", 0, 0, 0, PROMOTES_IN_PLACE},
    {"topk", 0, 0, 16, ALWAYS},
    {"unique_dim", 100, 0, 0, ALWAYS},
};

static int compare_rule(const void *key, const void *item)
{
    return ms__operator_compare(key, ((const workspace_rule *)item)->name);
}

static const workspace_rule *rule_of(const char *name)
{
    return bsearch(name, rules, sizeof rules / sizeof rules[0], sizeof rules[0], compare_rule);
}

static uint64_t percent_of(const ms_operand *operands, size_t count, uint32_t percent)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes = ms__add_sat(bytes, operands[i].bytes);
    }
    return ms__mul_sat(bytes, percent) / 100;
}

static uint64_t longest_dimension(const ms_operand *operand)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < operand->rank; i++) {
        longest = ms__max_u64(longest, operand->size[i]);
    }
    return longest;
}

/* Numbers without dimensions cost nothing. */
static uint64_t written_as(const ms_operand *operand, uint64_t item)
{
    return operand->rank == 0 || item_bytes(operand) == item ? 0 : ms__mul_sat(ms__operand_elements(operand), item);
}

static uint64_t promoted_bytes(const ms_operand *inputs, size_t input_count, const ms_operand *output)
{
    uint64_t bytes = 0, item = item_bytes(output);
    for (size_t i = 0; i < input_count; i++) {
        bytes = ms__add_sat(bytes, written_as(&inputs[i], item));
    }
    return bytes;
}

/* Sizes do not tell a float's type from an integer's, which yields to it, so the larger of two copies counts. */
static uint64_t compared_bytes(const ms_operand *a, const ms_operand *b)
{
    return a->rank == 0 || b->rank == 0 ? 0 : ms__max_u64(written_as(a, item_bytes(b)), written_as(b, item_bytes(a)));
}

/* A first operand of a narrower type is widened, and so is the result before it is written over it. */
static uint64_t promoted_in_place_bytes(const ms_operand *to, const ms_operand *other)
{
    bool widens = other->rank > 0 && item_bytes(other) > item_bytes(to);
    return widens ? ms__mul_sat(2, written_as(to, item_bytes(other))) : written_as(other, item_bytes(to));
}

/* (rows, outs) and weights (outs, firsts, seconds) make (rows, firsts) by way of (rows, firsts, seconds); with the first
 * operand in place of the gradient, the forward sums one of the three earlier. */
static uint64_t bilinear_bytes(const ms_operand *rows, const ms_operand *weight, const ms_operand *output)
{
    uint64_t own = ms__mul_sat(2, output->bytes);
    if (rows->rank != 2 || weight->rank != 3 || output->rank != 2) {
        return own;
    }
    bool is_forward = output->size[1] == weight->size[0] && weight->size[0] != weight->size[1];
    uint64_t places = ms__mul_sat(weight->size[1], weight->size[2]);
    return ms__add_sat(own, is_forward ? 0 : ms__mul_sat(ms__mul_sat(rows->size[0], places), item_bytes(rows)));
}

/* oneDNN takes these from libc: copies of (gates, features) and (gates, hidden) weights in the order of its kernels, the gates
 * of all (time, batch) rows in float32, and blocks of products. Measured over seven shapes on AVX2
 * (tests/c/trace/test_workspace.c). The backward also touches the pages of the layer's workspace that the forward left
 * alone; with them it takes up to half of its operands (bench/workspaces.py). */
enum { RECURRENT_WEIGHTS = 105, RECURRENT_GATES = 115, BACKWARD_WEIGHTS = 220, BACKWARD_GATES = 160 };

/* 0 for rules of other operators. */
static uint64_t recurrent_bytes(const workspace_rule *rule, const ms_operand *inputs, size_t input_count)
{
    bool backward = rule->when == RECURRENT_BACKWARD;
    if ((!backward && rule->when != RECURRENT) || input_count < 3 || inputs[0].rank != 3 || inputs[1].rank != 2 ||
        inputs[0].size[2] == 0) {
        return 0;
    }
    uint64_t rows = ms__operand_elements(&inputs[0]) / inputs[0].size[2];
    uint64_t gates = ms__mul_sat(ms__mul_sat(rows, inputs[1].size[0]), sizeof(float));
    uint64_t weights = ms__add_sat(inputs[1].bytes, inputs[2].bytes);
    return ms__add_sat(ms__mul_sat(weights, backward ? BACKWARD_WEIGHTS : RECURRENT_WEIGHTS) / 100,
                       ms__mul_sat(gates, backward ? BACKWARD_GATES : RECURRENT_GATES) / 100);
}

/* libc's heap keeps blocks of less than 32 MiB, and returns what is more than 64 MiB at its end (mallopt(3)). */
static const uint64_t libc_keeps_bytes = 64 << 20;

uint64_t ms__libc_share_bytes(const char *name, const ms_operand *inputs, size_t input_count)
{
    const workspace_rule *rule = rule_of(name);
    return rule == NULL ? 0 : ms__min_u64(recurrent_bytes(rule, inputs, input_count), libc_keeps_bytes);
}

/* As if no element were zero. */
static uint64_t sparse_bytes(const ms_operand *dense)
{
    uint64_t each = ms__add_sat(8 * (uint64_t)dense->rank, item_bytes(dense));
    return ms__mul_sat(2, ms__mul_sat(ms__operand_elements(dense), each));
}

static uint64_t rule_bytes(const workspace_rule *rule, const ms_operand *inputs, size_t input_count,
                           const ms_operand *outputs, size_t output_count)
{
    if (rule == NULL || input_count == 0) {
        return 0;
    }
    if (rule->when == SPARSE) {
        return sparse_bytes(&inputs[0]);
    }
    if (output_count == 0 || (rule->when == CONVERTS && item_bytes(&inputs[0]) == item_bytes(&outputs[0]))) {
        return 0;
    }
    if (rule->when == PROMOTES) {
        return promoted_bytes(inputs, input_count, &outputs[0]);
    }
    if (rule->when == BILINEAR) {
        return input_count < 2 ? 0 : bilinear_bytes(&inputs[0], &inputs[1], &outputs[0]);
    }
    if (rule->when == PROMOTES_IN_PLACE || rule->when == COMPARES) {
        return input_count < 2          ? 0
               : rule->when == COMPARES ? compared_bytes(&inputs[0], &inputs[1])
                                        : promoted_in_place_bytes(&inputs[0], &inputs[1]);
    }
    uint64_t bytes = ms__add_sat(percent_of(inputs, input_count, rule->operands_percent),
                                 percent_of(outputs, output_count, rule->results_percent));
    bytes = ms__max_u64(bytes, recurrent_bytes(rule, inputs, input_count));
    return ms__add_sat(bytes, ms__mul_sat(longest_dimension(&inputs[0]), rule->line_bytes));
}

/* Whether the operator is a convolution of images, or its backward, and its parts. */
static bool is_convolution(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                           size_t output_count, convolution *c, bool *forward)
{
    *forward = is_named(name, "convolution") && input_count >= 2 && output_count >= 1;
    bool backward = is_named(name, "convolution_backward") && input_count >= 3;
    if (*forward) {
        *c = (convolution){&inputs[0], &inputs[1], &outputs[0]};
    } else if (backward) {
        *c = (convolution){&inputs[1], &inputs[2], &inputs[0]};
    }
    return *forward || backward;
}

uint64_t ms__workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                             size_t output_count, uint32_t copied)
{
    bool channels_last = (copied & MS_WORKSPACE_CHANNELS_LAST) != 0;
    convolution c;
    bool forward;
    if (!is_convolution(name, inputs, input_count, outputs, output_count, &c, &forward)) {
        return rule_bytes(rule_of(name), inputs, input_count, outputs, output_count);
    }
    if (!is_image(&c)) {
        return 0;
    }
    if ((copied & MS_WORKSPACE_UNFOLDS) != 0) {
        return columns_bytes(&c);
    }
    if (channels_last) {
        return padded_filter_bytes(&c);
    }
    if (item_bytes(c.input) > 4 || (item_bytes(c.input) == 4 && is_small_image(&c))) {
        return columns_bytes(&c);
    }
    return forward ? forward_bytes(&c) : backward_bytes(&c);
}

/* A transposed convolution takes them in its forward, any other in its backward. Volumes are computed one by one. */
uint64_t ms__libc_buffers(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                          size_t output_count, uint32_t copied, uint32_t threads)
{
    convolution c;
    bool forward;
    if ((copied & MS_WORKSPACE_UNFOLDS) == 0 ||
        !is_convolution(name, inputs, input_count, outputs, output_count, &c, &forward) || !is_image(&c) ||
        forward != is_transposed(&c)) {
        return 0;
    }
    uint64_t images = ms__max_u64(c.input->size[0], 1), columns = batch_columns(&c) / images;
    bool is_volume = c.input->rank > 4;
    uint64_t each = ms__mul_sat(is_volume || forward ? 2 : 3, columns);
    return ms__mul_sat(is_volume ? 1 : ms__min_u64(images, threads), each);
}

bool ms_operator_takes_workspace(const char *name)
{
    return is_named(name, "convolution") || is_named(name, "convolution_backward") || rule_of(name) != NULL;
}

bool ms_operator_converts(const char *name)
{
    const workspace_rule *rule = rule_of(name);
    return rule != NULL && (rule->when == PROMOTES || rule->when == PROMOTES_IN_PLACE || rule->when == COMPARES);
}

uint64_t ms_workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                            size_t output_count, uint32_t copied)
{
    bool channels_last = (copied & MS_WORKSPACE_CHANNELS_LAST) != 0;
    if ((copied & MS_WORKSPACE_GPU) != 0) {
        convolution c;
        bool forward;
        bool is_one = is_convolution(name, inputs, input_count, outputs, output_count, &c, &forward);
        return is_one && is_image(&c) ? gpu_bytes(&c, channels_last) : 0;
    }
    uint64_t bytes = ms__workspace_bytes(name, inputs, input_count, outputs, output_count, copied);
    if (channels_last && bytes == 0) {
        return 0;
    }
    for (size_t i = 0; i < input_count && i < 29; i++) {
        bytes = ms__add_sat(bytes, (copied >> i & 1) != 0 ? inputs[i].bytes : 0);
    }
    return bytes;
}
