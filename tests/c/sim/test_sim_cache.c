/*
 * The simulator's cache of freed maps behaves as hostmem's, which serves tensors. Both get the same requests,
 * at random and in repeated steps; both keep the same bytes, find the same maps and stay under the same
 * ceiling.
 */
#include "memscale/hostmem.h"
#include "sim/sim.h"
#include "test_common.h"

#define MIB ((uint64_t)1 << 20)

enum { CLASSES = 9, LIVE_MOST = 48, ENTRIES = 4096, REQUESTS = 4000, STEPS = 6, STEP_REQUESTS = 200 };

static const uint64_t class_bytes[CLASSES] = {
    MIB, 2 * MIB, 3 * MIB + 4096, 5 * MIB, 6 * MIB + 40960, 20 * MIB, 21 * MIB - 4096, 64 * MIB, 150 * MIB,
};

typedef struct twins {
    ms__sim sim;
    ms__cache_entry entries[ENTRIES];
    uint32_t top[CLASSES];
    void *blocks[LIVE_MOST];
    uint32_t class_of[LIVE_MOST];
    uint64_t ceiling_bytes;
    uint64_t faulted_bytes, requested_bytes;
} twins;

static void open_twins(twins *self, uint64_t ceiling_bytes)
{
    *self = (twins){.ceiling_bytes = ceiling_bytes};
    self->sim.on_host = true;
    self->sim.instance_count = ENTRIES;
    self->sim.class_count = CLASSES;
    self->sim.class_bytes = (uint64_t *)class_bytes;
    self->sim.cache.entries = self->entries;
    self->sim.cache.top = self->top;
    ms__cache_reset(&self->sim, ceiling_bytes);
    ms_hostmem_set_ceiling(0);
    ms_hostmem_set_ceiling(ceiling_bytes);
}

static ms_hostmem_stats stats_now(void)
{
    ms_hostmem_stats stats;
    ms_hostmem_get_stats(&stats);
    return stats;
}

static void assert_alike(const twins *self)
{
    ms_hostmem_stats stats = stats_now();
    assert_int_equal(stats.live_bytes, self->sim.live_bytes);
    assert_int_equal(stats.cached_bytes, self->sim.cache.cached_bytes);
    assert_true(stats.cached_bytes == 0 || stats.live_bytes + stats.cached_bytes <= self->ceiling_bytes);
}

static void take(twins *self, size_t place, uint32_t class_id)
{
    uint64_t mapped = stats_now().mapped_count;
    uint64_t absent = ms__cache_take(&self->sim, class_id);
    self->sim.live_bytes += class_bytes[class_id];
    self->blocks[place] = ms_hostmem_alloc(class_bytes[class_id]);
    self->class_of[place] = class_id;
    assert_non_null(self->blocks[place]);
    assert_int_equal(stats_now().mapped_count > mapped, absent == class_bytes[class_id]);
    self->faulted_bytes += absent;
    self->requested_bytes += class_bytes[class_id];
}

static void give(twins *self, size_t place)
{
    self->sim.live_bytes -= class_bytes[self->class_of[place]];
    ms__cache_give(&self->sim, self->class_of[place]);
    ms_hostmem_release(self->blocks[place]);
    self->blocks[place] = NULL;
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % below;
}

/* Allocates or frees one map. Large classes are drawn seldom. */
static void request(twins *self, uint64_t *seed)
{
    size_t place = draw(seed, LIVE_MOST);
    if (self->blocks[place] != NULL) {
        give(self, place);
    } else {
        uint32_t class_id = draw(seed, CLASSES);
        take(self, place, class_id < 6 ? class_id : draw(seed, CLASSES));
    }
    assert_alike(self);
}

static void close_twins(twins *self)
{
    for (size_t i = 0; i < LIVE_MOST; i++) {
        if (self->blocks[i] != NULL) {
            give(self, i);
        }
    }
    assert_alike(self);
    ms_hostmem_set_ceiling(0);
}

static void both_caches_answer_alike(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (uint64_t ceiling = 100; ceiling <= 1300; ceiling += 150) {
        twins self;
        open_twins(&self, ceiling * MIB);
        for (int i = 0; i < REQUESTS; i++) {
            request(&self, &seed);
        }
        close_twins(&self);
    }
}

/* Bytes faulted in by the last of several equal steps, and the bytes requested. */
static uint64_t faulted_in_a_step(uint64_t ceiling_bytes, uint64_t *requested_bytes, uint64_t *held_bytes)
{
    twins self;
    open_twins(&self, ceiling_bytes);
    ms_hostmem_reset_peak();
    for (int step = 0; step < STEPS; step++) {
        uint64_t seed = 3;
        self.faulted_bytes = self.requested_bytes = 0;
        for (int i = 0; i < STEP_REQUESTS; i++) {
            request(&self, &seed);
        }
        for (size_t i = 0; i < LIVE_MOST; i++) {
            if (self.blocks[i] != NULL) {
                give(&self, i);
            }
        }
    }
    uint64_t faulted = self.faulted_bytes;
    *requested_bytes = self.requested_bytes;
    *held_bytes = stats_now().peak_held_bytes;
    close_twins(&self);
    return faulted;
}

/* Only the missing bytes return to the system, not whole maps many times as large. */
static void a_ceiling_a_little_too_low_costs_little(void **state)
{
    (void)state;
    uint64_t requested, held, under;
    assert_int_equal(faulted_in_a_step(UINT64_MAX, &requested, &held), 0);
    for (uint64_t lack = 1; lack <= 8; lack++) {
        uint64_t faulted = faulted_in_a_step(held - lack * 3 * MIB, &requested, &under);
        assert_true(under <= held - lack * 3 * MIB);
        assert_true(faulted >= lack * 3 * MIB);
        if (faulted > 12 * lack * 3 * MIB) {
            fail_msg("%llu MiB too few: %llu MiB of %llu are faulted in", (unsigned long long)(3 * lack),
                     (unsigned long long)(faulted / MIB), (unsigned long long)(requested / MIB));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_caches_answer_alike),
        cmocka_unit_test(a_ceiling_a_little_too_low_costs_little),
    };
    return cmocka_run_group_tests_name("the simulator's cache", tests, NULL, NULL);
}
