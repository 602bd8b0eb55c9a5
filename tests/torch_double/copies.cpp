/*
 * Copies within a device, between devices, and between host and device, ordered as torch's CUDA orders
 * them. After a blocking copy the host waits for the stream. The driver's double copies pinned memory and
 * detects writes to it meanwhile; pageable memory is staged at once.
 */
#include <ATen/ExpandUtils.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "internal.h"

extern "C" {
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream);
}

namespace torch_double
{

namespace
{

class Copy final : public Work
{
  public:
    Copy(View to, View from) : to_(std::move(to)), from_(std::move(from))
    {
    }
    void run(unsigned char *const *memories) override
    {
        to_.over(memories).copy_(from_.over(memories));
    }
    std::string name() const override
    {
        return "copy_";
    }

  private:
    View to_, from_;
};

class Fetch final : public Work
{
  public:
    explicit Fetch(View from) : from_(std::move(from))
    {
    }
    void run(unsigned char *const *memories) override
    {
        value = from_.over(memories).clone();
    }
    std::string name() const override
    {
        return "copy_ to the host";
    }
    at::Tensor value;

  private:
    View from_;
};

/* True if the driver can copy it without a kernel. */
bool is_plain(const at::Tensor &to, const at::Tensor &from)
{
    return to.scalar_type() == from.scalar_type() && to.strides() == from.strides() &&
           to.is_non_overlapping_and_dense() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

void copy_on_device(const at::Tensor &to, const at::Tensor &from)
{
    std::vector<cuda_double_range> ranges;
    View target = view_of(to, true, ranges);
    View source = view_of(from, false, ranges);
    c10::Stream stream = current_stream(from.get_device()), other = current_stream(to.get_device());
    bool is_peer = to.get_device() != from.get_device();
    if (is_peer) {
        Mark(other).hold(stream); /* after all work that is already queued on `other` */
    }
    launch(stream, ranges, std::make_shared<Copy>(target, source));
    if (is_peer) {
        Mark(stream).hold(other);
    }
}

void copy_to_device(const at::Tensor &to, const at::Tensor &from, bool non_blocking)
{
    c10::Stream stream = current_stream(to.get_device());
    if (non_blocking && is_plain(to, from) && is_pinned(from.const_data_ptr())) {
        Context context(to.get_device());
        pinned_used_on(from.const_data_ptr(), stream);
        auto target = reinterpret_cast<unsigned long long>(to.mutable_data_ptr());
        check(cuMemcpyHtoDAsync_v2(target, from.const_data_ptr(), to.nbytes(), handle_of(stream)), "cuMemcpyHtoDAsync");
        return;
    }
    std::vector<cuda_double_range> ranges;
    View target = view_of(to, true, ranges), source;
    source.on_host = from.clone();
    launch(stream, ranges, std::make_shared<Copy>(target, source));
    if (!non_blocking) {
        synchronize(stream);
    }
}

void copy_to_host(const at::Tensor &to, const at::Tensor &from, bool non_blocking)
{
    c10::Stream stream = current_stream(from.get_device());
    if (non_blocking && is_plain(to, from) && is_pinned(to.const_data_ptr())) {
        Context context(from.get_device());
        pinned_used_on(to.const_data_ptr(), stream);
        auto source = reinterpret_cast<unsigned long long>(from.const_data_ptr());
        check(cuMemcpyDtoHAsync_v2(to.mutable_data_ptr(), source, to.nbytes(), handle_of(stream)), "cuMemcpyDtoHAsync");
        return;
    }
    std::vector<cuda_double_range> ranges;
    auto fetch = std::make_shared<Fetch>(view_of(from, false, ranges));
    launch(stream, ranges, fetch);
    synchronize(stream);
    TORCH_CHECK(fetch->value.defined(), "copy_ didn't run: the device is broken");
    to.copy_(fetch->value);
}

at::Tensor &copy(at::Tensor &to, const at::Tensor &given, bool non_blocking)
{
    at::Tensor from = given.sizes() == to.sizes() ? given : given.expand(to.sizes());
    if (to.is_same(from) || to.numel() == 0) {
        return to;
    }
    if (to.is_cuda() && from.is_cuda()) {
        copy_on_device(to, from);
    } else if (to.is_cuda()) {
        copy_to_device(to, from, non_blocking);
    } else {
        copy_to_host(to, from, non_blocking);
    }
    return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, library)
{
    library.impl("copy_", copy);
}

} // namespace

} // namespace torch_double
