/*
 * The table of flops.h and its few formulas. The counts are those of
 * torch.utils.flop_counter, written over the shapes alone: operands are the tensors
 * among an operator's arguments, in order, None left out.
 */
#include <stdlib.h>

#include "base/units.h"
#include "trace/flops.h"
#include "trace/operand.h"

typedef struct op_call {
    const ms_operand *inputs;
    size_t input_count;
    const ms_operand *outputs;
    size_t output_count;
    uint32_t first; /* the table's index of the first operand that counts */
} op_call;

static uint64_t last_size(const ms_operand *operand)
{
    return operand->rank > 0 ? operand->size[operand->rank - 1] : 1;
}

/* Each element of the left matrix multiplies a row of the right one, as long as the output's last dimension: mm,
 * bmm, addbmm, linear, grouped products. */
static uint64_t product_flops(const op_call *call)
{
    if (call->input_count <= call->first || call->output_count == 0) {
        return 0;
    }
    uint64_t row = last_size(&call->outputs[0]);
    return ms__mul_sat(2, ms__mul_sat(ms__operand_elements(&call->inputs[call->first]), row));
}

/* The right operand is a vector: mv, dot. */
static uint64_t vector_flops(const op_call *call)
{
    return call->input_count > call->first ? ms__mul_sat(2, ms__operand_elements(&call->inputs[call->first])) : 0;
}

/*
 * Weight (out, in / groups, kernel...), or for a transposed one (in, out / groups, kernel...): the weight is used
 * once per place of the smaller image, the output if the image shrinks, the input if it grows. So neither `groups`
 * nor `transposed` is needed.
 */
static uint64_t weight_use_flops(const ms_operand *input, const ms_operand *weight, const ms_operand *output)
{
    uint32_t kernel_rank = weight->rank >= 2 ? weight->rank - 2 : 0;
    if (kernel_rank == 0 || input->rank < kernel_rank || output->rank < kernel_rank) {
        return 0;
    }
    uint64_t input_places = 1;
    uint64_t output_places = 1;
    for (uint32_t i = 0; i < kernel_rank; i++) {
        input_places = ms__mul_sat(input_places, input->size[input->rank - 1 - i]);
        output_places = ms__mul_sat(output_places, output->size[output->rank - 1 - i]);
    }
    uint64_t batch = input->rank == weight->rank ? input->size[0] : 1;
    uint64_t uses = ms__mul_sat(batch, ms__min_u64(input_places, output_places));
    return ms__mul_sat(2, ms__mul_sat(ms__operand_elements(weight), uses));
}

/* (input, weight, ...) -> output. */
static uint64_t convolution_flops(const op_call *call)
{
    if (call->input_count < 2 || call->output_count == 0) {
        return 0;
    }
    return weight_use_flops(&call->inputs[0], &call->inputs[1], &call->outputs[0]);
}

/* (grad_output, input, weight) -> the gradients asked for, of input and of weight:
 * each costs as much as the forward; the bias's, of rank 1, is a sum. */
static uint64_t convolution_backward_flops(const op_call *call)
{
    if (call->input_count < 3) {
        return 0;
    }
    uint64_t once = weight_use_flops(&call->inputs[1], &call->inputs[2], &call->inputs[0]);
    uint64_t gradients = 0;
    for (size_t i = 0; i < call->output_count; i++) {
        gradients += call->outputs[i].rank > 1 && ms__operand_elements(&call->outputs[i]) > 0;
    }
    return ms__mul_sat(once, gradients);
}

/* query (..., S, E), key (..., L, E), value (..., L, V), from operand `first` on:
 * the operations of scores and of the weighted sum. Grouped queries: the query has
 * the heads. */
static uint64_t attention_products(const op_call *call, uint64_t *scores, uint64_t *weighted)
{
    if (call->input_count < call->first + 3) {
        return 0;
    }
    const ms_operand *query = &call->inputs[call->first];
    const ms_operand *key = query + 1;
    const ms_operand *value = query + 2;
    if (query->rank < 2 || key->rank < 2 || value->rank < 2) {
        return 0;
    }
    uint64_t keys = key->size[key->rank - 2];
    uint64_t rows = ms__mul_sat(ms__operand_elements(query) / ms__max_u64(last_size(query), 1), keys);
    *scores = ms__mul_sat(2, ms__mul_sat(rows, last_size(query)));
    *weighted = ms__mul_sat(2, ms__mul_sat(rows, last_size(value)));
    return 1;
}

static uint64_t attention_flops(const op_call *call)
{
    uint64_t scores;
    uint64_t weighted;
    return attention_products(call, &scores, &weighted) ? ms__add_sat(scores, weighted) : 0;
}

/* Scores are recomputed; the gradients of query, key, value and of the weights take one product each. */
static uint64_t attention_backward_flops(const op_call *call)
{
    uint64_t scores;
    uint64_t weighted;
    if (!attention_products(call, &scores, &weighted)) {
        return 0;
    }
    return ms__add_sat(ms__mul_sat(3, scores), ms__mul_sat(2, weighted));
}

/* (input (T, B, I), weights, ...): each matrix among the operands 1 to `first` is a
 * weight, used once per step and sample. Biases and states have other ranks or come
 * later. */
static uint64_t recurrent_once(const op_call *call)
{
    if (call->input_count < 3 || call->inputs[0].rank < 2) {
        return 0;
    }
    const ms_operand *input = &call->inputs[0];
    uint64_t uses = ms__operand_elements(input) / ms__max_u64(last_size(input), 1);
    uint64_t weights = 0;
    for (size_t i = 1; i < call->input_count && i <= call->first; i++) {
        if (call->inputs[i].rank == 2) {
            weights = ms__add_sat(weights, ms__operand_elements(&call->inputs[i]));
        }
    }
    return ms__mul_sat(2, ms__mul_sat(uses, weights));
}

static uint64_t recurrent_flops(const op_call *call)
{
    return recurrent_once(call);
}

static uint64_t recurrent_backward_flops(const op_call *call)
{
    return ms__mul_sat(2, recurrent_once(call));
}

typedef struct op_rule {
    const char *name;
    uint64_t (*flops)(const op_call *call);
    uint32_t first; /* first operand that counts; for recurrent layers the last that may be a weight */
} op_rule;

/* Sorted by name (strcmp), for bsearch. */
static const op_rule op_rules[] = {
    {"_addmm_activation", product_flops, 1},
    {"_cudnn_attention_backward", attention_backward_flops, 1},
    {"_cudnn_attention_forward", attention_flops, 0},
    {"_cudnn_rnn", recurrent_flops, UINT32_MAX},
    {"_cudnn_rnn_backward", recurrent_backward_flops, UINT32_MAX},
    {"_efficient_attention_backward", attention_backward_flops, 1},
    {"_efficient_attention_forward", attention_flops, 0},
    {"_flash_attention_backward", attention_backward_flops, 1},
    {"_flash_attention_forward", attention_flops, 0},
    {"_grouped_mm", product_flops, 0},
    {"_int_mm", product_flops, 0},
    {"_scaled_dot_product_cudnn_attention", attention_flops, 0},
    {"_scaled_dot_product_cudnn_attention_backward", attention_backward_flops, 1},
    {"_scaled_dot_product_efficient_attention", attention_flops, 0},
    {"_scaled_dot_product_efficient_attention_backward", attention_backward_flops, 1},
    {"_scaled_dot_product_flash_attention", attention_flops, 0},
    {"_scaled_dot_product_flash_attention_backward", attention_backward_flops, 1},
    {"_scaled_dot_product_flash_attention_for_cpu", attention_flops, 0},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward_flops, 1},
    {"_scaled_dot_product_fused_attention_overrideable", attention_flops, 0},
    {"_scaled_dot_product_fused_attention_overrideable_backward", attention_backward_flops, 1},
    {"_scaled_grouped_mm", product_flops, 0},
    {"_scaled_mm", product_flops, 0},
    {"_slow_conv2d_forward", convolution_flops, 0},
    {"addbmm", product_flops, 1},
    {"addmm", product_flops, 1},
    {"addmm_", product_flops, 1},
    {"addmv", vector_flops, 1},
    {"baddbmm", product_flops, 1},
    {"baddbmm_", product_flops, 1},
    {"bmm", product_flops, 0},
    {"convolution", convolution_flops, 0},
    {"convolution_backward", convolution_backward_flops, 0},
    {"convolution_overrideable", convolution_flops, 0},
    {"cudnn_convolution", convolution_flops, 0},
    {"dot", vector_flops, 0},
    {"linear", product_flops, 0},
    {"miopen_convolution", convolution_flops, 0},
    {"mkldnn_convolution", convolution_flops, 0},
    {"mkldnn_linear", product_flops, 0},
    {"mkldnn_rnn_layer", recurrent_flops, 2},
    {"mkldnn_rnn_layer_backward", recurrent_backward_flops, 2},
    {"mm", product_flops, 0},
    {"mv", vector_flops, 0},
    {"scaled_dot_product_attention", attention_flops, 0},
    {"vdot", vector_flops, 0},
};

static int compare_rule(const void *key, const void *item)
{
    return ms__operator_compare(key, ((const op_rule *)item)->name);
}

static const op_rule *rule_of(const char *name)
{
    return bsearch(name, op_rules, sizeof op_rules / sizeof op_rules[0], sizeof op_rules[0], compare_rule);
}

bool ms__is_convolution(const char *name)
{
    const op_rule *rule = rule_of(name);
    return rule != NULL && (rule->flops == convolution_flops || rule->flops == convolution_backward_flops);
}

uint64_t ms__flops(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                   size_t output_count)
{
    const op_rule *rule = rule_of(name);
    if (rule == NULL) {
        return 0;
    }
    op_call call = {inputs, input_count, outputs, output_count, rule->first};
    return rule->flops(&call);
}
