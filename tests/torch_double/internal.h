/*
 * internal.h - shared by the files of the double of torch's CUDA:
 *
 *   streams.cpp    devices, streams and events
 *   allocator.cpp  device memory
 *   pinned.cpp     registered host memory
 *   generator.cpp  random numbers
 *   work.cpp       puts work on streams
 *   operators.cpp  turns torch's operators into work
 *   copies.cpp     turns copies into work
 *   natives.cpp    operators that only make or view tensors
 *   programs.cpp   operators that CPU kernels can't stand for
 *   profiler.cpp   the events of torch.profiler
 *   hooks.cpp      registers all this with torch
 *
 * README.md lists what it models.
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

/* Makes a device's context current for the driver as long as this object lives. */
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
/* The host waits for the stream; raises the first failure of work that was not raised yet. */
void synchronize(const c10::Stream &stream);

/* The host waits for all streams of the device; raises no failure of their work. */
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
    void hold(const c10::Stream &stream) const; /* later work of that stream waits for this event */

  private:
    c10::DeviceIndex device_;
    void *event_ = nullptr;
};

/* ---- allocator.cpp, pinned.cpp ---- */

c10::DeviceAllocator &device_allocator();
void register_device_allocator();

c10::Allocator &pinned_allocator();
bool is_pinned(const void *memory);
/* A copy on `stream` uses the pinned memory: it is reused only after the copy's end. */
void pinned_used_on(const void *memory, const c10::Stream &stream);

/* ---- generator.cpp ---- */

/* Where an operator's random numbers begin; CUDA's kernels get the same two numbers. */
struct Philox {
    uint64_t seed = 0, offset = 0;
};

at::Generator new_generator(c10::DeviceIndex device);
const at::Generator &default_generator(c10::DeviceIndex device);
/* Reserves random numbers for `numel` elements, from `given` or else from the device's default generator. */
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

    int threads = 1; /* the host's number of threads when it queued this */
};

/* Puts work on a stream. Keeps no storage alive: as on a real device, memory may be freed meanwhile. */
void launch(const c10::Stream &stream, const std::vector<cuda_double_range> &ranges, std::shared_ptr<Work> work);
/* The same for a kernel. As after each of torch's launches, an error that the runtime still keeps for the calling thread
 * is raised, although the kernel runs: it may be an earlier call's. */
void launch_kernel(const c10::Stream &stream, const std::vector<cuda_double_range> &ranges, std::shared_ptr<Work> work);
/* Raises torch.AcceleratorError for the first failure of work that was not raised yet. */
void raise_failure();
/* Keeps the error of a call of the runtime, unless `result` is 0, until the calling thread asks for it. Returns it. */
int keep_error(int result);

/* ---- operators.cpp ---- */

/* A strided tensor; work turns it into a CPU tensor over the memory of its range. */
struct View {
    c10::ScalarType dtype = c10::ScalarType::Byte;
    std::vector<int64_t> sizes, strides;
    bool is_conj = false, is_neg = false;
    int range = -1;      /* index of the work's range; -1: no elements */
    at::Tensor on_host;  /* if defined: the value itself, a CPU tensor */

    at::Tensor over(unsigned char *const *memories) const;
};

/* The view of a device tensor; adds its range if it has elements. */
View view_of(const at::Tensor &tensor, bool is_written, std::vector<cuda_double_range> &ranges);
/* A device tensor with these sizes and strides, not filled. */
at::Tensor empty_strided_on(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                            c10::ScalarType dtype);

/* ---- natives.cpp ---- */

/* torch's resize_ of a device tensor; its storage keeps its contents. */
void resize_on_device(const at::Tensor &tensor, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format);

/* ---- programs.cpp ---- */

/* Replaces an operator that has no CPU kernel, or one whose CPU kernel takes no generator. */
using Program = void (*)(torch::jit::Stack &stack, const std::optional<at::Generator> &generator);
struct ProgramFacts {
    Program run = nullptr;
    bool is_random = false;
};
/* The program of the operator with this name ("aten::native_dropout"); run is nullptr if it has none. */
ProgramFacts program_of(const std::string &operator_name);

} // namespace torch_double

#endif
