/*
 * Every operator that the other files don't implement. It is queued on the stream; there the CPU's kernel
 * runs later, on the device's memory.
 *
 * The host must know an operator's results (shapes, strides, types) before it runs. For each new
 * combination of arguments it learns them by a rehearsal: it runs the CPU's kernel on zeros, on the host,
 * without a wait. So layouts are exactly the CPU's. If results depend on values, or if an operator fails
 * on zeros, the host waits for the stream instead, as some of CUDA's operators do.
 */
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "internal.h"

namespace torch_double
{

namespace
{

using c10::IValue;
using torch::jit::Stack;

/* ---- tensors in arguments ------------------------------------------------------------- */

/* The value with every defined tensor in it replaced by function(tensor), in order. */
template <class Function> IValue map_tensors(const IValue &value, Function function)
{
    if (value.isTensor()) {
        return value.toTensor().defined() ? IValue(function(value.toTensor())) : value;
    }
    if (value.isTensorList()) {
        c10::List<at::Tensor> mapped;
        for (const at::Tensor &one : value.toTensorVector()) {
            mapped.push_back(one.defined() ? function(one) : one);
        }
        return mapped;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> mapped;
        for (const std::optional<at::Tensor> &one : value.toOptionalTensorVector()) {
            bool is_there = one.has_value() && one->defined();
            mapped.push_back(is_there ? std::optional<at::Tensor>(function(*one)) : one);
        }
        return mapped;
    }
    return value;
}

template <class Function> void each_tensor(const IValue &value, Function function)
{
    map_tensors(value, [&](const at::Tensor &one) {
        function(one);
        return one;
    });
}

/* ---- facts about an operator ---------------------------------------------------------- */

struct Facts {
    std::string name;
    std::vector<bool> writes;       /* [argument] */
    std::vector<int> returned;      /* [result] the argument that is returned; -1: a new value */
    std::optional<size_t> generator; /* the argument's index */
    bool is_in_place = false;       /* returns nothing new and resizes nothing */
    bool must_wait = false;
    ProgramFacts program;
};

bool is_index_with_masks(const Facts &facts, const Stack &arguments)
{
    bool has_mask = false;
    if (facts.name.rfind("aten::index", 0) == 0 && arguments.size() > 1) {
        each_tensor(arguments[1], [&](const at::Tensor &one) {
            has_mask = has_mask || one.scalar_type() == at::kBool || one.scalar_type() == at::kByte;
        });
    }
    return has_mask;
}

/* True if CUDA's own kernel also takes CPU tensors that aren't scalars. */
bool takes_host_tensors(const std::string &name)
{
    static const char *const all[] = {"aten::index", "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_ctc_loss",
                                      "aten::_fused_"};
    for (const char *one : all) {
        if (name.rfind(one, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* Running statistics: the kernel writes them, but the schema doesn't say so. */
void note_hidden_writes(Facts &facts)
{
    if (facts.name == "aten::native_batch_norm") {
        facts.writes[3] = facts.writes[4] = true;
    }
}

Facts facts_of(const c10::OperatorHandle &op)
{
    const c10::FunctionSchema &schema = op.schema();
    Facts facts;
    facts.name = schema.name();
    facts.program = program_of(facts.name);
    facts.is_in_place = op.hasTag(at::Tag::inplace);
    bool is_index = facts.name == "aten::index";
    facts.must_wait =
        (op.hasTag(at::Tag::dynamic_output_shape) && !is_index) || op.hasTag(at::Tag::data_dependent_output);
    for (size_t i = 0; i < schema.arguments().size(); i++) {
        const c10::Argument &argument = schema.arguments()[i];
        facts.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
        if (argument.type()->str().find("Generator") != std::string::npos) {
            facts.generator = i;
        }
    }
    for (const c10::Argument &result : schema.returns()) {
        int is = -1;
        const c10::AliasInfo *alias = result.alias_info();
        TORCH_CHECK(alias == nullptr || alias->isWrite(), "the double has no kernel for the view ", facts.name);
        for (size_t i = 0; alias != nullptr && i < schema.arguments().size(); i++) {
            const c10::AliasInfo *other = schema.arguments()[i].alias_info();
            is = other != nullptr && other->beforeSets() == alias->beforeSets() ? static_cast<int>(i) : is;
        }
        facts.returned.push_back(is);
        bool is_tensor = result.type()->str().find("Tensor") != std::string::npos;
        facts.must_wait = facts.must_wait || !is_tensor;
    }
    note_hidden_writes(facts);
    return facts;
}

const Facts &known_facts(const c10::OperatorHandle &op)
{
    static std::mutex lock;
    static std::unordered_map<c10::OperatorName, Facts> all;
    std::lock_guard<std::mutex> hold(lock);
    auto found = all.find(op.operator_name());
    if (found == all.end()) {
        found = all.emplace(op.operator_name(), facts_of(op)).first;
    }
    return found->second;
}

/* ---- a call -------------------------------------------------------------------------- */

/* An operator with its arguments; device tensors among them are views. */
class Call : public Work
{
  public:
    Call(const c10::OperatorHandle &op, const Facts &facts) : op_(op), facts_(facts)
    {
    }

    /* Takes the arguments from torch's stack; called again after they were resized. */
    void take(const Stack &arguments, c10::DeviceIndex device);
    /* Reserves the random numbers that it needs; called once. */
    void draw(const Stack &arguments, c10::DeviceIndex device);

    /* Runs the CPU's kernel; memories as for Work. */
    Stack compute(unsigned char *const *memories) const;
    /* Runs it on zeros; empty if the operator fails on zeros. */
    std::optional<Stack> rehearse(std::vector<at::Tensor> &written) const;
    std::string key() const;

    void run(unsigned char *const *memories) override;
    std::string name() const override
    {
        return facts_.name;
    }

    std::vector<cuda_double_range> ranges;
    std::vector<std::optional<View>> results; /* places for the results of compute(); none: not copied */
    bool keeps = false;
    std::optional<Stack> kept; /* the results of run(), if `keeps` */

  protected:
    std::optional<at::Generator> generator() const
    {
        return philox_.has_value() ? std::optional<at::Generator>(cpu_generator(*philox_)) : std::nullopt;
    }

  private:
    void add(const IValue &argument, bool is_written, c10::DeviceIndex device);
    Stack arguments_over(unsigned char *const *memories) const;
    Stack call(Stack stack) const;
    void append_key(std::string &key, const IValue &argument, size_t index) const;

    c10::OperatorHandle op_;
    const Facts &facts_;
    Stack arguments_; /* tensors in them are placeholders for views_ */
    std::vector<View> views_;
    std::optional<Philox> philox_;
};

/* torch's CUDA kernels take tensors of one device, and CPU tensors only if they are scalars. */
void check_place(const Facts &facts, const at::Tensor &tensor, bool is_written, c10::DeviceIndex device)
{
    bool is_here = tensor.is_cuda() && tensor.get_device() == device;
    bool is_scalar = tensor.is_cpu() && !is_written && (tensor.dim() == 0 || takes_host_tensors(facts.name));
    TORCH_CHECK(is_here || is_scalar,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(device),
                " and ", tensor.device(), "! (", facts.name, ")");
    TORCH_CHECK(tensor.layout() == at::kStrided, "the double has strided tensors only: ", facts.name);
}

at::Tensor snapshot(const at::Tensor &tensor)
{
    at::Tensor copy = tensor.clone();
    copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
}

void Call::add(const IValue &argument, bool is_written, c10::DeviceIndex device)
{
    static const at::Tensor place =
        at::detail::empty_cpu({0}, at::kByte, std::nullopt, at::kCPU, std::nullopt, std::nullopt);
    if (argument.isDevice()) {
        arguments_.emplace_back(c10::Device(c10::kCPU));
        return;
    }
    arguments_.push_back(map_tensors(argument, [&](const at::Tensor &one) {
        check_place(facts_, one, is_written, device);
        if (one.is_cuda()) {
            views_.push_back(view_of(one, is_written, ranges));
        } else {
            views_.emplace_back();
            views_.back().on_host = snapshot(one);
        }
        return place;
    }));
}

void Call::take(const Stack &arguments, c10::DeviceIndex device)
{
    arguments_.clear();
    views_.clear();
    ranges.clear();
    for (size_t i = 0; i < arguments.size(); i++) {
        add(arguments[i], facts_.writes[i], device);
    }
}

void Call::draw(const Stack &arguments, c10::DeviceIndex device)
{
    if (!facts_.generator.has_value() && !facts_.program.is_random) {
        return;
    }
    int64_t numel = 0;
    for (const IValue &argument : arguments) {
        each_tensor(argument, [&](const at::Tensor &one) { numel = std::max(numel, one.numel()); });
    }
    std::optional<at::Generator> given;
    if (facts_.generator.has_value() && arguments[*facts_.generator].isGenerator()) {
        given = arguments[*facts_.generator].toGenerator();
    }
    philox_ = take_random(given, device, numel);
}

Stack Call::arguments_over(unsigned char *const *memories) const
{
    Stack stack;
    size_t next = 0;
    for (const IValue &argument : arguments_) {
        stack.push_back(map_tensors(argument, [&](const at::Tensor &) { return views_[next++].over(memories); }));
    }
    return stack;
}

Stack Call::call(Stack stack) const
{
    std::optional<at::Generator> numbers = generator();
    if (facts_.program.run != nullptr) {
        facts_.program.run(stack, numbers);
        return stack;
    }
    if (facts_.generator.has_value()) {
        stack[*facts_.generator] = *numbers;
    }
    op_.callBoxed(stack);
    return stack;
}

Stack Call::compute(unsigned char *const *memories) const
{
    return call(arguments_over(memories));
}

std::optional<Stack> Call::rehearse(std::vector<at::Tensor> &written) const
{
    c10::impl::ExcludeDispatchKeyGuard plain(
        c10::autocast_dispatch_keyset | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::DispatchKeySet(c10::DispatchKey::Python) | c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot));
    std::vector<unsigned char *> zeros;
    std::vector<std::unique_ptr<void, decltype(&std::free)>> owners;
    for (const cuda_double_range &range : ranges) {
        owners.emplace_back(std::calloc(range.bytes, 1), &std::free);
        zeros.push_back(static_cast<unsigned char *>(owners.back().get()));
    }
    try {
        Stack stack = arguments_over(zeros.data());
        for (size_t i = 0; i < stack.size(); i++) {
            if (facts_.writes[i]) {
                each_tensor(stack[i], [&](const at::Tensor &one) { written.push_back(one); });
            }
        }
        return call(std::move(stack));
    } catch (const c10::Error &) {
        written.clear();
        return std::nullopt; /* zeros or a mistake of the caller: the real values will tell */
    }
}

void Call::append_key(std::string &key, const IValue &argument, size_t index) const
{
    if (argument.isGenerator() || argument.isNone() || facts_.generator == index) {
        key += "-";
    } else if (argument.isTensor() || argument.isTensorList() || argument.isOptionalTensorList()) {
        each_tensor(argument, [&](const at::Tensor &) { key += "t"; });
    } else {
        key += c10::str(argument);
    }
    key += ";";
}

std::string Call::key() const
{
    std::string key = c10::str(op_.operator_name()) + ";";
    for (size_t i = 0; i < arguments_.size(); i++) {
        append_key(key, arguments_[i], i);
    }
    for (const View &view : views_) {
        const at::Tensor &host = view.on_host;
        key += host.defined()
                   ? c10::str("h", host.scalar_type(), host.sizes(), host.unsafeGetTensorImpl()->is_wrapped_number())
                   : c10::str(view.dtype, c10::IntArrayRef(view.sizes), c10::IntArrayRef(view.strides), view.is_conj,
                              view.is_neg);
    }
    return key;
}

void store(const at::Tensor &value, const View &view, unsigned char *const *memories, const std::string &name)
{
    TORCH_CHECK(value.scalar_type() == view.dtype && value.sizes() == c10::IntArrayRef(view.sizes), name,
                " returned something else than in its rehearsal");
    view.over(memories).copy_(value);
}

void Call::run(unsigned char *const *memories)
{
    Stack values = compute(memories);
    if (keeps) {
        kept = std::move(values);
        return;
    }
    size_t next = 0;
    for (size_t i = 0; i < values.size(); i++) {
        if (facts_.returned[i] >= 0) {
            continue;
        }
        auto store_next = [&](const at::Tensor &value) {
            store(value, *results[next++], memories, facts_.name);
            return value;
        };
        map_tensors(values[i], store_next);
    }
}

/* ---- a call's results ------------------------------------------------------------------ */

struct Shape {
    c10::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
};

Shape shape_of(const at::Tensor &tensor)
{
    return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

struct Learned {
    Stack values;                /* tensors in them are placeholders for `made` */
    std::vector<Shape> made;     /* the new tensors, in order */
    std::vector<Shape> written;  /* the written arguments afterwards, in order */
};

std::shared_ptr<const Learned> learn(const Call &call, const Facts &facts)
{
    static std::mutex lock;
    static std::unordered_map<std::string, std::shared_ptr<const Learned>> all;
    std::string key = call.key();
    {
        std::lock_guard<std::mutex> hold(lock);
        auto found = all.find(key);
        if (found != all.end()) {
            return found->second;
        }
    }
    std::vector<at::Tensor> written;
    std::optional<Stack> values = call.rehearse(written);
    std::shared_ptr<Learned> learned;
    if (values.has_value()) {
        learned = std::make_shared<Learned>();
        for (size_t i = 0; i < values->size(); i++) {
            learned->values.push_back(
                facts.returned[i] >= 0 ? IValue() : map_tensors((*values)[i], [&](const at::Tensor &one) {
                    learned->made.push_back(shape_of(one));
                    return at::Tensor(at::detail::empty_cpu({0}, one.scalar_type(), std::nullopt, at::kCPU,
                                                            std::nullopt, std::nullopt));
                }));
        }
        for (const at::Tensor &one : written) {
            learned->written.push_back(shape_of(one));
        }
    }
    std::lock_guard<std::mutex> hold(lock);
    return all.emplace(key, learned).first->second;
}

/* Resizes `out=` arguments as the operator does. True if it resized any. */
bool resize_written(const Facts &facts, const Learned &learned, Stack &arguments)
{
    size_t next = 0;
    bool has_resized = false;
    for (size_t i = 0; i < arguments.size(); i++) {
        if (!facts.writes[i] || next >= learned.written.size()) {
            continue;
        }
        each_tensor(arguments[i], [&](const at::Tensor &one) {
            const Shape &shape = learned.written[next++];
            if (one.sizes() != c10::IntArrayRef(shape.sizes)) {
                resize_on_device(one, shape.sizes, std::nullopt);
                one.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
                has_resized = true;
            }
        });
    }
    return has_resized;
}

/* Makes the operator's results on the device, unfilled, and tells the call where they are. */
Stack make_results(const Facts &facts, const Learned &learned, const Stack &arguments, c10::DeviceIndex device,
                   Call &call)
{
    Stack results;
    size_t next = 0;
    for (size_t i = 0; i < facts.returned.size(); i++) {
        if (facts.returned[i] >= 0) {
            results.push_back(arguments[facts.returned[i]]);
            continue;
        }
        results.push_back(map_tensors(learned.values[i], [&](const at::Tensor &) {
            const Shape &shape = learned.made[next++];
            at::Tensor made = empty_strided_on(device, shape.sizes, shape.strides, shape.dtype);
            call.results.emplace_back(view_of(made, true, call.ranges));
            return made;
        }));
    }
    return results;
}

/* Copies values that were computed on the stream from the host to the device. */
class Fill final : public Work
{
  public:
    Fill(View view, at::Tensor value) : view_(std::move(view)), value_(std::move(value))
    {
    }
    void run(unsigned char *const *memories) override
    {
        view_.over(memories).copy_(value_);
    }
    std::string name() const override
    {
        return "fill";
    }

  private:
    View view_;
    at::Tensor value_;
};

at::Tensor to_device(const at::Tensor &value, c10::DeviceIndex device)
{
    std::vector<cuda_double_range> ranges;
    at::Tensor made = empty_strided_on(device, value.sizes(), value.strides(), value.scalar_type());
    View view = view_of(made, true, ranges);
    launch_kernel(current_stream(device), ranges, std::make_shared<Fill>(view, value));
    return made;
}

/* The host waits for the results; only then are their shapes known. */
Stack call_and_wait(const Facts &facts, const std::shared_ptr<Call> &call, const Stack &arguments,
                    c10::DeviceIndex device)
{
    call->keeps = true;
    launch_kernel(current_stream(device), call->ranges, call);
    synchronize(current_stream(device));
    TORCH_CHECK(call->kept.has_value(), facts.name, " didn't run: the device is broken");
    Stack results;
    for (size_t i = 0; i < call->kept->size(); i++) {
        results.push_back(facts.returned[i] >= 0 ? arguments[facts.returned[i]]
                                                 : map_tensors((*call->kept)[i], [&](const at::Tensor &one) {
                                                       return to_device(one, device);
                                                   }));
    }
    return results;
}

c10::DeviceIndex device_of(const Stack &arguments)
{
    c10::DeviceIndex device = -1;
    for (const IValue &argument : arguments) {
        each_tensor(argument,
                    [&](const at::Tensor &one) { device = device < 0 && one.is_cuda() ? one.get_device() : device; });
        if (device < 0 && argument.isDevice() && argument.toDevice().is_cuda() && argument.toDevice().has_index()) {
            device = argument.toDevice().index();
        }
    }
    return device < 0 ? current_device() : device;
}

void run_operator(const c10::OperatorHandle &op, Stack *stack)
{
    const Facts &facts = known_facts(op);
    Stack arguments = torch::jit::pop(*stack, facts.writes.size());
    c10::DeviceIndex device = device_of(arguments);
    c10::DeviceGuard guard(c10::Device(c10::kCUDA, device));
    auto call = std::make_shared<Call>(op, facts);
    call->draw(arguments, device);
    call->take(arguments, device);
    std::shared_ptr<const Learned> learned;
    bool waits = facts.must_wait || is_index_with_masks(facts, arguments);
    if (!waits && !facts.is_in_place) {
        learned = learn(*call, facts);
        waits = learned == nullptr;
    }
    Stack results;
    if (waits) {
        results = call_and_wait(facts, call, arguments, device);
    } else {
        if (learned != nullptr && resize_written(facts, *learned, arguments)) {
            call->take(arguments, device);
        }
        results = make_results(facts, learned != nullptr ? *learned : Learned{}, arguments, device, *call);
        launch_kernel(current_stream(device), call->ranges, call);
    }
    for (IValue &result : results) {
        stack->push_back(std::move(result));
    }
}

/* A CUDA build has kernels for these operators. Without one torch would decompose them. (A CUDA build also
 * decomposes convolutions, but into stubs that only it has.) */
TORCH_LIBRARY_IMPL(aten, CUDA, library)
{
    for (const char *name :
         {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "silu_backward",
          "mish_backward", "_stack", "_stack.out", "any.dims", "any.dims_out", "all.dims", "all.dims_out"}) {
        library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_operator>());
    }
}

TORCH_LIBRARY_IMPL(_, CUDA, library)
{
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_operator>());
}

} // namespace

at::Tensor View::over(unsigned char *const *memories) const
{
    if (on_host.defined()) {
        return on_host;
    }
    alignas(16) static unsigned char nothing[16];
    at::Tensor tensor = at::for_blob(range >= 0 ? memories[range] : nothing, sizes)
                            .strides(strides)
                            .options(at::TensorOptions().dtype(dtype).device(at::kCPU))
                            .allocator(c10::GetAllocator(c10::kCPU))
                            .resizeable_storage()
                            .make_tensor();
    tensor = is_conj ? at::_conj(tensor) : tensor;
    return is_neg ? at::_neg_view(tensor) : tensor;
}

View view_of(const at::Tensor &tensor, bool is_written, std::vector<cuda_double_range> &ranges)
{
    View view{tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), tensor.is_conj(), tensor.is_neg()};
    if (tensor.numel() == 0) {
        return view;
    }
    size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
    size_t before = tensor.storage_offset() * tensor.itemsize();
    TORCH_CHECK(before + bytes <= tensor.storage().nbytes(), "a tensor of ", bytes,
                " bytes lies outside its storage of ", tensor.storage().nbytes());
    view.range = static_cast<int>(ranges.size());
    const char *begin = static_cast<const char *>(tensor.storage().data()) + before;
    ranges.push_back({reinterpret_cast<unsigned long long>(begin), bytes, is_written});
    return view;
}

at::Tensor empty_strided_on(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                            c10::ScalarType dtype)
{
    c10::DeviceGuard guard(c10::Device(c10::kCUDA, device));
    return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &device_allocator(),
                                                        c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype));
}

} // namespace torch_double
