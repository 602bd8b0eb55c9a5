/*
 * internal.h - the inside of the double of torch's CUDA: streams.cpp knows devices, streams and
 * events, allocator.cpp device memory, pinned.cpp host memory that is registered, generator.cpp
 * random numbers, work.cpp puts work on streams, operators.cpp makes work of torch's operators,
 * copies.cpp of copies, natives.cpp has the operators that only make or view tensors, and hooks.cpp
 * tells torch of all this. See README.md for what it models.
 */
#ifndef TORCH_DOUBLE_INTERNAL_H
#define TORCH_DOUBLE_INTERNAL_H

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

extern "C" {
#include "cuda_double.h"
}

#define TORCH_DOUBLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace torch_double
{

constexpr int device_count = 2;
constexpr int out_of_memory = 2; /* the driver's number */

/* ---- streams.cpp ---- */

/* Raises torch.AcceleratorError unless `result` is 0. */
void check(int result, const char *function);

/* Makes a device's context current for the driver while it lives. */
class Context
{
  public:
    explicit Context(c10::DeviceIndex device);
    ~Context();
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
};

c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
/* The driver's handle; nullptr for a default stream, so only within the Context of its device. */
void *handle_of(const c10::Stream &stream);
/* The host waits; raises what went wrong in work that the host has not heard of. */
void synchronize(const c10::Stream &stream);

/* The host waits for all streams of the device; raises nothing of their work. */
void wait_for_device(c10::DeviceIndex device);

/* An event without timing on the stream. */
class Mark
{
  public:
    explicit Mark(const c10::Stream &stream);
    ~Mark();
    Mark(const Mark &) = delete;
    Mark &operator=(const Mark &) = delete;
    bool is_reached() const;
    void synchronize() const;
    void hold(const c10::Stream &stream) const; /* what is queued on it later waits */

  private:
    c10::DeviceIndex device_;
    void *event_ = nullptr;
};

/* ---- allocator.cpp, pinned.cpp ---- */

c10::DeviceAllocator &device_allocator();
void register_device_allocator();

c10::Allocator &pinned_allocator();
bool is_pinned(const void *memory);
/* A copy on `stream` uses the pinned memory: it is not given out again before the copy's end. */
void pinned_used_on(const void *memory, const c10::Stream &stream);

/* ---- generator.cpp ---- */

/* Where an operator's random numbers begin, as CUDA's kernels are told. */
struct Philox {
    uint64_t seed = 0, offset = 0;
};

at::Generator new_generator(c10::DeviceIndex device);
const at::Generator &default_generator(c10::DeviceIndex device);
/* Takes the numbers of a kernel for `numel` elements; of the device's own generator if none is given. */
Philox take_random(const std::optional<at::Generator> &given, c10::DeviceIndex device, int64_t numel);
/* A generator for CPU kernels, a pure function of its argument. */
at::Generator cpu_generator(const Philox &philox);

/* ---- work.cpp ---- */

/* Runs on a stream's thread, where memories[i] stands for the ith range. */
class Work
{
  public:
    virtual ~Work() = default;
    virtual void run(unsigned char *const *memories) = 0;
    virtual std::string name() const = 0;

    int threads = 1; /* torch's number, which the host had when it queued this */
};

/* Puts work on a stream. Keeps no storage alive: as on a device, memory may be freed meanwhile. */
void launch(const c10::Stream &stream, const std::vector<cuda_double_range> &ranges, std::shared_ptr<Work> work);
/* Raises the first failure of work that was not raised yet, as torch.AcceleratorError. */
void raise_failure();

/* ---- operators.cpp ---- */

/* A strided tensor of which work makes a CPU tensor over the memory of its range. */
struct View {
    c10::ScalarType dtype = c10::ScalarType::Byte;
    std::vector<int64_t> sizes, strides;
    bool is_conj = false, is_neg = false;
    int range = -1;      /* of the work; -1: no elements */
    at::Tensor on_host;  /* defined: the value itself, of a CPU tensor */

    at::Tensor over(unsigned char *const *memories) const;
};

/* The view of a device tensor; adds its range where it has elements. */
View view_of(const at::Tensor &tensor, bool is_written, std::vector<cuda_double_range> &ranges);
/* A device tensor with these sizes and strides, not filled. */
at::Tensor empty_strided_on(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                            c10::ScalarType dtype);

/* ---- natives.cpp ---- */

/* torch's resize_ of a device tensor: what its storage has stays. */
void resize_on_device(const at::Tensor &tensor, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format);

/* ---- programs.cpp ---- */

/* What stands for an operator that CPU kernels don't have, or have without a generator. */
using Program = void (*)(torch::jit::Stack &stack, const std::optional<at::Generator> &generator);
struct ProgramFacts {
    Program run = nullptr;
    bool is_random = false;
};
/* Of the operator with this name ("aten::native_dropout"), or one with run == nullptr. */
ProgramFacts program_of(const std::string &operator_name);

} // namespace torch_double

#endif
