/*
 * Answers the questions that torch asks of a CUDA build, and registers the double with torch.
 */
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "internal.h"

namespace torch_double
{

namespace
{

class Hooks final : public at::CUDAHooksInterface
{
  public:
    explicit Hooks(at::CUDAHooksArgs)
    {
    }
    void init() const override
    {
        Context opened(0);
    }
    bool hasCUDA() const override
    {
        return true;
    }
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
    c10::DeviceIndex deviceCount() const override
    {
        return device_count;
    }
    int getNumGPUs() const override
    {
        return device_count;
    }
    c10::DeviceIndex current_device() const override
    {
        return torch_double::current_device();
    }
    c10::DeviceIndex getCurrentDevice() const override
    {
        return torch_double::current_device();
    }
    void setCurrentDevice(c10::DeviceIndex device) const override
    {
        exchange_device(device);
    }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override
    {
        return device < 0 ? -1 : exchange_device(device);
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override
    {
        return device < 0 ? -1 : exchange_device(device);
    }
    void deviceSynchronize(c10::DeviceIndex device) const override
    {
        wait_for_device(device);
        raise_failure();
    }
    bool isPinnedPtr(const void *memory) const override
    {
        return is_pinned(memory);
    }
    c10::Allocator *getPinnedMemoryAllocator() const override
    {
        return &pinned_allocator();
    }
    c10::Allocator *getCUDADeviceAllocator() const override
    {
        return &device_allocator();
    }
    const at::Generator &getDefaultGenerator(c10::DeviceIndex device) const override
    {
        return default_generator(device);
    }
    at::Generator getNewGenerator(c10::DeviceIndex device) const override
    {
        return new_generator(device);
    }
};

const bool is_registered = [] {
    register_device_allocator();
    return true;
}();

} // namespace

} // namespace torch_double

namespace at
{
/* torch looks this name up when CUDA is first used: the double must be loaded before that. */
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, torch_double::Hooks)
} // namespace at

namespace c10d
{

/* DDP wants a timer for its device. It shows the host's times, as for the CPU. */
class DoubleTimer final : public Timer
{
  public:
    explicit DoubleTimer(c10::Device)
    {
    }
    std::optional<int64_t> measureDifference(Event start, Event end) override
    {
        const auto from = getTimestamp(start), to = getTimestamp(end);
        return from && to ? std::optional<int64_t>(*to - *from) : std::nullopt;
    }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, DoubleTimer)

} // namespace c10d
