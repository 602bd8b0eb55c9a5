/*
 * Devices, streams and events of the double: torch's device guard over the driver's double.
 */
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>

#include "internal.h"

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuCtxSynchronize(void);
int cuStreamCreate(void **made, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuStreamQuery(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuEventCreate(void **made, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuEventQuery(void *event);
int cuEventSynchronize(void *event);
}

namespace torch_double
{

namespace
{

constexpr int not_ready = 600;
constexpr unsigned non_blocking = 1, without_timing = 2;
constexpr int streams_per_device = 8; /* torch has 32 per priority; here each takes a thread */

std::array<void *, device_count> contexts;
thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<c10::StreamId, device_count> stream_now = {};

void open_devices()
{
    static std::once_flag once;
    std::call_once(once, [] {
        check(cuInit(0), "cuInit");
        for (int device = 0; device < device_count; device++) {
            check(cuDevicePrimaryCtxRetain(&contexts[device], device), "cuDevicePrimaryCtxRetain");
        }
    });
}

c10::Stream stream_with(c10::DeviceIndex device, c10::StreamId id)
{
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
}

/* Streams live as long as the process, as torch's do. */
c10::Stream pooled_stream(c10::DeviceIndex device)
{
    static std::mutex lock;
    static std::array<std::vector<void *>, device_count> pools;
    static std::array<size_t, device_count> turns = {};
    std::lock_guard<std::mutex> hold(lock);
    std::vector<void *> &pool = pools[device];
    if (pool.size() < streams_per_device) {
        Context context(device);
        void *made = nullptr;
        check(cuStreamCreate(&made, non_blocking), "cuStreamCreate");
        pool.push_back(made);
        return stream_with(device, reinterpret_cast<c10::StreamId>(made));
    }
    return stream_with(device, reinterpret_cast<c10::StreamId>(pool[turns[device]++ % pool.size()]));
}

c10::DeviceIndex index_or_current(c10::Device device)
{
    return device.has_index() ? device.index() : current_device();
}

/* ---- events ------------------------------------------------------------------------- */

/* Notes the time at which the stream reaches the event. */
class Stamp final : public Work
{
  public:
    void run(unsigned char *const *) override
    {
        ns = std::chrono::steady_clock::now().time_since_epoch().count();
    }
    std::string name() const override
    {
        return "event";
    }
    std::atomic<int64_t> ns = 0;
};

struct Event {
    void *handle = nullptr;
    c10::DeviceIndex device = 0;
    std::shared_ptr<Stamp> stamp; /* with timing only */
};

Event *event_of(void *event)
{
    return static_cast<Event *>(event);
}

Event *new_event(c10::DeviceIndex device)
{
    auto made = std::make_unique<Event>();
    made->device = device;
    Context context(device);
    check(cuEventCreate(&made->handle, without_timing), "cuEventCreate");
    return made.release();
}

class Guard final : public c10::impl::DeviceGuardImplInterface
{
  public:
    c10::DeviceType type() const override
    {
        return c10::kCUDA;
    }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        return c10::Device(c10::kCUDA, exchange_device(device.index()));
    }
    c10::Device getDevice() const override
    {
        return c10::Device(c10::kCUDA, current_device());
    }
    void setDevice(c10::Device device) const override
    {
        exchange_device(device.index());
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        device_now = device.index();
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return device_count;
    }

    c10::Stream getStream(c10::Device device) const override
    {
        return current_stream(index_or_current(device));
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return stream_with(index_or_current(device), 0);
    }
    c10::Stream getNewStream(c10::Device device, int) const override
    {
        return pooled_stream(index_or_current(device));
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        return pooled_stream(index_or_current(device));
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        c10::Stream before = current_stream(stream.device_index());
        stream_now[stream.device_index()] = stream.id();
        return before;
    }
    void *getStreamNativeHandle(const c10::Stream stream) const override
    {
        return handle_of(stream);
    }
    bool queryStream(const c10::Stream &stream) const override
    {
        Context context(stream.device_index());
        int result = cuStreamQuery(handle_of(stream));
        TORCH_CHECK(result == 0 || result == not_ready, "cuStreamQuery failed with ", result);
        return result == 0;
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        synchronize(stream);
    }
    void synchronizeDevice(const c10::DeviceIndex device) const override
    {
        wait_for_device(device);
        raise_failure();
    }

    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex device,
                const c10::EventFlag flag) const override
    {
        TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of device ", int(device),
                    " can't be recorded on device ", int(stream.device_index()));
        if (*event == nullptr) {
            *event = new_event(stream.device_index());
        }
        if (flag == c10::EventFlag::BACKEND_DEFAULT) {
            event_of(*event)->stamp = std::make_shared<Stamp>();
            launch(stream, {}, event_of(*event)->stamp);
        }
        Context context(stream.device_index());
        check(cuEventRecord(event_of(*event)->handle, handle_of(stream)), "cuEventRecord");
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        if (event != nullptr) {
            Context context(stream.device_index());
            check(cuStreamWaitEvent(handle_of(stream), event_of(event)->handle, 0), "cuStreamWaitEvent");
        }
    }
    bool queryEvent(void *event) const override
    {
        if (event == nullptr) {
            return true;
        }
        Context context(event_of(event)->device);
        int result = cuEventQuery(event_of(event)->handle);
        TORCH_CHECK(result == 0 || result == not_ready, "cuEventQuery failed with ", result);
        return result == 0;
    }
    void synchronizeEvent(void *event) const override
    {
        if (event != nullptr) {
            Context context(event_of(event)->device);
            check(cuEventSynchronize(event_of(event)->handle), "cuEventSynchronize");
        }
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        if (event != nullptr) {
            Context context(event_of(event)->device);
            cuEventDestroy_v2(event_of(event)->handle);
            delete event_of(event);
        }
    }
    double elapsedTime(void *first, void *second, const c10::DeviceIndex) const override
    {
        TORCH_CHECK(first != nullptr && second != nullptr && event_of(first)->stamp != nullptr &&
                        event_of(second)->stamp != nullptr,
                    "Both events must be recorded, with timing, before calculating elapsed time.");
        TORCH_CHECK(queryEvent(first) && queryEvent(second), "device not ready");
        return static_cast<double>(event_of(second)->stamp->ns - event_of(first)->stamp->ns) * 1e-6;
    }

    void recordDataPtrOnStream(const c10::DataPtr &memory, const c10::Stream &stream) const override
    {
        device_allocator().recordStream(memory, stream);
    }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

} // namespace

void check(int result, const char *function)
{
    if (result != 0) {
        throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, result,
                                    c10::str("CUDA error: ", function, " failed with ", result));
    }
}

Context::Context(c10::DeviceIndex device)
{
    open_devices();
    check(cuCtxPushCurrent_v2(contexts[device]), "cuCtxPushCurrent");
}

Context::~Context()
{
    cuCtxPopCurrent_v2(nullptr);
}

c10::DeviceIndex current_device()
{
    return device_now;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device)
{
    TORCH_CHECK(device >= 0 && device < device_count, "CUDA error: invalid device ordinal");
    return std::exchange(device_now, device);
}

c10::Stream current_stream(c10::DeviceIndex device)
{
    return stream_with(device, stream_now[device]);
}

void *handle_of(const c10::Stream &stream)
{
    return reinterpret_cast<void *>(stream.id());
}

void synchronize(const c10::Stream &stream)
{
    {
        Context context(stream.device_index());
        check(cuStreamSynchronize(handle_of(stream)), "cuStreamSynchronize");
    }
    raise_failure();
}

void wait_for_device(c10::DeviceIndex device)
{
    Context context(device);
    check(cuCtxSynchronize(), "cuCtxSynchronize");
}

Mark::Mark(const c10::Stream &stream) : device_(stream.device_index())
{
    Context context(device_);
    check(cuEventCreate(&event_, without_timing), "cuEventCreate");
    check(cuEventRecord(event_, handle_of(stream)), "cuEventRecord");
}

Mark::~Mark()
{
    Context context(device_);
    cuEventDestroy_v2(event_);
}

bool Mark::is_reached() const
{
    Context context(device_);
    return cuEventQuery(event_) == 0;
}

void Mark::synchronize() const
{
    Context context(device_);
    check(cuEventSynchronize(event_), "cuEventSynchronize");
}

void Mark::hold(const c10::Stream &stream) const
{
    Context context(stream.device_index());
    check(cuStreamWaitEvent(handle_of(stream), event_, 0), "cuStreamWaitEvent");
}

} // namespace torch_double
