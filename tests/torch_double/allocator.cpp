/*
 * Device memory, cached as torch caches it. Requests are rounded to 512 B and cut from segments of 2 MB
 * (requests up to 1 MB), 20 MB (below 10 MB) or a multiple of 2 MB. The best fit is taken among the blocks
 * of the same stream; freed neighbours are joined. Memory that another stream has used waits for that
 * stream's event. Sizes: PyTorch's CUDACachingAllocator (c10/core/AllocatorConfig.h) without settings.
 */
#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "internal.h"

extern "C" {
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
int cuMemFree_v2(unsigned long long pointer);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
}

namespace torch_double
{

namespace
{

using Stats = c10::CachingDeviceAllocator::DeviceStats;
using StatArray = c10::CachingAllocator::StatArray;
using StatType = c10::CachingAllocator::StatType;

constexpr size_t round_bytes = 512;
constexpr size_t small_most = 1048576;       /* the largest request of the small pool */
constexpr size_t small_segment = 2097152;    /* segments of the small pool */
constexpr size_t large_segment = 20971520;   /* segments for requests of 1 to 10 MB */
constexpr size_t large_least = 10485760;     /* requests from this size on get their own segment */
constexpr size_t segment_round = 2097152;    /* ... rounded up to a multiple of this */

struct Block {
    c10::DeviceIndex device;
    c10::StreamId stream;
    char *begin;
    size_t bytes;
    bool is_small;
    size_t requested = 0;
    bool is_allocated = false;
    Block *before = nullptr, *after = nullptr; /* neighbours in its segment */
    std::set<c10::StreamId> users;             /* other streams that use it */
    int awaited = 0;                           /* unfinished marks on those streams */
};

struct BySize {
    bool operator()(const Block *a, const Block *b) const
    {
        return std::tie(a->stream, a->bytes, a->begin) < std::tie(b->stream, b->bytes, b->begin);
    }
};

using Pool = std::set<Block *, BySize>;

struct Pending {
    std::unique_ptr<Mark> mark;
    Block *block;
};

struct Device {
    Stats stats;
    Pool free_small, free_large;
    std::list<Pending> pending;
};

size_t rounded(size_t bytes)
{
    return bytes < round_bytes ? round_bytes : (bytes + round_bytes - 1) / round_bytes * round_bytes;
}

size_t segment_bytes(size_t bytes)
{
    if (bytes <= small_most) {
        return small_segment;
    }
    return bytes < large_least ? large_segment : (bytes + segment_round - 1) / segment_round * segment_round;
}

void count(StatArray &stats, const Block &block, int64_t amount)
{
    for (StatType type : {StatType::AGGREGATE, block.is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
        auto &stat = stats[static_cast<size_t>(type)];
        amount >= 0 ? stat.increase(amount) : stat.decrease(-amount);
    }
}

bool is_split(const Block &block)
{
    return block.before != nullptr || block.after != nullptr;
}

template <class Function> void for_each_array(Stats &stats, Function function)
{
    for (StatArray *array :
         {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
          &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
        for (auto &stat : *array) {
            function(stat);
        }
    }
}

class Allocator final : public c10::DeviceAllocator
{
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        c10::DeviceIndex device = current_device();
        void *memory = bytes > 0 ? take(device, bytes) : nullptr;
        return {memory, memory, &give, c10::Device(c10::kCUDA, device)};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &give;
    }
    void copy_data(void *to, const void *from, size_t bytes) const override;

    bool initialized() override
    {
        return true;
    }
    void emptyCache(c10::MempoolId_t) override
    {
        std::lock_guard<std::mutex> hold(lock_);
        for (c10::DeviceIndex device = 0; device < device_count; device++) {
            release_cached(device);
        }
    }
    void recordStream(const c10::DataPtr &memory, c10::Stream stream) override
    {
        std::lock_guard<std::mutex> hold(lock_);
        auto found = allocated_.find(memory.get());
        if (found != allocated_.end() && found->second->stream != stream.id()) {
            found->second->users.insert(stream.id());
        }
    }
    Stats getDeviceStats(c10::DeviceIndex device) override
    {
        std::lock_guard<std::mutex> hold(lock_);
        return devices_[device].stats;
    }
    void resetAccumulatedStats(c10::DeviceIndex device) override
    {
        std::lock_guard<std::mutex> hold(lock_);
        Stats &stats = devices_[device].stats;
        for_each_array(stats, [](auto &stat) { stat.reset_accumulated(); });
        stats.num_alloc_retries = stats.num_ooms = 0;
    }
    void resetPeakStats(c10::DeviceIndex device) override
    {
        std::lock_guard<std::mutex> hold(lock_);
        for_each_array(devices_[device].stats, [](auto &stat) { stat.reset_peak(); });
    }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override
    {
        Context context(device);
        size_t free_bytes = 0, total = 0;
        check(cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
        return {free_bytes, total};
    }

    void limit(c10::DeviceIndex device, size_t bytes)
    {
        limits_[device] = bytes;
    }

  private:
    static void give(void *memory);
    void *take(c10::DeviceIndex device, size_t bytes);
    void free_block(Block *block);
    void put_free(Block *block);
    void join(Block *block, Block *neighbour);
    void poll(c10::DeviceIndex device);
    Block *cached(c10::DeviceIndex device, c10::StreamId stream, size_t bytes);
    Block *new_segment(c10::DeviceIndex device, c10::StreamId stream, size_t bytes);
    void split(Block *block, size_t bytes);
    bool release_cached(c10::DeviceIndex device);
    void release_pool(c10::DeviceIndex device, Pool &pool);
    [[noreturn]] void refuse(c10::DeviceIndex device, size_t bytes);

    Pool &pool_of(const Block &block)
    {
        Device &device = devices_[block.device];
        return block.is_small ? device.free_small : device.free_large;
    }

    std::mutex lock_;
    Device devices_[device_count];
    size_t limits_[device_count] = {SIZE_MAX, SIZE_MAX};
    std::map<const void *, Block *> allocated_;
};

/* Never destroyed: storages of other libraries may still need it at exit. */
Allocator &the_allocator()
{
    static Allocator *one = new Allocator;
    return *one;
}

/* ---- taking ------------------------------------------------------------------------- */

void *Allocator::take(c10::DeviceIndex device, size_t requested)
{
    std::lock_guard<std::mutex> hold(lock_);
    Device &here = devices_[device];
    c10::StreamId stream = current_stream(device).id();
    size_t bytes = rounded(requested);
    poll(device);
    Block *block = cached(device, stream, bytes);
    if (block == nullptr) {
        block = new_segment(device, stream, bytes);
    }
    if (block == nullptr && release_cached(device)) {
        here.stats.num_alloc_retries++;
        block = new_segment(device, stream, bytes);
    }
    if (block == nullptr) {
        refuse(device, requested);
    }
    split(block, bytes);
    block->is_allocated = true;
    block->requested = requested;
    allocated_[block->begin] = block;
    count(here.stats.allocation, *block, 1);
    count(here.stats.allocated_bytes, *block, block->bytes);
    count(here.stats.active, *block, 1);
    count(here.stats.active_bytes, *block, block->bytes);
    count(here.stats.requested_bytes, *block, requested);
    return block->begin;
}

Block *Allocator::cached(c10::DeviceIndex device, c10::StreamId stream, size_t bytes)
{
    Block wanted{device, stream, nullptr, bytes, bytes <= small_most};
    Pool &pool = pool_of(wanted);
    auto found = pool.lower_bound(&wanted);
    if (found == pool.end() || (*found)->stream != stream) {
        return nullptr;
    }
    Block *block = *found;
    pool.erase(found);
    if (is_split(*block)) {
        count(devices_[device].stats.inactive_split, *block, -1);
        count(devices_[device].stats.inactive_split_bytes, *block, -static_cast<int64_t>(block->bytes));
    }
    return block;
}

Block *Allocator::new_segment(c10::DeviceIndex device, c10::StreamId stream, size_t bytes)
{
    Stats &stats = devices_[device].stats;
    size_t segment = segment_bytes(bytes);
    if (stats.reserved_bytes[0].current + segment > limits_[device]) {
        return nullptr;
    }
    Context context(device);
    unsigned long long address = 0;
    int result = cuMemAlloc_v2(&address, segment);
    if (result == out_of_memory) {
        return nullptr;
    }
    check(result, "cuMemAlloc");
    auto *block = new Block{device, stream, reinterpret_cast<char *>(address), segment, bytes <= small_most};
    count(stats.segment, *block, 1);
    count(stats.reserved_bytes, *block, segment);
    stats.num_device_alloc++;
    return block;
}

void Allocator::split(Block *block, size_t bytes)
{
    size_t left = block->bytes - bytes;
    if (block->is_small ? left < round_bytes : left <= small_most) {
        return;
    }
    auto *rest = new Block{block->device, block->stream, block->begin + bytes, left, block->is_small};
    rest->before = block;
    rest->after = block->after;
    if (rest->after != nullptr) {
        rest->after->before = rest;
    }
    block->after = rest;
    block->bytes = bytes;
    pool_of(*rest).insert(rest);
    count(devices_[rest->device].stats.inactive_split, *rest, 1);
    count(devices_[rest->device].stats.inactive_split_bytes, *rest, left);
}

void Allocator::refuse(c10::DeviceIndex device, size_t bytes)
{
    Stats &stats = devices_[device].stats;
    stats.num_ooms++;
    auto [free_bytes, total] = getMemoryInfo(device);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes. GPU ",
                     int(device), " has a total capacity of ", total, " bytes of which ", free_bytes,
                     " are free. PyTorch has allocated ", stats.allocated_bytes[0].current, " bytes and reserved ",
                     stats.reserved_bytes[0].current, ".");
}

/* ---- giving back -------------------------------------------------------------------- */

void Allocator::give(void *memory)
{
    if (memory == nullptr) {
        return;
    }
    Allocator &self = the_allocator();
    std::lock_guard<std::mutex> hold(self.lock_);
    Block *block = self.allocated_.at(memory);
    Device &here = self.devices_[block->device];
    self.allocated_.erase(memory);
    block->is_allocated = false;
    count(here.stats.allocation, *block, -1);
    count(here.stats.allocated_bytes, *block, -static_cast<int64_t>(block->bytes));
    count(here.stats.requested_bytes, *block, -static_cast<int64_t>(block->requested));
    for (c10::StreamId user : block->users) {
        c10::Stream stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, block->device), user);
        here.pending.push_back({std::make_unique<Mark>(stream), block});
        block->awaited++;
    }
    block->users.clear();
    if (block->awaited == 0) {
        self.free_block(block);
    }
}

void Allocator::poll(c10::DeviceIndex device)
{
    std::list<Pending> &pending = devices_[device].pending;
    for (auto one = pending.begin(); one != pending.end();) {
        if (!one->mark->is_reached()) {
            ++one;
            continue;
        }
        if (--one->block->awaited == 0) {
            free_block(one->block);
        }
        one = pending.erase(one);
    }
}

void Allocator::free_block(Block *block)
{
    Stats &stats = devices_[block->device].stats;
    count(stats.active, *block, -1);
    count(stats.active_bytes, *block, -static_cast<int64_t>(block->bytes));
    for (Block *neighbour : {block->before, block->after}) {
        if (neighbour != nullptr && !neighbour->is_allocated && neighbour->awaited == 0) {
            join(block, neighbour);
        }
    }
    put_free(block);
}

void Allocator::put_free(Block *block)
{
    pool_of(*block).insert(block);
    if (is_split(*block)) {
        count(devices_[block->device].stats.inactive_split, *block, 1);
        count(devices_[block->device].stats.inactive_split_bytes, *block, block->bytes);
    }
}

void Allocator::join(Block *block, Block *neighbour)
{
    pool_of(*neighbour).erase(neighbour);
    count(devices_[block->device].stats.inactive_split, *neighbour, -1);
    count(devices_[block->device].stats.inactive_split_bytes, *neighbour, -static_cast<int64_t>(neighbour->bytes));
    if (neighbour == block->before) {
        block->begin = neighbour->begin;
        block->before = neighbour->before;
        if (block->before != nullptr) {
            block->before->after = block;
        }
    } else {
        block->after = neighbour->after;
        if (block->after != nullptr) {
            block->after->before = block;
        }
    }
    block->bytes += neighbour->bytes;
    delete neighbour;
}

/* Waits for pending uses, as torch does, and returns cached segments to the driver. True if it returned any. */
bool Allocator::release_cached(c10::DeviceIndex device)
{
    Device &here = devices_[device];
    for (Pending &one : here.pending) {
        one.mark->synchronize();
    }
    poll(device);
    size_t segments = here.stats.num_device_free;
    release_pool(device, here.free_large);
    release_pool(device, here.free_small);
    return static_cast<size_t>(here.stats.num_device_free) > segments;
}

void Allocator::release_pool(c10::DeviceIndex device, Pool &pool)
{
    Stats &stats = devices_[device].stats;
    Context context(device);
    for (auto one = pool.begin(); one != pool.end();) {
        Block *block = *one;
        if (is_split(*block)) {
            ++one;
            continue;
        }
        wait_for_device(device); /* as cudaFree does */
        check(cuMemFree_v2(reinterpret_cast<unsigned long long>(block->begin)), "cuMemFree");
        count(stats.segment, *block, -1);
        count(stats.reserved_bytes, *block, -static_cast<int64_t>(block->bytes));
        stats.num_device_free++;
        one = pool.erase(one);
        delete block;
    }
}

/* ---- copies of whole storages, for resizing ---------------------------------------- */

class CopyBytes final : public Work
{
  public:
    explicit CopyBytes(size_t bytes) : bytes_(bytes)
    {
    }
    void run(unsigned char *const *memories) override
    {
        std::memcpy(memories[0], memories[1], bytes_);
    }
    std::string name() const override
    {
        return "copy_data";
    }

  private:
    size_t bytes_;
};

void Allocator::copy_data(void *to, const void *from, size_t bytes) const
{
    if (bytes > 0) {
        launch(current_stream(current_device()),
               {{reinterpret_cast<unsigned long long>(to), bytes, 1},
                {reinterpret_cast<unsigned long long>(from), bytes, 0}},
               std::make_shared<CopyBytes>(bytes));
    }
}

} // namespace

c10::DeviceAllocator &device_allocator()
{
    return the_allocator();
}

void register_device_allocator()
{
    c10::SetAllocator(c10::kCUDA, &the_allocator(), 1);
}

/* torch.cuda.set_per_process_memory_fraction, in bytes. */
TORCH_DOUBLE_EXPORT void torch_double_limit_reserved(int device, size_t bytes)
{
    the_allocator().limit(static_cast<c10::DeviceIndex>(device), bytes);
}

} // namespace torch_double
