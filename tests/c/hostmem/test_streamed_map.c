/* Files whose ranges are streamed blocks: no copy, written bytes kept, files of their own for what is trained. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include "streamed_support.h"

enum { PAGE = 4096, HEAD = 136, RANGE_BYTES = (1 << 20) + 8, RANGES = 4, FILE_BYTES = HEAD + RANGES * RANGE_BYTES };

static fake library;
static char directory[PATH_MAX - 32], path[PATH_MAX];
static ms_streamed_range ranges[RANGES];

static unsigned char byte_at(size_t at)
{
    return (unsigned char)(at * 31 + at / PAGE);
}

static void write_file(void)
{
    unsigned char *bytes = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++) {
        bytes[i] = byte_at(i);
    }
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, FILE_BYTES), FILE_BYTES);
    assert_int_equal(fsync(fd), 0); /* the kernel doesn't reclaim a page that is still to be written */
    close(fd);
    free(bytes);
}

static int setup(void **state)
{
    (void)state;
    library = streamed_install(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/streamed_map.%d", directory, (int)getpid());
    for (size_t i = 0; i < RANGES; i++) {
        ranges[i] = (ms_streamed_range){HEAD + i * RANGE_BYTES, RANGE_BYTES};
    }
    write_file();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return streamed_uninstall();
}

static ms_streamed_map *map_file(char *addresses[RANGES])
{
    ms_error err;
    ms_streamed_map *map = NULL;
    assert_ms_ok(ms_streamed_begin(directory, &err), err);
    assert_ms_ok(ms_streamed_map_file(path, FILE_BYTES, ranges, RANGES, &map, &err), err);
    ms_streamed_end();
    for (size_t i = 0; i < RANGES; i++) {
        addresses[i] = (char *)ms_streamed_map_address(map) + ranges[i].offset_bytes;
    }
    return map;
}

static ms_streamed_blocks list(char *const *addresses, size_t count)
{
    return (ms_streamed_blocks){.addresses = (const void *const *)addresses, .count = count};
}

static void assert_bytes(const ms_streamed_map *map, size_t first, size_t count)
{
    const unsigned char *bytes = ms_streamed_map_address(map);
    for (size_t i = first; i < first + count; i++) {
        if (bytes[i] != byte_at(i)) {
            fail_msg("byte %zu differs", i);
        }
    }
}

/* Whether the page of an address is mapped, by the kernel's table of this process's pages. */
static bool is_mapped(const char *address)
{
    uint64_t entry = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    assert_true(fd >= 0);
    off_t at = (off_t)((uintptr_t)address / PAGE * sizeof entry);
    assert_int_equal(pread(fd, &entry, sizeof entry, at), sizeof entry);
    close(fd);
    return (entry >> 63) != 0;
}

static void ranges_are_blocks_that_come_and_go(void **state)
{
    (void)state;
    char *at[RANGES];
    ms_streamed_stats stats;
    ms_streamed_map *map = map_file(at);
    ms_streamed_get_stats(&stats);
    assert_int_equal(stats.blocks, RANGES);
    assert_true(stats.total_bytes >= FILE_BYTES - 2 * PAGE && stats.total_bytes <= FILE_BYTES + PAGE);
    assert_int_equal(ms_streamed_bytes(list(at, RANGES)), stats.total_bytes);
    assert_int_equal(ms_streamed_checkpoint_bytes(list(at, RANGES)), stats.total_bytes);
    ms_streamed_set_window(2 * (RANGE_BYTES + PAGE));
    for (size_t i = 0; i < RANGES; i++) {
        ms_streamed_use(list(&at[i], 1), list(&at[i], 0));
        assert_true(is_mapped(at[i] + PAGE));
    }
    assert_false(is_mapped(at[0] + 2 * PAGE));
    assert_true(is_mapped(at[RANGES - 1] + 2 * PAGE));
    assert_bytes(map, 0, FILE_BYTES);
    ms_streamed_unmap(map);
}

static void room_for_the_next_layer_is_made_by_the_thread_that_trains(void **state)
{
    (void)state;
    char *at[RANGES];
    ms_streamed_map *map = map_file(at);
    ms_streamed_set_window(2 * (RANGE_BYTES + PAGE));
    ms_streamed_use(list(&at[0], 1), list(&at[0], 0));
    ms_streamed_use(list(&at[1], 1), list(&at[2], 1));
    assert_false(is_mapped(at[0] + 2 * PAGE));
    ms_streamed_unmap(map);
}

static void written_bytes_are_never_dropped(void **state)
{
    (void)state;
    char *at[RANGES];
    ms_streamed_map *map = map_file(at);
    memset(at[1] + 5 * PAGE, 77, 3);
    for (int round = 0; round < 3; round++) {
        ms_streamed_drop();
        assert_int_equal(at[1][5 * PAGE], 77);
        assert_false(is_mapped(at[1] + 20 * PAGE));
        assert_bytes(map, 0, HEAD + RANGE_BYTES);
    }
    ms_streamed_set_window(0);
    usleep(100000); /* the worker sweeps */
    assert_int_equal(at[1][5 * PAGE], 77);
    ms_streamed_unmap(map);
    char *again[RANGES];
    map = map_file(again);
    assert_bytes(map, 0, FILE_BYTES); /* the file has not changed */
    ms_streamed_unmap(map);
}

static void owned_blocks_keep_bytes_and_addresses(void **state)
{
    (void)state;
    ms_error err;
    char *at[RANGES];
    ms_streamed_map *map = map_file(at);
    memset(at[1] + 5 * PAGE, 77, 3);
    assert_ms_ok(ms_streamed_own(list(at, RANGES), true, &err), err);
    assert_ms_ok(ms_streamed_own(list(&at[2], 1), false, &err), err);
    assert_int_equal(ms_streamed_checkpoint_bytes(list(&at[1], 2)), 0);
    assert_true(ms_streamed_checkpoint_bytes(list(at, RANGES)) > 0);
    memset(at[2] + PAGE, 78, RANGE_BYTES - 3 * PAGE);
    ms_streamed_drop();
    assert_false(is_mapped(at[1] + 5 * PAGE));
    assert_false(is_mapped(at[2] + 5 * PAGE));
    assert_int_equal(at[1][5 * PAGE], 77);
    assert_int_equal(at[2][5 * PAGE], 78);
    assert_bytes(map, 0, HEAD + RANGE_BYTES);
    assert_bytes(map, ranges[3].offset_bytes, RANGE_BYTES);
    assert_int_equal(unlink(path), 0); /* the map needs no name */
    assert_bytes(map, 0, HEAD + RANGE_BYTES);
    ms_streamed_unmap(map);
}

static void wrong_files_and_ranges_are_refused(void **state)
{
    (void)state;
    ms_error err;
    ms_streamed_map *map = NULL;
    assert_ms_fails(ms_streamed_map_file(path, FILE_BYTES, ranges, 1, &map, &err), MS_ESTATE, err, "off");
    assert_ms_ok(ms_streamed_begin(directory, &err), err);
    assert_ms_fails(ms_streamed_map_file(path, FILE_BYTES + 1, ranges, 1, &map, &err), MS_EFORMAT, err, path);
    assert_ms_fails(ms_streamed_map_file("nowhere", 1, NULL, 0, &map, &err), MS_ESYSTEM, err, "nowhere");
    assert_ms_fails(ms_streamed_map_file(directory, 1, NULL, 0, &map, &err), MS_ESYSTEM, err, directory);
    ms_streamed_range wrong[] = {ranges[1], ranges[0]};
    assert_ms_fails(ms_streamed_map_file(path, FILE_BYTES, wrong, 2, &map, &err), MS_EINVAL, err, "range 1");
    wrong[0].size_bytes = FILE_BYTES;
    assert_ms_fails(ms_streamed_map_file(path, FILE_BYTES, wrong, 1, &map, &err), MS_EINVAL, err, "range 0");
    ms_fault_arm(MS_FAULT_MAP, 1, ENOMEM);
    assert_ms_fails(ms_streamed_map_file(path, FILE_BYTES, ranges, RANGES, &map, &err), MS_ENOMEM, err, "mapping");
    ms_fault_disarm_all();
    ms_streamed_end();
    assert_null(map);
}

static void a_lent_map_streams_and_stays_the_callers(void **state)
{
    (void)state;
    ms_error err;
    ms_streamed_map *lent = NULL;
    int fd = open(path, O_RDWR);
    char *bytes = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(bytes != MAP_FAILED);
    close(fd);
    assert_ms_fails(ms_streamed_lend(bytes + 8, RANGE_BYTES, &lent, &err), MS_EINVAL, err, "whole pages");
    assert_ms_fails(ms_streamed_lend(bytes, PAGE, &lent, &err), MS_EINVAL, err, "too small");
    assert_ms_ok(ms_streamed_lend(bytes, FILE_BYTES, &lent, &err), err);
    bytes[RANGE_BYTES] = 5;
    ms_streamed_drop();
    assert_false(is_mapped(bytes + RANGE_BYTES));
    assert_int_equal(bytes[RANGE_BYTES], 5);
    ms_streamed_unmap(lent);
    ms_streamed_drop();
    assert_true(is_mapped(bytes + RANGE_BYTES));
    munmap(bytes, FILE_BYTES);
}

static void a_failure_to_own_leaves_the_block_as_it_was(void **state)
{
    (void)state;
    ms_error err;
    char *at[RANGES];
    ms_streamed_map *map = map_file(at);
    int rc = MS_OK;
    for (size_t i = 0; i < RANGES && rc == MS_OK; i++) { /* the worker reads /proc, and may take the fault */
        ms_fault_arm(MS_FAULT_OPEN, 2, ENOSPC);
        rc = ms_streamed_own(list(&at[i], 1), false, &err);
        ms_fault_disarm_all();
    }
    assert_int_equal(rc, MS_ENOSPC);
    ms_streamed_drop();
    assert_bytes(map, 0, FILE_BYTES);
    ms_streamed_unmap(map);
}

int main(void)
{
#if TEST_OWN_ALLOCATOR
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranges_are_blocks_that_come_and_go, setup, teardown),
        cmocka_unit_test_setup_teardown(room_for_the_next_layer_is_made_by_the_thread_that_trains, setup, teardown),
        cmocka_unit_test_setup_teardown(written_bytes_are_never_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(owned_blocks_keep_bytes_and_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_files_and_ranges_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lent_map_streams_and_stays_the_callers, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failure_to_own_leaves_the_block_as_it_was, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
