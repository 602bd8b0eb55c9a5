/*
 * The trials that measure a GPU's rates, and their sizes. The framework runs them (session/device_rates.py), because only
 * its libraries use the tensor cores as training does. hardware.c keeps the results.
 */
#include <stddef.h>

#include "base/units.h"
#include "hardware/rates.h"

/*
 * A trial grows until it takes GROWN_NS, and is then repeated for about SETTLED_NS. Products of 4096 rows and copies of
 * 32 MB reach their full rate on all cards of the catalogue. A pass over memory must exceed the L2 cache (126 MB on
 * B200).
 */
#define GROWN_NS UINT64_C(1000000)
#define SETTLED_NS UINT64_C(10000000)
enum { REPEATS_MOST = 64, PRODUCT_GROWTH = 2, BYTES_GROWTH = 4, MATRICES = 3 };

typedef struct trial {
    ms_gpu_trial told;
    size_t offset;       /* of the rate in ms_gpu */
    uint32_t item_bytes; /* of a product's elements; 0: `size` is in bytes */
    uint32_t work_per_byte;
    uint64_t least, most; /* sizes */
} trial;

#define RATE(member) .told.rate = #member, .offset = offsetof(ms_gpu, member)
#define PRODUCT(type, bytes) \
    .told.work = "product", .told.dtype = (type), .item_bytes = (bytes), .least = 256, .most = 4096
#define COPY(way, pinned) \
    .told.work = (way), .told.dtype = "uint8", .told.is_pinned = (pinned), .work_per_byte = 1, .least = 1 << 19, \
    .most = 1 << 25

static const trial trials[] = {
    {RATE(matmul_flops_per_s), PRODUCT("float32", 4)},
    {RATE(bf16_flops_per_s), PRODUCT("bfloat16", 2)},
    {RATE(fp16_flops_per_s), PRODUCT("float16", 2)},
    {RATE(stream_bytes_per_s), .told.work = "scale", .told.dtype = "float32", .work_per_byte = 2, .least = 1 << 20,
     .most = 1 << 28},
    {RATE(to_host_bytes_per_s), COPY("to_host", true)},
    {RATE(from_host_bytes_per_s), COPY("from_host", true)},
    {RATE(pageable_to_host_bytes_per_s), COPY("to_host", false)},
    {RATE(pageable_from_host_bytes_per_s), COPY("from_host", false)},
};
_Static_assert(sizeof trials / sizeof trials[0] == MS__GPU_RATES, "rates.h counts them");

const ms_gpu_trial *ms_gpu_trial_at(size_t i)
{
    return i < MS__GPU_RATES ? &trials[i].told : NULL;
}

void ms__gpu_rates(ms_gpu *gpu, ms__rate rates[MS__GPU_RATES])
{
    for (size_t i = 0; i < MS__GPU_RATES; i++) {
        rates[i] = (ms__rate){trials[i].told.rate, (uint64_t *)(void *)((char *)gpu + trials[i].offset)};
    }
}

static uint64_t work_of(const trial *of, uint64_t size)
{
    return of->item_bytes > 0 ? 2 * size * size * size : of->work_per_byte * size;
}

static bool fits(const trial *of, uint64_t size, uint64_t room_bytes)
{
    uint64_t bytes = of->item_bytes > 0 ? MATRICES * size * size * of->item_bytes : size;
    return size <= of->most && bytes <= room_bytes;
}

static uint64_t larger(const trial *of, uint64_t size)
{
    uint64_t growth = of->item_bytes > 0 ? PRODUCT_GROWTH : BYTES_GROWTH;
    return size == 0 ? of->least : size * growth;
}

bool ms_gpu_trial_next(size_t i, uint64_t room_bytes, ms_gpu_try *next, uint64_t *rate)
{
    const trial *of = &trials[i];
    bool is_settled = next->repeats > 1 || next->ns >= SETTLED_NS;
    *rate = 0;
    if (next->ns < GROWN_NS && next->repeats <= 1 && fits(of, larger(of, next->size), room_bytes)) {
        *next = (ms_gpu_try){.size = larger(of, next->size), .repeats = 1};
        return true;
    }
    if (next->ns == 0) {
        return false;
    }
    if (!is_settled) {
        uint64_t repeats = ms__min_u64(ms__max_u64(SETTLED_NS / next->ns, 2), REPEATS_MOST);
        *next = (ms_gpu_try){.size = next->size, .repeats = (uint32_t)repeats};
        return true;
    }
    *rate = ms__mul_div(ms__mul_sat(work_of(of, next->size), next->repeats), UINT64_C(1000000000), next->ns);
    return false;
}
