#include "limits/limits.h"

#include <string.h>
#include <xxhash.h>

#include "base/thread.h"
#include "base/units.h"

enum { SETS = 16384, WAYS = 4, NS_PER_S = 1000000000 };
#define MINUTE_NS ((uint64_t)60 * NS_PER_S)

/* `full_at_ns`: when the bucket is full again. One that was full long ago says nothing and may go. */
typedef struct bucket {
    uint64_t key;
    uint64_t full_at_ns;
} bucket;

typedef struct rate {
    uint64_t cost_ns; /* until one comes back */
    uint64_t room_ns; /* cost of the whole burst */
} rate;

struct mss_limits {
    ms__mutex lock;
    rate rates[MSS_LIMIT_COUNT];
    bucket buckets[SETS][WAYS];
};

int mss_limits_new(uint32_t scale_percent, mss_limits **limits, ms_error *err)
{
    static const uint32_t table[MSS_LIMIT_COUNT][2] = {
#define RATE_ROW(name, per_minute, burst) {per_minute, burst},
        MSS_LIMIT_TABLE(RATE_ROW)
#undef RATE_ROW
    };
    mss_limits *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "limits: out of memory");
    }
    ms__mutex_init(&made->lock);
    for (int i = 0; i < MSS_LIMIT_COUNT; i++) {
        made->rates[i].cost_ns = MINUTE_NS * 100 / ms__max_u64((uint64_t)table[i][0] * scale_percent, 1);
        made->rates[i].room_ns = MINUTE_NS * table[i][1] / table[i][0];
    }
    *limits = made;
    return MS_OK;
}

void mss_limits_free(mss_limits *limits)
{
    if (limits != NULL) {
        ms__mutex_destroy(&limits->lock);
        ms_free(limits);
    }
}

static bucket *find_bucket(mss_limits *limits, uint64_t key)
{
    bucket *set = limits->buckets[key % SETS], *oldest = &set[0];
    for (int i = 0; i < WAYS; i++) {
        if (set[i].key == key) {
            return &set[i];
        }
        if (set[i].full_at_ns < oldest->full_at_ns) {
            oldest = &set[i];
        }
    }
    *oldest = (bucket){.key = key};
    return oldest;
}

uint32_t mss_limits_take(mss_limits *limits, mss_limit limit, const char *who, uint64_t now_ns)
{
    if (limit == MSS_LIMIT_NONE) {
        return 0;
    }
    const rate *r = &limits->rates[limit];
    uint64_t key = XXH3_64bits_withSeed(who, strlen(who), limit + 1);
    uint64_t wait_ns = 0;
    ms__mutex_lock(&limits->lock);
    bucket *found = find_bucket(limits, key);
    uint64_t full_at_ns = ms__max_u64(found->full_at_ns, now_ns) + r->cost_ns;
    if (full_at_ns - now_ns <= ms__max_u64(r->room_ns, r->cost_ns)) {
        found->full_at_ns = full_at_ns;
    } else {
        wait_ns = full_at_ns - now_ns - r->room_ns;
    }
    ms__mutex_unlock(&limits->lock);
    return wait_ns == 0 ? 0 : (uint32_t)(wait_ns / NS_PER_S + 1);
}
