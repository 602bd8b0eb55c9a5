/*
 * The formulas of workspace.h. Measured as the peak of torch 2.13's allocator beyond operands and results, over
 * shapes, strides, groups and dilations (tests/c/trace/ test_workspace.c has the figures). If two kernels differ, the
 * larger one, except for the few channels that pad narrow images.
 */
#include "trace/workspace.h"

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

/* Without a kernel of oneDNN (fp64, complex): the whole batch unfolded, one column of a filter's length per place
 * of the output. */
static uint64_t columns_bytes(const convolution *c)
{
    uint64_t per_channel = c->output->bytes / ms__max_u64(c->output->size[1], 1);
    return ms__mul_sat(per_channel, ms__operand_elements(c->weight) / ms__max_u64(c->weight->size[0], 1));
}

static uint64_t larger_image(const convolution *c)
{
    return ms__max_u64(c->input->bytes, c->output->bytes);
}

/* One image is reordered at a time; a transposed convolution, whose output grows, holds two. */
static uint64_t forward_bytes(const convolution *c)
{
    uint32_t last = c->input->rank - 1;
    uint64_t images = c->output->size[last] > c->input->size[last] ? 2 : 1;
    return ms__add_sat(ms__mul_sat(images, larger_image(c)), c->weight->bytes);
}

/* Input and gradient together; 16-bit ones are summed in a wider type, and images of one
 * dimension are copied once more on their way to two. */
static uint64_t backward_bytes(const convolution *c)
{
    uint64_t images = ms__add_sat(c->input->bytes, c->output->bytes);
    if (c->input->rank == 3) {
        images = ms__mul_sat(3, larger_image(c));
    } else if (item_bytes(c->input) < 4) {
        images = ms__mul_sat(2, larger_image(c));
    }
    return ms__add_sat(images, c->weight->bytes);
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

uint64_t ms__workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                             size_t output_count)
{
    convolution c;
    bool forward = is_named(name, "convolution") && input_count >= 2 && output_count >= 1;
    bool backward = is_named(name, "convolution_backward") && input_count >= 3;
    if (forward) {
        c = (convolution){&inputs[0], &inputs[1], &outputs[0]};
    } else if (backward) {
        c = (convolution){&inputs[1], &inputs[2], &inputs[0]};
    }
    if ((!forward && !backward) || !is_image(&c)) {
        return 0;
    }
    if (item_bytes(c.input) > 4) {
        return columns_bytes(&c);
    }
    return forward ? forward_bytes(&c) : backward_bytes(&c);
}
