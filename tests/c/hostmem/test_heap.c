/* Blocks, cache and ceiling: the counters are exact at every step, the cache yields to the ceiling,
 * and resident memory equals the counters. */
#include <errno.h>
#include <unistd.h>

#include "base/os/file.h"
#include "base/os/procfs.h"
#include "fake.h"

static int teardown(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    ms_hostmem_set_ceiling(0);
    ms_hostmem_stats stats = stats_now();
    return stats.live_bytes == 0 && stats.live_blocks == 0 && stats.cached_bytes == 0 ? 0 : -1;
}

static uint64_t whole_pages(size_t bytes)
{
    return (bytes + 4095) & ~(uint64_t)4095;
}

/* ---- sizes and addresses ------------------------------------------------- */

static void blocks_are_whole_pages_and_aligned(void **state)
{
    (void)state;
    const struct {
        size_t asked;
        size_t given;
        size_t alignment;
    } cases[] = {
        {0, MS_HOSTMEM_MIN_BYTES, 4096},
        {1, MS_HOSTMEM_MIN_BYTES, 4096},
        {MS_HOSTMEM_MIN_BYTES, MS_HOSTMEM_MIN_BYTES, 4096},
        {MIB, MIB, 4096},
        {MIB + 1, MIB + 4096, 4096},
        {2 * MIB - 1, 2 * MIB, 2 * MIB},
        {2 * MIB + 1, 2 * MIB + 4096, 2 * MIB},
        {50 * MIB + 5000, 50 * MIB + 8192, 2 * MIB},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *block = ms_hostmem_alloc(cases[i].asked);
        ms_hostmem_block found;
        assert_true(ms_hostmem_find(block, &found));
        assert_int_equal(found.address, (uintptr_t)block);
        assert_int_equal(found.bytes, cases[i].given);
        assert_int_equal(found.address % cases[i].alignment, 0);
        assert_int_equal(stats_now().live_bytes, cases[i].given);
        memset(block, 1, cases[i].given);
        ms_hostmem_release(block);
    }
    assert_null(ms_hostmem_alloc(SIZE_MAX));
    assert_null(ms_hostmem_alloc(SIZE_MAX / 2));
}

static void find_knows_every_byte_of_a_block_and_no_other(void **state)
{
    (void)state;
    enum { BLOCKS = 40 };
    char *blocks[BLOCKS];
    size_t bytes[BLOCKS];
    uint64_t serials[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        bytes[i] = whole_pages(MS_HOSTMEM_MIN_BYTES + i * i * 5000);
        blocks[i] = ms_hostmem_alloc(bytes[i]);
        assert_non_null(blocks[i]);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        ms_hostmem_block found = {0};
        for (size_t at = 0; at < bytes[i]; at += 65537) {
            assert_true(ms_hostmem_find(blocks[i] + at, &found));
            assert_int_equal(found.address, (uintptr_t)blocks[i]);
            assert_int_equal(found.bytes, bytes[i]);
        }
        assert_true(ms_hostmem_find(blocks[i] + bytes[i] - 1, &found));
        serials[i] = found.serial;
        ms_hostmem_block behind;
        if (ms_hostmem_find(blocks[i] + bytes[i], &behind)) {
            assert_int_not_equal(behind.serial, found.serial);
        }
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(serials[k], serials[i]);
        }
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        ms_hostmem_release(blocks[i]);
        assert_false(ms_hostmem_find(blocks[i], NULL));
        assert_false(ms_hostmem_find(blocks[i] + bytes[i] - 1, NULL));
    }
    int on_the_stack;
    assert_false(ms_hostmem_find(&on_the_stack, NULL));
    assert_false(ms_hostmem_find(NULL, NULL));
    assert_false(ms_hostmem_find((void *)UINTPTR_MAX, NULL));
}

static void a_block_out_of_the_cache_has_a_new_serial(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(64 * MIB);
    ms_hostmem_block first;
    ms_hostmem_block second;
    void *block = ms_hostmem_alloc(3 * MIB);
    assert_true(ms_hostmem_find(block, &first));
    ms_hostmem_release(block);
    assert_false(ms_hostmem_find(block, NULL));
    assert_ptr_equal(ms_hostmem_alloc(3 * MIB), block);
    assert_true(ms_hostmem_find(block, &second));
    assert_int_not_equal(first.serial, second.serial);
    ms_hostmem_release(block);
}

static void an_address_of_no_live_block_is_ignored(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(64 * MIB);
    char *block = ms_hostmem_alloc(4 * MIB);
    ms_hostmem_release(NULL);
    ms_hostmem_release(block + 4096);
    ms_hostmem_release(block + MIB);
    assert_int_equal(stats_now().live_bytes, 4 * MIB);
    ms_hostmem_release(block);
    ms_hostmem_release(block);
    assert_int_equal(stats_now().live_bytes, 0);
    assert_int_equal(stats_now().cached_bytes, 4 * MIB);
}

/* ---- cache and ceiling --------------------------------------------------- */

static void only_the_exact_size_is_served_from_the_cache(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(64 * MIB);
    uint64_t reused = stats_now().reused_count;
    void *block = ms_hostmem_alloc(8 * MIB);
    ms_hostmem_release(block);
    void *smaller = ms_hostmem_alloc(8 * MIB - 4096);
    assert_int_equal(stats_now().reused_count, reused);
    assert_int_equal(stats_now().cached_bytes, 8 * MIB);
    void *same = ms_hostmem_alloc(8 * MIB - 17); /* the same pages */
    assert_ptr_equal(same, block);
    assert_int_equal(stats_now().reused_count, reused + 1);
    assert_int_equal(stats_now().cached_bytes, 0);
    ms_hostmem_release(smaller);
    ms_hostmem_release(same);
}

static void a_ceiling_leaves_room_for_what_the_process_has_beside_maps(void **state)
{
    (void)state;
    ms_hostmem_beside beside = {.budget_bytes = 600000000};
    assert_int_equal(ms_hostmem_ceiling(90000000, &beside), 90000000); /* no step has ended */
    beside.last = (ms_hostmem_step){.peak_bytes = 560000000, .held_bytes = 60000000};
    assert_int_equal(ms_hostmem_ceiling(80000000, &beside), 80000000); /* it fits */
    assert_int_equal(ms_hostmem_ceiling(99000000, &beside), 92000000); /* a second step adds 8 MB */
    beside.before = beside.last;
    assert_int_equal(ms_hostmem_ceiling(99000000, &beside), 96000000); /* a later one 4 MB */
    beside.last.peak_bytes += 10000000;
    assert_int_equal(ms_hostmem_ceiling(99000000, &beside), 80000000); /* or as much as the last */
    beside.last.peak_bytes = 900000000;
    assert_int_equal(ms_hostmem_ceiling(99000000, &beside), 0);
    beside.budget_bytes = 0;
    assert_int_equal(ms_hostmem_ceiling(99000000, &beside), 99000000);
    beside = (ms_hostmem_beside){.budget_bytes = 600000000, .smaller_inputs = true};
    assert_int_equal(ms_hostmem_ceiling(90000000, &beside), 45000000);
}

static void the_oldest_maps_leave_the_cache_first(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(16 * MIB);
    void *blocks[4];
    for (size_t i = 0; i < 4; i++) {
        blocks[i] = ms_hostmem_alloc((1 + i) * MIB); /* 10 MiB in all */
    }
    ms_hostmem_release(blocks[2]);
    ms_hostmem_release(blocks[0]);
    ms_hostmem_release(blocks[3]);
    ms_hostmem_release(blocks[1]);
    assert_int_equal(stats_now().cached_bytes, 10 * MIB);
    void *large = ms_hostmem_alloc(9 * MIB); /* 3 MiB above the ceiling: the oldest cached map goes */
    assert_int_equal(stats_now().cached_bytes, 7 * MIB);
    assert_int_equal(stats_now().live_bytes, 9 * MIB);
    uint64_t reused = stats_now().reused_count;
    void *again[3] = {ms_hostmem_alloc(MIB), ms_hostmem_alloc(4 * MIB), ms_hostmem_alloc(2 * MIB)};
    assert_int_equal(stats_now().reused_count, reused + 3);
    assert_int_equal(stats_now().cached_bytes, 0);
    for (size_t i = 0; i < 3; i++) {
        ms_hostmem_release(again[i]);
    }
    ms_hostmem_release(large);
    ms_hostmem_trim(8 * MIB, false);
    assert_true(stats_now().cached_bytes <= 8 * MIB);
}

/* The oldest cached block, of 30 MiB, loses its last 6 MiB because they are needed. Its next user still
 * has room for the whole block. */
static void a_block_larger_than_needed_loses_its_end(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(40 * MIB);
    ms_hostmem_reset_peak();
    unsigned char *large = ms_hostmem_alloc(30 * MIB);
    memset(large, 7, 30 * MIB);
    ms_hostmem_release(large);
    void *other = ms_hostmem_alloc(16 * MIB);
    assert_int_equal(stats_now().cached_bytes, 24 * MIB);
    assert_int_equal(ms_hostmem_untouched(large, 30 * MIB), 6 * MIB);
    ms_hostmem_release(other);
    assert_int_equal(stats_now().cached_bytes, 40 * MIB);
    uint64_t reused = stats_now().reused_count;
    assert_ptr_equal(ms_hostmem_alloc(30 * MIB), large);
    assert_int_equal(stats_now().reused_count, reused + 1);
    assert_int_equal(stats_now().live_bytes, 30 * MIB);
    assert_int_equal(stats_now().cached_bytes, 10 * MIB);
    assert_int_equal(stats_now().peak_held_bytes, 40 * MIB);
    memset(large, 8, 30 * MIB);
    ms_hostmem_release(large);
    ms_hostmem_trim(39 * MIB + 4096, false); /* whole huge pages, at least the bytes needed */
    assert_int_equal(stats_now().cached_bytes, 38 * MIB);
}

static void a_block_that_cannot_lose_its_end_is_dropped(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(40 * MIB);
    ms_hostmem_release(ms_hostmem_alloc(30 * MIB));
    ms_fault_arm(MS_FAULT_MAP, 1, ENOMEM);
    void *other = ms_hostmem_alloc(16 * MIB);
    assert_non_null(other);
    assert_int_equal(stats_now().cached_bytes, 0);
    assert_int_equal(stats_now().live_bytes, 16 * MIB);
    ms_hostmem_release(other);
}

static void live_bytes_are_never_refused(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(4 * MIB);
    void *small = ms_hostmem_alloc(3 * MIB);
    ms_hostmem_release(small);
    assert_int_equal(stats_now().cached_bytes, 3 * MIB);
    void *large = ms_hostmem_alloc(20 * MIB);
    assert_non_null(large);
    assert_int_equal(stats_now().live_bytes, 20 * MIB);
    assert_int_equal(stats_now().cached_bytes, 0);
    ms_hostmem_release(large); /* above the ceiling: unmapped at once */
    assert_int_equal(stats_now().cached_bytes, 0);
}

static void peaks_hold_until_reset(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(100 * MIB);
    ms_hostmem_reset_peak();
    void *a = ms_hostmem_alloc(10 * MIB);
    void *b = ms_hostmem_alloc(20 * MIB);
    ms_hostmem_release(a);
    void *c = ms_hostmem_alloc(5 * MIB);
    assert_int_equal(stats_now().peak_live_bytes, 30 * MIB);
    assert_int_equal(stats_now().peak_held_bytes, 35 * MIB);
    ms_hostmem_release(b);
    ms_hostmem_trim(0, false);
    ms_hostmem_reset_peak();
    assert_int_equal(stats_now().peak_live_bytes, 5 * MIB);
    assert_int_equal(stats_now().peak_held_bytes, 5 * MIB);
    ms_hostmem_release(c);
}

/* The test's model: the header's promises, implemented as simply as possible. */
enum { MODEL_BLOCKS = 64, MODEL_STEPS = 20000 };

typedef struct model {
    unsigned char *blocks[MODEL_BLOCKS];
    uint64_t bytes[MODEL_BLOCKS];
    uint64_t live_bytes;
    uint64_t live_blocks;
    uint64_t peak_bytes;
    uint64_t ceiling_bytes;
} model;

static void model_alloc(model *self, size_t i, size_t bytes)
{
    self->blocks[i] = ms_hostmem_alloc(bytes);
    assert_non_null(self->blocks[i]);
    self->bytes[i] = whole_pages(bytes);
    self->live_bytes += self->bytes[i];
    self->live_blocks++;
    if (self->live_bytes > self->peak_bytes) {
        self->peak_bytes = self->live_bytes;
    }
    self->blocks[i][0] = (unsigned char)i;
    self->blocks[i][self->bytes[i] - 1] = (unsigned char)i;
}

static void model_release(model *self, size_t i)
{
    assert_int_equal(self->blocks[i][0], i);
    assert_int_equal(self->blocks[i][self->bytes[i] - 1], i);
    ms_hostmem_release(self->blocks[i]);
    self->blocks[i] = NULL;
    self->live_bytes -= self->bytes[i];
    self->live_blocks--;
}

static void model_check(const model *self)
{
    ms_hostmem_stats stats = stats_now();
    assert_int_equal(stats.live_bytes, self->live_bytes);
    assert_int_equal(stats.live_blocks, self->live_blocks);
    assert_int_equal(stats.peak_live_bytes, self->peak_bytes);
    if (stats.live_bytes <= self->ceiling_bytes) {
        assert_true(stats.live_bytes + stats.cached_bytes <= self->ceiling_bytes);
    } else {
        assert_int_equal(stats.cached_bytes, 0);
    }
}

static void live_and_cached_stay_under_the_ceiling_at_every_step(void **state)
{
    (void)state;
    model self = {0};
    uint64_t seed = 42;
    ms_hostmem_reset_peak();
    uint64_t reused = stats_now().reused_count;
    for (int step = 0; step < MODEL_STEPS; step++) {
        size_t i = next_random(&seed) % MODEL_BLOCKS;
        uint32_t what = next_random(&seed) % 1000;
        if (what == 0) {
            self.ceiling_bytes = (uint64_t)(next_random(&seed) % 400) * MIB;
            ms_hostmem_set_ceiling(self.ceiling_bytes);
        } else if (what == 1) {
            uint64_t keep_bytes = (uint64_t)(next_random(&seed) % 50) * MIB;
            ms_hostmem_trim(keep_bytes, false);
            assert_true(stats_now().cached_bytes <= keep_bytes);
        } else if (self.blocks[i] != NULL) {
            model_release(&self, i);
        } else {
            /* A dozen sizes recur, as in a training step. */
            size_t bytes = MIB + (size_t)(next_random(&seed) % 12) * 700001;
            model_alloc(&self, i, next_random(&seed) % 8 == 0 ? 5 * bytes : bytes);
        }
        model_check(&self);
    }
    assert_true(stats_now().reused_count > reused + MODEL_STEPS / 10);
    for (size_t i = 0; i < MODEL_BLOCKS; i++) {
        if (self.blocks[i] != NULL) {
            model_release(&self, i);
        }
    }
    model_check(&self);
}

/* ---- resident memory ----------------------------------------------------- */

/* Without file pages, which a machine short of memory reclaims; swapped pages count. */
static uint64_t resident_now(void)
{
    char text[4096];
    uint64_t anonymous_bytes = 0, swapped_bytes = 0;
    assert_true(ms__file_read_small("/proc/self/status", text, sizeof text));
    assert_true(ms__proc_field(text, "RssAnon", &anonymous_bytes));
    (void)ms__proc_field(text, "VmSwap", &swapped_bytes);
    return anonymous_bytes + swapped_bytes;
}

static void assert_within_one_percent(uint64_t measured, uint64_t expected)
{
    uint64_t difference = measured > expected ? measured - expected : expected - measured;
    if (difference > expected / 100) {
        fail_msg("%zu bytes resident, %zu expected", (size_t)measured, (size_t)expected);
    }
}

/* Sizes with odd tails: a huge page under a tail would make more resident. */
static void resident_memory_equals_the_counters(void **state)
{
    (void)state;
    enum { BLOCKS = 60 };
    char *blocks[BLOCKS];
    if (TEST_OWN_ALLOCATOR) {
        print_message("skipped: a sanitizer keeps resident shadows of what is written\n");
        skip();
    }
    ms_hostmem_set_ceiling(UINT64_MAX);
    uint64_t before = resident_now();
    for (size_t i = 0; i < BLOCKS; i++) {
        size_t bytes = MIB + i * 123457;
        blocks[i] = ms_hostmem_alloc(bytes);
        memset(blocks[i], (int)i, bytes);
    }
    uint64_t live_bytes = stats_now().live_bytes;
    assert_within_one_percent(resident_now() - before, live_bytes);
    for (size_t i = 0; i < BLOCKS; i += 2) {
        ms_hostmem_release(blocks[i]);
    }
    assert_within_one_percent(resident_now() - before, live_bytes); /* cached maps stay */
    ms_hostmem_set_ceiling(0);
    assert_within_one_percent(resident_now() - before, stats_now().live_bytes);
    for (size_t i = 1; i < BLOCKS; i += 2) {
        ms_hostmem_release(blocks[i]);
    }
    assert_true(resident_now() < before + live_bytes / 100);
}

/* ---- faults -------------------------------------------------------------- */

static void a_failed_map_empties_the_cache_and_is_retried(void **state)
{
    (void)state;
    ms_hostmem_set_ceiling(64 * MIB);
    ms_hostmem_release(ms_hostmem_alloc(8 * MIB));
    ms_hostmem_release(ms_hostmem_alloc(4 * MIB));
    assert_int_equal(stats_now().cached_bytes, 12 * MIB);
    ms_fault_arm(MS_FAULT_MAP, 1, ENOMEM);
    void *block = ms_hostmem_alloc(6 * MIB);
    assert_non_null(block);
    assert_int_equal(stats_now().cached_bytes, 0);
    assert_int_equal(stats_now().live_bytes, 6 * MIB);
    ms_hostmem_release(block);
}

static void lasting_lack_of_memory_gives_null_and_counts_nothing(void **state)
{
    (void)state;
    uint64_t peak = stats_now().peak_held_bytes;
    assert_null(ms_hostmem_alloc((size_t)1 << 46));
    assert_int_equal(stats_now().live_bytes, 0);
    assert_int_equal(stats_now().peak_held_bytes, peak);
    ms_hostmem_release(ms_hostmem_alloc(MIB));
}

static void every_map_call_may_fail(void **state)
{
    (void)state;
    bool has_fired = true;
    for (uint64_t nth = 1; has_fired; nth++) {
        assert_true(nth < 1000);
        ms_fault_arm(MS_FAULT_MAP, nth, ENOMEM);
        void *blocks[50];
        ms_hostmem_set_ceiling(30 * MIB);
        for (size_t i = 0; i < 50; i++) {
            blocks[i] = ms_hostmem_alloc((1 + i % 5) * MIB);
            assert_non_null(blocks[i]); /* the second try succeeds */
            memset(blocks[i], 1, 4096);
            if (i % 3 == 0) {
                ms_hostmem_release(blocks[i]);
                blocks[i] = NULL;
            }
        }
        for (size_t i = 0; i < 50; i++) {
            ms_hostmem_release(blocks[i]);
        }
        has_fired = ms_fault_passed(MS_FAULT_MAP) >= nth;
        ms_fault_disarm_all();
        ms_hostmem_set_ceiling(0);
        assert_int_equal(stats_now().live_bytes, 0);
        assert_int_equal(stats_now().cached_bytes, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(blocks_are_whole_pages_and_aligned, teardown),
        cmocka_unit_test_teardown(find_knows_every_byte_of_a_block_and_no_other, teardown),
        cmocka_unit_test_teardown(a_block_out_of_the_cache_has_a_new_serial, teardown),
        cmocka_unit_test_teardown(an_address_of_no_live_block_is_ignored, teardown),
        cmocka_unit_test_teardown(only_the_exact_size_is_served_from_the_cache, teardown),
        cmocka_unit_test_teardown(a_ceiling_leaves_room_for_what_the_process_has_beside_maps, teardown),
        cmocka_unit_test_teardown(the_oldest_maps_leave_the_cache_first, teardown),
        cmocka_unit_test_teardown(a_block_larger_than_needed_loses_its_end, teardown),
        cmocka_unit_test_teardown(a_block_that_cannot_lose_its_end_is_dropped, teardown),
        cmocka_unit_test_teardown(live_bytes_are_never_refused, teardown),
        cmocka_unit_test_teardown(peaks_hold_until_reset, teardown),
        cmocka_unit_test_teardown(live_and_cached_stay_under_the_ceiling_at_every_step, teardown),
        cmocka_unit_test_teardown(resident_memory_equals_the_counters, teardown),
        cmocka_unit_test_teardown(a_failed_map_empties_the_cache_and_is_retried, teardown),
        cmocka_unit_test_teardown(lasting_lack_of_memory_gives_null_and_counts_nothing, teardown),
        cmocka_unit_test_teardown(every_map_call_may_fail, teardown),
    };
    return cmocka_run_group_tests_name("hostmem heap", tests, NULL, NULL);
}
