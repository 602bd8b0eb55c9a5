/*
 * Programs of CPU operators. They replace kernels that only CUDA has, and CPU kernels that draw from
 * torch's own CPU generator.
 */
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <map>

#include "internal.h"

namespace torch_double
{

namespace
{

using at::Tensor;
using torch::jit::Stack;

Tensor optional_tensor(const c10::IValue &value)
{
    return value.isTensor() ? value.toTensor() : Tensor();
}

Tensor plus(const Tensor &sum, const c10::IValue &more)
{
    Tensor other = optional_tensor(more);
    return other.defined() ? sum + other : sum;
}

/* (input, p, train) -> (output, mask), as the CPU's kernel gives with this generator. */
void native_dropout(Stack &stack, const std::optional<at::Generator> &generator)
{
    Tensor input = stack[0].toTensor();
    double kept = 1.0 - stack[1].toDouble();
    Tensor mask = at::ones_like(input, input.options().dtype(at::kBool));
    Tensor output = input.clone();
    if (stack[2].isNone() || stack[2].toBool()) {
        mask.bernoulli_(kept, generator);
        output = input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept);
    }
    stack = {output, mask};
}

/* (input gates, hidden gates, cx, biases) -> (hy, cy, the four gates after their functions) */
void lstm_cell(Stack &stack, const std::optional<at::Generator> &)
{
    Tensor sums = plus(plus(stack[0].toTensor() + stack[1].toTensor(), stack[3]), stack[4]);
    std::vector<Tensor> gates = sums.chunk(4, 1);
    Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
    Tensor cy = forget * stack[2].toTensor() + in * cell;
    stack = {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

/* (grad_hy, grad_cy, cx, cy, workspace, has_bias) -> (grad_gates, grad_cx, grad_bias) */
void lstm_cell_backward(Stack &stack, const std::optional<at::Generator> &)
{
    Tensor cx = stack[2].toTensor(), cy = stack[3].toTensor(), grad_hy = optional_tensor(stack[0]);
    std::vector<Tensor> gates = stack[4].toTensor().chunk(4, 1);
    Tensor in = gates[0], forget = gates[1], cell = gates[2], out = gates[3], tanh_cy = cy.tanh();
    Tensor grad_c = plus(at::zeros_like(cy), stack[1]), grad_out = at::zeros_like(cy);
    if (grad_hy.defined()) {
        grad_c = grad_c + grad_hy * out * (1 - tanh_cy * tanh_cy);
        grad_out = grad_hy * tanh_cy * out * (1 - out);
    }
    Tensor grads = at::cat(
        {grad_c * cell * in * (1 - in), grad_c * cx * forget * (1 - forget), grad_c * in * (1 - cell * cell), grad_out},
        1);
    stack = {grads, grad_c * forget, stack[5].toBool() ? grads.sum(0) : Tensor()};
}

/* (input gates, hidden gates, hx, biases) -> (hy, workspace: r, z, n, hx, hidden part of n) */
void gru_cell(Stack &stack, const std::optional<at::Generator> &)
{
    std::vector<Tensor> input = plus(stack[0].toTensor(), stack[3]).chunk(3, 1);
    std::vector<Tensor> hidden = plus(stack[1].toTensor(), stack[4]).chunk(3, 1);
    Tensor hx = stack[2].toTensor();
    Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
    Tensor made = (input[2] + reset * hidden[2]).tanh();
    stack = {made + update * (hx - made), at::cat({reset, update, made, hx, hidden[2]}, 1)};
}

/* (grad_hy, workspace, has_bias) -> gradients of (input gates, hidden gates, hx, both biases) */
void gru_cell_backward(Stack &stack, const std::optional<at::Generator> &)
{
    Tensor grad = stack[0].toTensor();
    std::vector<Tensor> kept = stack[1].toTensor().chunk(5, 1);
    Tensor reset = kept[0], update = kept[1], made = kept[2], hx = kept[3], hidden = kept[4];
    Tensor grad_made = grad * (1 - update) * (1 - made * made);
    Tensor grad_update = grad * (hx - made) * update * (1 - update);
    Tensor grad_reset = grad_made * hidden * reset * (1 - reset);
    Tensor of_input = at::cat({grad_reset, grad_update, grad_made}, 1);
    Tensor of_hidden = at::cat({grad_reset, grad_update, grad_made * reset}, 1);
    bool has_bias = stack[2].toBool();
    stack = {of_input, of_hidden, grad * update, has_bias ? of_input.sum(0) : Tensor(),
             has_bias ? of_hidden.sum(0) : Tensor()};
}

/* (self, bins, min, max) -> counts; also of integers, as on CUDA. */
void histc(Stack &stack, const std::optional<at::Generator> &)
{
    Tensor self = stack[0].toTensor();
    Tensor counts = at::histc(self.is_floating_point() ? self : self.to(at::kDouble), stack[1].toInt(),
                              stack[2].toScalar(), stack[3].toScalar());
    stack = {counts.to(self.scalar_type())};
}

} // namespace

ProgramFacts program_of(const std::string &operator_name)
{
    static const std::map<std::string, ProgramFacts> all = {
        {"aten::native_dropout", {native_dropout, true}},
        {"aten::histc", {histc, false}},
        {"aten::_thnn_fused_lstm_cell", {lstm_cell, false}},
        {"aten::_thnn_fused_lstm_cell_backward_impl", {lstm_cell_backward, false}},
        {"aten::_thnn_fused_gru_cell", {gru_cell, false}},
        {"aten::_thnn_fused_gru_cell_backward", {gru_cell_backward, false}},
    };
    auto found = all.find(operator_name);
    return found != all.end() ? found->second : ProgramFacts{};
}

} // namespace torch_double
