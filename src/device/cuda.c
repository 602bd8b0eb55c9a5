/*
 * The row of the GPUs that torch calls "cuda", NVIDIA's and (ROCm) AMD's: torch's caching allocator, and the driver's
 * functions (libcuda.h) behind the signatures of ms__device_driver. The context is the primary one, which torch uses too.
 */
#include "base/units.h"
#include "device/kinds.h"
#include "device/libcuda.h"

/* torch's allocator allocates multiples of this; `allocated` counts them. */
enum { BLOCK_BYTES = 512 };

/*
 * Memory that operators take from the allocator beside their tensors, until a step is measured. All of it is
 * reserve: a workspace that an earlier product of the thread has taken is in the baseline.
 *   cuBLAS   8.1 MiB for each handle and stream (torch: 2 x 4 MiB + 8 x 16 KiB); forward and backward run on two
 *            threads with a handle each. From compute capability 9.0 on and on ROCm, whose GPUs have 9.0 or more, it
 *            is 32 MiB, and 128 MiB on AMD's gfx94x and gfx95x, which have 9.4 and 9.5.
 *   splits   a block above 1 MiB keeps a remainder below 1 MiB; a convolution, a product or an attention
 *            has up to eight blocks at once.
 *   cuDNN    the trace counts what a convolution's workspace is expected to take (src/trace/workspace.c). torch sets no
 *            limit: it takes the first engine that cuDNN's heuristics name, whatever workspace it asks for, and
 *            only CUDNN_CONV_WSCAP_DBG caps it. An H200 took up to 39 MB more than expected (ViT's patches, whose
 *            gradient is summed in parts).
 */
enum { MIB = 1 << 20, CUBLAS_BYTES = 8519680, LARGE_CUBLAS_BYTES = 32 * MIB, LARGEST_CUBLAS_BYTES = 128 * MIB };
enum { CONVOLUTIONS_BYTES = 48 * MIB };
enum { HANDLES = 2, SPLITS_BYTES = 8 * MIB, PRIOR_BYTES = HANDLES * CUBLAS_BYTES + SPLITS_BYTES };
enum { LARGE_COMPUTE_MAJOR = 9 };

static uint64_t cuda_more_scratch(const ms_gpu *gpu)
{
    if (gpu == NULL) {
        return 0;
    }
    bool is_largest = gpu->compute_major == 9 && (gpu->compute_minor == 4 || gpu->compute_minor == 5);
    uint64_t bytes = is_largest                                  ? LARGEST_CUBLAS_BYTES
                     : gpu->compute_major >= LARGE_COMPUTE_MAJOR ? LARGE_CUBLAS_BYTES
                                                                 : CUBLAS_BYTES;
    return HANDLES * (bytes - CUBLAS_BYTES);
}

static const ms__device_conflict conflicts[] = {
    {"PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "its pool can't be counted as the plan counts"},
    {"PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", "its pool can't be counted as the plan counts"},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "", "every CUDA block is returned at once: steps are slow"},
    {"CUDA_LAUNCH_BLOCKING", "1", "no transfer overlaps compute while it is set"},
};

static uint64_t cuda_rounded(uint64_t bytes)
{
    return ms__align_up(bytes, BLOCK_BYTES);
}

static bool cuda_has_driver(void)
{
    const ms__libcuda *cuda;
    return ms__libcuda_get(&cuda, NULL) == MS_OK;
}

static const char *cuda_means(int failure)
{
    static const struct {
        int failure;
        const char *means;
    } rows[] = {
        {2, ": out of memory"},
        {3, ": not initialised; a forked child can't use its parent's driver"},
        {35, ": the driver is too old"},
        {46, ": another process has it in exclusive mode, or it is busy"},
        {100, ": no device is visible"},
        {101, ": no such device"},
        {214, ": its memory has an uncorrectable error"},
        {700, ": a kernel used an illegal address; the device is lost to this process"},
        {719, ": a kernel failed; the device is lost to this process"},
        {803, ": the driver's library and its kernel module have different versions"},
        {804, ": the driver is too old, and its compatible library doesn't support the device"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].failure == failure) {
            return rows[i].means;
        }
    }
    return "";
}

static int cuda_usable(ms_error *err)
{
    const ms__libcuda *cuda;
    int count = 0;
    int rc = ms__libcuda_get(&cuda, err);
    if (rc != MS_OK) {
        return rc;
    }
    int failure = ms__fault(MS_FAULT_DRIVER, NULL) ? MS__DEVICE_UNKNOWN : cuda->init(0);
    failure = failure != 0 ? failure : cuda->device_get_count(&count);
    if (failure != 0 || count == 0) {
        failure = failure != 0 ? failure : 100;
        return ms_fail(err, MS_ENOTSUP, "the driver gives no device (driver error %d%s)", failure, cuda_means(failure));
    }
    return MS_OK;
}

/* ---- the driver ------------------------------------------------------------- */

static const ms__libcuda *functions_of(const ms__device *device)
{
    return device->functions;
}

static bool is_refused_by_test(void)
{
    return ms__fault(MS_FAULT_DRIVER, NULL);
}

static int cuda_open(ms__device *device, ms_error *err)
{
    const ms__libcuda *cuda = NULL;
    int rc = ms__libcuda_get(&cuda, err);
    if (rc != MS_OK) {
        return rc;
    }
    int failure = is_refused_by_test() ? MS__DEVICE_UNKNOWN : cuda->init(0);
    if (failure == 0) {
        failure = is_refused_by_test() ? MS__DEVICE_UNKNOWN : cuda->device_get(&device->handle, (int)device->number);
    }
    if (failure != 0) {
        return ms__device_fail(device, failure, "no such device", err);
    }
    failure =
        is_refused_by_test() ? MS__DEVICE_UNKNOWN : cuda->primary_context_retain(&device->context, device->handle);
    device->functions = cuda;
    return failure != 0 ? ms__device_fail(device, failure, "no context", err) : MS_OK;
}

static void cuda_close(ms__device *device)
{
    (void)functions_of(device)->primary_context_release(device->handle);
}

static int cuda_enter(const ms__device *device)
{
    return functions_of(device)->context_push(device->context);
}

static void cuda_leave(const ms__device *device)
{
    ms__cu_context popped;
    (void)functions_of(device)->context_pop(&popped);
}

static int cuda_copy_engines(const ms__device *device, int *count)
{
    return functions_of(device)->device_get_attribute(count, MS__CU_ATTRIBUTE_COPY_ENGINES, device->handle);
}

static int cuda_stream_open(const ms__device *device, void **stream)
{
    return functions_of(device)->stream_create(stream, MS__CU_STREAM_NON_BLOCKING);
}

static int cuda_stream_close(const ms__device *device, void *stream)
{
    return functions_of(device)->stream_destroy(stream);
}

static int cuda_stream_synchronize(const ms__device *device, void *stream)
{
    return functions_of(device)->stream_synchronize(stream);
}

static int cuda_stream_wait(const ms__device *device, void *stream, void *event)
{
    return functions_of(device)->stream_wait_event(stream, event, 0);
}

static int cuda_event_open(const ms__device *device, void **event)
{
    return functions_of(device)->event_create(event, MS__CU_EVENT_BLOCKING_SYNC | MS__CU_EVENT_DISABLE_TIMING);
}

static int cuda_event_close(const ms__device *device, void *event)
{
    return functions_of(device)->event_destroy(event);
}

static int cuda_event_record(const ms__device *device, void *event, void *stream)
{
    return functions_of(device)->event_record(event, stream);
}

static int cuda_event_synchronize(const ms__device *device, void *event)
{
    return functions_of(device)->event_synchronize(event);
}

static int cuda_event_query(const ms__device *device, void *event, bool *has_ended)
{
    ms__cu_result result = functions_of(device)->event_query(event);
    *has_ended = result != MS__CU_NOT_READY;
    return *has_ended ? (int)result : 0;
}

static int cuda_copy_to_host(const ms__device *device, void *to, uintptr_t from, uint64_t bytes, void *stream)
{
    return functions_of(device)->copy_to_host(to, from, bytes, stream);
}

static int cuda_copy_to_device(const ms__device *device, uintptr_t to, const void *from, uint64_t bytes, void *stream)
{
    return functions_of(device)->copy_to_device(to, from, bytes, stream);
}

static int cuda_pin(const ms__device *device, void *memory, uint64_t bytes)
{
    return functions_of(device)->host_register(memory, bytes, MS__CU_MEMHOSTREGISTER_PORTABLE);
}

static int cuda_unpin(const ms__device *device, void *memory)
{
    return functions_of(device)->host_unregister(memory);
}

static const ms__device_driver driver = {
    .open = cuda_open,
    .close = cuda_close,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .copy_engines = cuda_copy_engines,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_synchronize = cuda_stream_synchronize,
    .stream_wait = cuda_stream_wait,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_synchronize = cuda_event_synchronize,
    .event_query = cuda_event_query,
    .copy_to_host = cuda_copy_to_host,
    .copy_to_device = cuda_copy_to_device,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
};

const ms__device_kind ms__device_cuda = {
    .id = MS_DEVICE_CUDA,
    .name = "cuda",
    .label = "GPU",
    .api = "CUDA",
    .host_is_device = false,
    .rounded = cuda_rounded,
    .default_flops_per_s = UINT64_C(10000000000000),
    .default_memory_bytes_per_s = UINT64_C(400000000000),
    .default_link_bytes_per_s = UINT64_C(12000000000), /* PCIe 3.0 x16 */
    .runtime_bytes = CUBLAS_BYTES,
    .scratch = {.prior_bytes = PRIOR_BYTES, .convolutions_bytes = CONVOLUTIONS_BYTES}, /* measured steps correct it */
    .more_scratch = cuda_more_scratch,
    .probe = ms__cuda_probe,
    .has_driver = cuda_has_driver,
    .usable = cuda_usable,
    .means = cuda_means,
    .no_driver = "no CUDA or ROCm driver: training runs on the CPU",
    .no_device = "the driver is there but shows no GPU",
    .no_device_advice = "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or rocm-smi and HIP_VISIBLE_DEVICES",
    .conflicts = conflicts,
    .conflict_count = sizeof conflicts / sizeof conflicts[0],
    .torch_module = "torch.cuda",
    .torch_raw_stream = "_cuda_getCurrentRawStream",
    .driver = &driver,
};
