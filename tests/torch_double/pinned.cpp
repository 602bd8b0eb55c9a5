/*
 * Pinned host memory: registered with the driver and cached. As in torch's caching host allocator, memory
 * is reused only after the host has seen the end of every copy that used it.
 */
#include <c10/util/Exception.h>

#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "internal.h"

extern "C" {
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *memory);
}

namespace torch_double
{

namespace
{

constexpr size_t page_bytes = 4096;

struct Piece {
    char *begin;
    size_t bytes;
    std::set<std::pair<c10::DeviceIndex, c10::StreamId>> users;
};

struct Pending {
    Piece piece;
    std::vector<std::unique_ptr<Mark>> marks;
};

class Allocator final : public c10::Allocator
{
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        void *memory = bytes > 0 ? take(bytes) : nullptr;
        return {memory, memory, &give, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &give;
    }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }
    /* The piece that holds the address; nullptr if this allocator didn't pin it. */
    Piece *find(const void *memory)
    {
        auto above = used_.upper_bound(memory);
        if (above == used_.begin()) {
            return nullptr;
        }
        Piece &below = std::prev(above)->second;
        return static_cast<const char *>(memory) < below.begin + below.bytes ? &below : nullptr;
    }
    /* Memory that the caller has registered and will free. */
    void adopt(void *memory, size_t bytes)
    {
        used_[memory] = Piece{static_cast<char *>(memory), bytes, {}};
    }
    void forget(void *memory)
    {
        used_.erase(memory);
    }
    std::mutex lock;

  private:
    static void give(void *memory);
    void *take(size_t requested);
    void poll();

    std::map<const void *, Piece> used_;
    std::multimap<size_t, Piece> free_;
    std::list<Pending> pending_;
};

Allocator &the_allocator()
{
    static Allocator *one = new Allocator;
    return *one;
}

/* Rounds to powers of two, as torch does. */
size_t rounded(size_t bytes)
{
    size_t result = page_bytes;
    while (result < bytes) {
        result *= 2;
    }
    return result;
}

Piece new_piece(size_t bytes)
{
    Piece made{static_cast<char *>(std::aligned_alloc(page_bytes, bytes)), bytes, {}};
    TORCH_CHECK_WITH(OutOfMemoryError, made.begin != nullptr, "no host memory for ", bytes, " pinned bytes");
    Context context(0);
    int result = cuMemHostRegister_v2(made.begin, bytes, 0);
    if (result != 0) {
        std::free(made.begin);
    }
    check(result, "cuMemHostRegister");
    return made;
}

void *Allocator::take(size_t requested)
{
    std::lock_guard<std::mutex> hold(lock);
    size_t bytes = rounded(requested);
    poll();
    auto found = free_.find(bytes);
    Piece piece = found != free_.end() ? found->second : new_piece(bytes);
    if (found != free_.end()) {
        free_.erase(found);
    }
    used_[piece.begin] = piece;
    return piece.begin;
}

void Allocator::give(void *memory)
{
    if (memory == nullptr) {
        return;
    }
    Allocator &self = the_allocator();
    std::lock_guard<std::mutex> hold(self.lock);
    Pending freed{self.used_.at(memory), {}};
    self.used_.erase(memory);
    for (auto [device, id] : freed.piece.users) {
        c10::Stream stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
        freed.marks.push_back(std::make_unique<Mark>(stream));
    }
    freed.piece.users.clear();
    self.pending_.push_back(std::move(freed));
}

void Allocator::poll()
{
    for (auto one = pending_.begin(); one != pending_.end();) {
        bool is_over = true;
        for (const auto &mark : one->marks) {
            is_over = is_over && mark->is_reached();
        }
        if (is_over) {
            free_.emplace(one->piece.bytes, one->piece);
        }
        one = is_over ? pending_.erase(one) : std::next(one);
    }
}

} // namespace

c10::Allocator &pinned_allocator()
{
    return the_allocator();
}

bool is_pinned(const void *memory)
{
    std::lock_guard<std::mutex> hold(the_allocator().lock);
    return the_allocator().find(memory) != nullptr;
}

/* What cudaHostRegister and cudaHostUnregister do. */
TORCH_DOUBLE_EXPORT int torch_double_host_register(void *memory, size_t bytes, unsigned flags)
{
    Context context(0);
    int result = cuMemHostRegister_v2(memory, bytes, flags);
    std::lock_guard<std::mutex> hold(the_allocator().lock);
    if (result == 0) {
        the_allocator().adopt(memory, bytes);
    }
    return keep_error(result);
}

TORCH_DOUBLE_EXPORT int torch_double_host_unregister(void *memory)
{
    {
        std::lock_guard<std::mutex> hold(the_allocator().lock);
        the_allocator().forget(memory);
    }
    Context context(0);
    return keep_error(cuMemHostUnregister(memory));
}

void pinned_used_on(const void *memory, const c10::Stream &stream)
{
    std::lock_guard<std::mutex> hold(the_allocator().lock);
    Piece *piece = the_allocator().find(memory);
    if (piece != nullptr) {
        piece->users.insert({stream.device_index(), stream.id()});
    }
}

} // namespace torch_double
