/*
 * Random numbers of a device. The state is a seed and an offset, as in CUDA's generator. The host moves
 * the offset when it queues a kernel. The kernel's numbers are a function of both, drawn by torch's CPU
 * generator; so they differ from CUDA's, which uses Philox.
 */
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>

#include "internal.h"

namespace torch_double
{

namespace
{

constexpr uint64_t numbers_per_call = 4;      /* philox makes four at a time */
constexpr uint64_t threads_of_kernel = 65536; /* each takes its own calls */

class Generator final : public c10::GeneratorImpl
{
  public:
    explicit Generator(c10::DeviceIndex device)
        : GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA))
    {
    }
    void set_current_seed(uint64_t seed) override
    {
        philox_ = {seed, 0};
    }
    void set_offset(uint64_t offset) override
    {
        philox_.offset = offset;
    }
    uint64_t get_offset() const override
    {
        return philox_.offset;
    }
    uint64_t current_seed() const override
    {
        return philox_.seed;
    }
    uint64_t seed() override
    {
        set_current_seed(c10::detail::getNonDeterministicRandom(true));
        return philox_.seed;
    }
    /* 16 bytes: the seed, then the offset. */
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override
    {
        /* Bypasses the dispatcher: a FakeTensorMode must not make this tensor a fake. */
        at::TensorBase state = at::detail::empty_cpu({sizeof philox_}, at::kByte);
        std::memcpy(state.mutable_data_ptr(), &philox_, sizeof philox_);
        return state.getIntrusivePtr();
    }
    void set_state(const c10::TensorImpl &state) override
    {
        at::detail::check_rng_state(state);
        TORCH_CHECK(state.numel() == sizeof philox_, "RNG state is wrong size");
        std::memcpy(&philox_, state.data(), sizeof philox_);
    }
    Philox take(int64_t numel)
    {
        Philox first = philox_;
        uint64_t calls = (static_cast<uint64_t>(numel) + threads_of_kernel * numbers_per_call - 1) /
                         (threads_of_kernel * numbers_per_call);
        philox_.offset += numbers_per_call * std::max<uint64_t>(calls, 1);
        return first;
    }

  private:
    Generator *clone_impl() const override
    {
        auto *copy = new Generator(device().index());
        copy->philox_ = philox_;
        return copy;
    }
    Philox philox_{c10::default_rng_seed_val, 0};
};

/* torch.cuda.default_generators holds generators that Python creates. If this is set, the next one created
 * is the default generator of its device. */
bool next_is_default = false;

} // namespace

const at::Generator &default_generator(c10::DeviceIndex device)
{
    static std::array<at::Generator, device_count> all = {at::make_generator<Generator>(0),
                                                          at::make_generator<Generator>(1)};
    return all[device < 0 ? current_device() : device];
}

at::Generator new_generator(c10::DeviceIndex device)
{
    if (std::exchange(next_is_default, false)) {
        return default_generator(device);
    }
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
}

Philox take_random(const std::optional<at::Generator> &given, c10::DeviceIndex device, int64_t numel)
{
    at::Generator from = given.has_value() && given->defined() ? *given : default_generator(device);
    TORCH_CHECK(from.device().type() == c10::kCUDA, "Expected a 'cuda' device type for generator but found '",
                from.device().type(), "'");
    auto *impl = static_cast<Generator *>(from.unsafeGetGeneratorImpl());
    std::lock_guard<std::mutex> hold(impl->mutex_);
    return impl->take(numel);
}

at::Generator cpu_generator(const Philox &philox)
{
    /* The finaliser of SplitMix64 (Steele et al. 2014); the CPU's engine takes 32 bits. */
    uint64_t mixed = philox.seed * UINT64_C(0x9E3779B97F4A7C15) + philox.offset;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94D049BB133111EB);
    return at::detail::createCPUGenerator((mixed ^ (mixed >> 31)) >> 32);
}

/* Makes the next generator that torch creates the default generator of its device. */
TORCH_DOUBLE_EXPORT void torch_double_next_generator_is_default(void)
{
    next_is_default = true;
}

} // namespace torch_double
