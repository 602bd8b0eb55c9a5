/* Maps and resident memory. */
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/os/file.h"
#include "base/os/map.h"
#include "base/os/procfs.h"
#include "test_common.h"

static ms_error err;

static int disarm(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return 0;
}

/* ---- maps --------------------------------------------------------------- */

static void maps_are_aligned_zeroed_and_writable(void **state)
{
    (void)state;
    size_t size = 3 * ms__page_bytes();
    for (size_t align = ms__page_bytes(); align <= MS__HUGE_PAGE_BYTES; align *= 2) {
        unsigned char *map;
        assert_ms_ok(ms__map(size, align, (void **)&map, &err), err);
        assert_int_equal((uintptr_t)map % align, 0);
        assert_int_equal(map[0], 0);
        map[size - 1] = 1;
        ms__unmap(map, size);
    }
    ms__unmap(NULL, 4096);
}

static uint64_t address_space_bytes(void)
{
    char text[4096];
    uint64_t bytes = 0;
    assert_true(ms__file_read_small("/proc/self/status", text, sizeof text));
    assert_true(ms__proc_field(text, "VmSize", &bytes));
    return bytes;
}

static void unmapped_ranges_leave_nothing_around_them(void **state)
{
    (void)state;
    enum { MAPS = 50, SIZE = 3 << 20 };
    void *maps[MAPS];
    (void)address_space_bytes();
    uint64_t before = address_space_bytes();
    for (int i = 0; i < MAPS; i++) {
        assert_ms_ok(ms__map(SIZE, MS__HUGE_PAGE_BYTES, &maps[i], &err), err);
    }
    assert_int_equal(address_space_bytes(), before + (uint64_t)MAPS * SIZE);
    for (int i = 0; i < MAPS; i++) {
        ms__unmap(maps[i], SIZE);
    }
    assert_int_equal(address_space_bytes(), before);
}

static void advice_leaves_the_contents_alone(void **state)
{
    (void)state;
    unsigned char *map;
    size_t size = 2 * MS__HUGE_PAGE_BYTES;
    assert_ms_ok(ms__map(size, MS__HUGE_PAGE_BYTES, (void **)&map, &err), err);
    memset(map, 7, size);
    (void)ms__map_want_huge_pages(map, size);
    assert_true(ms__map_no_fork(map, size));
    assert_int_equal(map[size / 2], 7);
    ms__unmap(map, size);
}

static void protection_can_be_changed_and_restored(void **state)
{
    (void)state;
    unsigned char *map;
    assert_ms_ok(ms__map(ms__page_bytes(), ms__page_bytes(), (void **)&map, &err), err);
    map[100] = 5;
    assert_ms_ok(ms__map_protect(map + 100, 8, false, &err), err);
    assert_int_equal(map[100], 5);
    assert_ms_ok(ms__map_protect(map + 100, 8, true, &err), err);
    map[100] = 6;
    ms_fault_arm(MS_FAULT_MAP, 1, EACCES);
    assert_ms_fails(ms__map_protect(map, 8, false, &err), MS_ESYSTEM, err, "protection");
    ms__unmap(map, ms__page_bytes());
}

static void impossible_maps_are_refused(void **state)
{
    (void)state;
    void *map = NULL;
    size_t page = ms__page_bytes();
    assert_ms_fails(ms__map(0, page, &map, &err), MS_EINVAL, err, "mapping 0");
    assert_ms_fails(ms__map(page + 1, page, &map, &err), MS_EINVAL, err, "mapping");
    assert_ms_fails(ms__map(page, 3 * page, &map, &err), MS_EINVAL, err, "mapping");
    assert_ms_fails(ms__map(page, 16, &map, &err), MS_EINVAL, err, "mapping");
    assert_ms_fails(ms__map(SIZE_MAX - page + 1, 2 * page, &map, &err), MS_EOVERFLOW, err, "mapping");
    assert_ms_fails(ms__map(SIZE_MAX / 2 / page * page, page, &map, &err), MS_ENOMEM, err, "mapping");
    ms_fault_arm(MS_FAULT_MAP, 1, ENOMEM);
    assert_ms_fails(ms__map(page, page, &map, &err), MS_ENOMEM, err, "mapping 4.10 kB");
    assert_null(map);
}

/* ---- resident memory ---------------------------------------------------- */

static void resident_memory_follows_touched_pages(void **state)
{
    (void)state;
    enum { SIZE = 64 << 20, SLACK = 8 << 20 };
    ms__resident before, held, after;
    unsigned char *map;
    assert_ms_ok(ms__resident_read(&before, &err), err);
    assert_true(before.peak_bytes >= before.now_bytes);
    assert_ms_ok(ms__map(SIZE, ms__page_bytes(), (void **)&map, &err), err);
    memset(map, 1, SIZE);
    assert_ms_ok(ms__resident_read(&held, &err), err);
    assert_true(held.now_bytes + SLACK >= before.now_bytes + SIZE);
    ms__unmap(map, SIZE);
    assert_ms_ok(ms__resident_read(&after, &err), err);
    assert_true(after.now_bytes + SIZE <= held.now_bytes + SLACK);
    assert_true(after.peak_bytes + SLACK >= held.now_bytes);
    if (ms__resident_reset_peak(&err) == MS_OK) {
        assert_ms_ok(ms__resident_read(&after, &err), err);
        assert_true(after.peak_bytes + SIZE / 2 <= held.now_bytes);
    } else {
        assert_int_equal(err.code, MS_ENOTSUP);
    }
}

static void unreadable_proc_is_an_error(void **state)
{
    (void)state;
    ms__resident resident;
    ms_fault_arm(MS_FAULT_OPEN, 1, EACCES);
    assert_ms_fails(ms__resident_read(&resident, &err), MS_ESYSTEM, err, "/proc/self/status");
    ms_fault_arm(MS_FAULT_OPEN, 1, EACCES);
    assert_ms_fails(ms__resident_reset_peak(&err), MS_ENOTSUP, err, "clear_refs");
}

static void fields_are_found_at_line_starts_only(void **state)
{
    (void)state;
    uint64_t value = 0;
    const char *text = "NotVmRSS: 1 kB\nVmRSSx: 2 kB\nVmRSS:\t  3 kB\nThreads: 4\nVmLib: x\n";
    assert_true(ms__proc_field(text, "VmRSS", &value));
    assert_int_equal(value, 3 * 1024);
    assert_true(ms__proc_field(text, "Threads", &value));
    assert_int_equal(value, 4);
    assert_false(ms__proc_field(text, "VmLib", &value));
    assert_false(ms__proc_field(text, "VmHWM", &value));
    assert_false(ms__proc_field("", "VmHWM", &value));
}

static void the_memlock_limit_is_known(void **state)
{
    (void)state;
    assert_true(ms__memlock_limit_bytes() > 0);
}

/* Documents hold 63 bits. */
static void a_memlock_limit_beyond_documents_is_none(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    struct rlimit huge = {.rlim_cur = UINT64_C(1) << 63, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_MEMLOCK, &huge) != 0) {
        skip();
    }
    assert_true(ms__memlock_limit_bytes() == UINT64_MAX);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_are_aligned_zeroed_and_writable),
        cmocka_unit_test(unmapped_ranges_leave_nothing_around_them),
        cmocka_unit_test(advice_leaves_the_contents_alone),
        cmocka_unit_test_teardown(protection_can_be_changed_and_restored, disarm),
        cmocka_unit_test_teardown(impossible_maps_are_refused, disarm),
        cmocka_unit_test(resident_memory_follows_touched_pages),
        cmocka_unit_test_teardown(unreadable_proc_is_an_error, disarm),
        cmocka_unit_test(fields_are_found_at_line_starts_only),
        cmocka_unit_test(the_memlock_limit_is_known),
        cmocka_unit_test(a_memlock_limit_beyond_documents_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
