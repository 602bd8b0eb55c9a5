#include "limits/limits.h"

#include <string.h>
#include <xxhash.h>

#include "base/thread.h"
#include "base/units.h"

enum { SETS = 16384, WAYS = 4, NS_PER_S = 1000000000, LOANS_PER_BURST = 16 };
#define MINUTE_NS ((uint64_t)60 * NS_PER_S)

/* `full_at_ns`: when the bucket is full again. One that was full long ago says nothing and may go. */
typedef struct bucket {
    uint64_t key;
    uint64_t full_at_ns;
    uint64_t borrowed; /* tokens of the shared bucket that are not spent yet */
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

static uint64_t key_of(mss_limit limit, const char *who)
{
    return XXH3_64bits_withSeed(who, strlen(who), limit + 1);
}

uint32_t mss_limits_take(mss_limits *limits, mss_limit limit, const char *who, uint64_t now_ns)
{
    if (limit == MSS_LIMIT_NONE) {
        return 0;
    }
    const rate *r = &limits->rates[limit];
    uint64_t wait_ns = 0;
    ms__mutex_lock(&limits->lock);
    bucket *found = find_bucket(limits, key_of(limit, who));
    uint64_t full_at_ns = ms__max_u64(found->full_at_ns, now_ns) + r->cost_ns;
    if (full_at_ns - now_ns <= ms__max_u64(r->room_ns, r->cost_ns)) {
        found->full_at_ns = full_at_ns;
    } else {
        wait_ns = full_at_ns - now_ns - r->room_ns;
    }
    ms__mutex_unlock(&limits->lock);
    return wait_ns == 0 ? 0 : (uint32_t)(wait_ns / NS_PER_S + 1);
}

/* ---- buckets that servers share --------------------------------------------------- */

int64_t mss_limits_key(mss_limit limit, const char *who)
{
    return (int64_t)key_of(limit, who);
}

mss_loan mss_limits_borrow(const mss_limits *limits, mss_limit limit, int64_t full_at_ns, int64_t now_ns)
{
    int64_t cost_ns = (int64_t)limits->rates[limit].cost_ns;
    int64_t room_ns = (int64_t)ms__max_u64(limits->rates[limit].room_ns, limits->rates[limit].cost_ns);
    int64_t used_ns = full_at_ns > now_ns ? full_at_ns - now_ns : 0;
    if (used_ns + cost_ns > room_ns) {
        int64_t wait_ns = used_ns + cost_ns - room_ns;
        return (mss_loan){.wait_s = (uint32_t)(wait_ns / NS_PER_S + 1), .full_at_ns = full_at_ns};
    }
    uint64_t share = ms__max_u64((uint64_t)(room_ns / cost_ns) / LOANS_PER_BURST, 1);
    uint64_t tokens = ms__min_u64((uint64_t)((room_ns - used_ns) / cost_ns), ms__min_u64(share, UINT32_MAX));
    return (mss_loan){.tokens = (uint32_t)tokens, .full_at_ns = now_ns + used_ns + (int64_t)tokens * cost_ns};
}

void mss_limits_keep(mss_limits *limits, mss_limit limit, const char *who, uint32_t tokens)
{
    ms__mutex_lock(&limits->lock);
    find_bucket(limits, key_of(limit, who))->borrowed += tokens;
    ms__mutex_unlock(&limits->lock);
}

bool mss_limits_spend(mss_limits *limits, mss_limit limit, const char *who)
{
    ms__mutex_lock(&limits->lock);
    bucket *found = find_bucket(limits, key_of(limit, who));
    bool has = found->borrowed > 0;
    found->borrowed -= has;
    ms__mutex_unlock(&limits->lock);
    return has;
}
