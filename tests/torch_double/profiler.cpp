/*
 * The events that torch.profiler records around operators, as torch does on GPUs whose own tracer it lacks. Without them,
 * each operator under the profiler raises and describes an error: 50 ms instead of microseconds.
 */
#include "internal.h"

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

namespace torch_double
{
namespace
{

using torch::profiler::impl::ProfilerVoidEventStub;

struct Profiled final : torch::profiler::impl::ProfilerStubs {
    void record(c10::DeviceIndex *device, ProfilerVoidEventStub *event, int64_t *cpu_ns) const override
    {
        const c10::DeviceIndex now = current_device();
        if (device != nullptr) {
            *device = now;
        }
        auto made = std::make_shared<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
        if (cpu_ns != nullptr) {
            *cpu_ns = c10::getTime();
        }
        made->record(current_stream(now));
        *event = std::move(made);
    }
    float elapsed(const ProfilerVoidEventStub *event, const ProfilerVoidEventStub *event2) const override
    {
        auto *first = static_cast<const c10::Event *>(event->get());
        auto *second = static_cast<const c10::Event *>(event2->get());
        first->synchronize();
        second->synchronize();
        return static_cast<float>(first->elapsedTime(*second) * 1e3); /* microseconds */
    }
    void mark(const char *) const override
    {
    }
    void rangePush(const char *) const override
    {
    }
    void rangePop() const override
    {
    }
    bool enabled() const override
    {
        return true;
    }
    void onEachDevice(std::function<void(int)> op) const override
    {
        for (int device = 0; device < device_count; ++device) {
            const c10::DeviceIndex before = exchange_device(static_cast<c10::DeviceIndex>(device));
            op(device);
            exchange_device(before);
        }
    }
    void synchronize() const override
    {
        wait_for_device(current_device());
    }
};

const bool is_registered = [] {
    static Profiled profiled;
    torch::profiler::impl::registerCUDAMethods(&profiled);
    return true;
}();

} // namespace
} // namespace torch_double
