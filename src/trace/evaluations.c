/*
 * The table of evaluations.h. Measured with torch 2.13 on AVX-512: one thread, operands of 4 to 100 MB in resident
 * memory, alone and in the steps of ten models. A measured time is expressed in evaluations of 0.19 ns, the time of
 * one evaluation on that machine. The table also has loops that torch does not vectorize (pools, batch statistics)
 * and small matrix products, which are slower than large ones.
 */
#include "trace/evaluations.h"

#include <stdlib.h>

#include "base/units.h"
#include "trace/operand.h"

typedef struct evaluation_rule {
    const char *name;
    uint32_t hundredths;         /* per element of the first output ... */
    uint32_t per_thousand_flops; /* ... and of the operator's products */
} evaluation_rule;

/* Sorted by name (strcmp), for bsearch. `gelu_tanh` is the profiler's name for GELU with a hyperbolic tangent. */
static const evaluation_rule rules[] = {
    {"_log_softmax", 600, 0},
    {"_log_softmax_backward_data", 580, 0},
    {"_safe_softmax", 1650, 0},
    {"_scaled_dot_product_flash_attention_for_cpu", 0, 47},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", 0, 49},
    {"_softmax", 480, 0},
    {"avg_pool2d", 5100, 0},
    {"avg_pool2d_backward", 1550, 0},
    {"baddbmm", 0, 53},
    {"bmm", 0, 53},
    {"convolution", 0, 40},
    {"convolution_backward", 0, 47},
    {"elu", 690, 0},
    {"gelu", 440, 0},
    {"gelu_backward", 660, 0},
    {"gelu_tanh", 1030, 0},
    {"gelu_tanh_backward", 1160, 0},
    {"max_pool2d_with_indices", 14700, 0},
    {"max_pool2d_with_indices_backward", 1100, 0},
    {"mkldnn_rnn_layer", 0, 47},
    {"mkldnn_rnn_layer_backward", 0, 44},
    {"native_batch_norm", 1400, 0},
    {"native_batch_norm_backward", 790, 0},
    {"native_layer_norm", 490, 0},
    {"native_layer_norm_backward", 650, 0},
    {"softplus", 850, 0},
    {"upsample_bilinear2d", 770, 0},
    {"upsample_nearest2d", 430, 0},
};

/* A filter of one channel is not computed as a matrix product. */
enum { DEPTHWISE_PER_THOUSAND = 84, DEPTHWISE_BACKWARD_PER_THOUSAND = 580 };

static int compare_rule(const void *key, const void *item)
{
    return ms__operator_compare(key, ((const evaluation_rule *)item)->name);
}

/* (input, weight, ...) or, in backward, (grad_output, input, weight). */
static uint64_t flops_share(const evaluation_rule *rule, const ms_operand *inputs, size_t input_count)
{
    bool forward = strcmp(rule->name, "convolution") == 0;
    size_t weight = forward ? 1 : 2;
    if ((!forward && strcmp(rule->name, "convolution_backward") != 0) || input_count <= weight) {
        return rule->per_thousand_flops;
    }
    const ms_operand *filter = &inputs[weight];
    bool is_depthwise = filter->rank >= 3 && filter->size[1] == 1 && filter->size[0] > 1;
    uint64_t share = forward ? DEPTHWISE_PER_THOUSAND : DEPTHWISE_BACKWARD_PER_THOUSAND;
    return is_depthwise ? share : rule->per_thousand_flops;
}

uint64_t ms__evaluations(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                         size_t output_count, uint64_t flops)
{
    const evaluation_rule *rule = bsearch(name, rules, sizeof rules / sizeof rules[0], sizeof rules[0], compare_rule);
    if (rule == NULL || output_count == 0) {
        return 0;
    }
    uint64_t products = ms__mul_div(flops, flops_share(rule, inputs, input_count), 1000);
    uint64_t elements = ms__mul_div(ms__operand_elements(&outputs[0]), rule->hundredths, 100);
    return ms__add_sat(products, elements);
}
