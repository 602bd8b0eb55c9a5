/*
 * Work on streams. The driver's double calls it on the stream's thread, in the stream's order.
 */
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "internal.h"

namespace torch_double
{

namespace
{

struct Queued {
    std::shared_ptr<Work> work;
};

thread_local int last_error = 0;         /* of the runtime: of its calls on this thread */
std::mutex lock;
std::string failure;                     /* a failure of work that was not raised yet */
std::vector<std::unique_ptr<Queued>> done; /* destroyed by a host's thread: work may hold Python objects */

/* torch's number of threads belongs to each thread, so a stream's thread must set its own. */
void take_threads(int wanted)
{
    thread_local int taken = 0;
    if (taken != wanted) {
        at::set_num_threads(wanted);
        taken = wanted;
    }
}

void run_queued(void *argument, unsigned char *const *memories)
{
    std::unique_ptr<Queued> queued(static_cast<Queued *>(argument));
    c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    take_threads(queued->work->threads);
    try {
        queued->work->run(memories);
    } catch (const std::exception &error) {
        std::lock_guard<std::mutex> hold(lock);
        if (failure.empty()) {
            failure = c10::str("CUDA error: asynchronous failure in ", queued->work->name(), ": ", error.what());
        }
    }
    std::lock_guard<std::mutex> hold(lock);
    done.push_back(std::move(queued));
}

void end_done()
{
    std::vector<std::unique_ptr<Queued>> ended;
    std::lock_guard<std::mutex> hold(lock);
    ended.swap(done);
}

} // namespace

void launch(const c10::Stream &stream, const std::vector<cuda_double_range> &ranges, std::shared_ptr<Work> work)
{
    end_done();
    work->threads = at::get_num_threads();
    auto queued = std::make_unique<Queued>(Queued{std::move(work)});
    Context context(stream.device_index());
    check(cuda_double_launch_ranges(handle_of(stream), ranges.data(), ranges.size(), run_queued, queued.get()),
          "launch");
    queued.release(); /* run_queued() owns it now */
}

int keep_error(int result)
{
    if (result != 0) {
        last_error = result;
    }
    return result;
}

/* What cudaGetLastError does. */
TORCH_DOUBLE_EXPORT int torch_double_last_error(void)
{
    return std::exchange(last_error, 0);
}

void launch_kernel(const c10::Stream &stream, const std::vector<cuda_double_range> &ranges, std::shared_ptr<Work> work)
{
    launch(stream, ranges, std::move(work));
    check(torch_double_last_error(), "a kernel's launch");
}

void raise_failure()
{
    std::unique_lock<std::mutex> hold(lock);
    if (!failure.empty()) {
        std::string text;
        text.swap(failure);
        hold.unlock();
        throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 710, text);
    }
}

} // namespace torch_double
