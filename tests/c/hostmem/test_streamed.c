/* Streamed blocks: readable at any time, resident only within the window, freed with their last user. */
#include <errno.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/procfs.h"
#include "streamed_support.h"

enum { BLOCK_BYTES = 8 << 20, BLOCKS = 6 };

static fake library;
static char directory[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    library = streamed_install(directory, sizeof directory);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return streamed_uninstall();
}

static void make_blocks(char *blocks[BLOCKS])
{
    ms_error err;
    assert_ms_ok(ms_streamed_begin(directory, &err), err);
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = fake_alloc(&library, BLOCK_BYTES);
        memset(blocks[i], (int)i + 1, BLOCK_BYTES);
    }
    ms_streamed_end();
    assert_int_equal(ms_streamed_failure(NULL), MS_OK);
}

static void free_blocks(char *blocks[BLOCKS])
{
    for (size_t i = 0; i < BLOCKS; i++) {
        library.free(blocks[i]);
    }
}

static ms_streamed_blocks list(char *const *blocks, size_t count)
{
    return (ms_streamed_blocks){.addresses = (const void *const *)blocks, .count = count};
}

static const ms_streamed_blocks none = {NULL, 0};

/* The bytes of the block whose pages are mapped, by the kernel's table of this process's pages. */
static size_t mapped_bytes(const char *block)
{
    FILE *file = fopen("/proc/self/pagemap", "rb");
    uint64_t entry = 0;
    size_t mapped = 0;
    assert_non_null(file);
    for (size_t at = 0; at < BLOCK_BYTES; at += 4096) {
        assert_int_equal(fseek(file, (long)(((uintptr_t)block + at) / 4096 * sizeof entry), SEEK_SET), 0);
        assert_int_equal(fread(&entry, sizeof entry, 1, file), 1);
        mapped += (entry >> 63) != 0;
    }
    fclose(file);
    return mapped * 4096;
}

static bool is_mapped(const char *block)
{
    return mapped_bytes(block) == BLOCK_BYTES;
}

static void only_blocks_made_meanwhile_are_streamed(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    void *before = fake_alloc(&library, BLOCK_BYTES);
    make_blocks(blocks);
    void *after = fake_alloc(&library, BLOCK_BYTES);
    assert_int_equal(streamed_now().blocks, BLOCKS);
    assert_int_equal(streamed_now().total_bytes, (uint64_t)BLOCKS * BLOCK_BYTES);
    assert_int_equal(stats_now().live_bytes, 2 * (uint64_t)BLOCK_BYTES);
    const void *mixed[] = {before, blocks[0] + 5, blocks[0], after, blocks[1], &mixed};
    assert_int_equal(ms_streamed_bytes((ms_streamed_blocks){mixed, 6}), 2 * BLOCK_BYTES);
    assert_int_equal(ms_streamed_checkpoint_bytes((ms_streamed_blocks){mixed, 6}), 0);
    library.free(before);
    library.free(after);
    free_blocks(blocks);
}

static void dropped_bytes_come_back(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    for (int round = 0; round < 2; round++) {
        ms_streamed_drop();
        for (size_t i = 0; i < BLOCKS; i++) {
            assert_int_equal(mapped_bytes(blocks[i]), 0);
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            for (size_t at = 0; at < BLOCK_BYTES; at += 4096) {
                assert_int_equal(blocks[i][at], (char)((int)i + 1 + round));
            }
            memset(blocks[i], (int)i + 2 + round, BLOCK_BYTES);
        }
    }
    free_blocks(blocks);
}

static void the_window_holds_the_blocks_used_last(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    ms_streamed_set_window(2 * BLOCK_BYTES);
    ms_streamed_drop();
    for (size_t i = 0; i < BLOCKS; i++) {
        ms_streamed_use(list(&blocks[i], 1), none);
        assert_true(is_mapped(blocks[i]));
        assert_true(streamed_now().resident_bytes <= 2 * BLOCK_BYTES);
    }
    assert_true(is_mapped(blocks[BLOCKS - 2]));
    assert_int_equal(mapped_bytes(blocks[BLOCKS - 3]), 0);
    uint64_t before = streamed_now().dropped_bytes;
    ms_streamed_use(list(&blocks[BLOCKS - 1], 1), none);
    ms_streamed_use(list(&blocks[BLOCKS - 2], 1), none);
    assert_int_equal(streamed_now().dropped_bytes, before); /* backward begins with blocks that are resident */
    ms_streamed_use(list(&blocks[BLOCKS - 3], 1), none);
    assert_int_equal(mapped_bytes(blocks[BLOCKS - 1]), 0);
    free_blocks(blocks);
}

static void kept_blocks_stay_until_all_are_dropped(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    ms_streamed_drop();
    ms_streamed_set_window(2 * BLOCK_BYTES);
    ms_streamed_keep(list(blocks, 1));
    ms_streamed_use(list(blocks, 1), none);
    for (size_t i = 1; i < BLOCKS; i++) {
        ms_streamed_use(list(&blocks[i], 1), none);
        assert_true(is_mapped(blocks[0]));
        assert_int_equal(streamed_now().resident_bytes, 2 * BLOCK_BYTES);
    }
    ms_streamed_keep(list(&blocks[1], 1));
    assert_int_equal(streamed_now().kept_bytes, BLOCK_BYTES);
    ms_streamed_use(list(&blocks[1], 1), none);
    ms_streamed_drop();
    assert_int_equal(mapped_bytes(blocks[1]), 0);
    assert_int_equal(streamed_now().resident_bytes, BLOCK_BYTES);
    free_blocks(blocks);
}

static void wait_until_mapped(const char *block)
{
    uint64_t deadline_ns = ms_now_ns() + PATIENCE_NS;
    while (!is_mapped(block)) {
        assert_true(ms_now_ns() < deadline_ns);
        usleep(1000);
    }
}

static void the_worker_fills_what_comes_next_within_the_window(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    ms_streamed_set_window(3 * BLOCK_BYTES);
    ms_streamed_drop();
    ms_streamed_use(list(blocks, 1), list(&blocks[1], BLOCKS - 1));
    wait_until_mapped(blocks[2]);
    assert_true(is_mapped(blocks[0]));
    assert_int_equal(streamed_now().resident_bytes, 3 * BLOCK_BYTES);
    assert_int_equal(mapped_bytes(blocks[3]), 0);
    free_blocks(blocks);
}

static void what_is_dropped_while_it_is_filled_stays_dropped(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    ms_streamed_set_window(BLOCKS * BLOCK_BYTES);
    for (unsigned round = 0; round < 200; round++) {
        ms_streamed_use(none, list(blocks, 1));
        usleep(round % 20 * 100); /* the fill takes about 1 ms: the drop comes before, during and after it */
        ms_streamed_drop();
        ms_streamed_use(none, list(&blocks[1], 1));
        wait_until_mapped(blocks[1]); /* the worker has left the first block */
        assert_int_equal(mapped_bytes(blocks[0]), 0);
        ms_streamed_drop();
    }
    free_blocks(blocks);
}

static void the_next_layer_is_the_one_that_followed_before(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    ms_error err;
    make_blocks(blocks);
    ms_streamed_layers *layers = ms_streamed_layers_new();
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_ms_ok(ms_streamed_layers_add(layers, list(&blocks[i], 1), &err), err);
    }
    assert_int_equal(ms_streamed_layers_least_bytes(layers), 2 * BLOCK_BYTES);
    ms_streamed_set_window(2 * BLOCK_BYTES);
    static const uint32_t forward[] = {0, 2, 4, 1}, backward[] = {1, 4, 2, 0};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            ms_streamed_layers_enter(layers, forward[i], false);
        }
        for (size_t i = 0; i < 4; i++) {
            ms_streamed_layers_enter(layers, backward[i], true);
        }
    }
    ms_streamed_layers_enter(layers, BLOCKS, false); /* no layer */
    ms_streamed_drop();
    ms_streamed_layers_enter(layers, 2, false);
    wait_until_mapped(blocks[4]);
    assert_int_equal(mapped_bytes(blocks[3]), 0);
    ms_streamed_drop();
    ms_streamed_layers_enter(layers, 4, true);
    wait_until_mapped(blocks[2]);
    ms_streamed_layers_free(layers);
    ms_streamed_layers_free(NULL);
    free_blocks(blocks);
}

static void layers_report_when_memory_is_short(void **state)
{
    (void)state;
    ms_error err;
    const void *address = &err;
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_null(ms_streamed_layers_new());
    ms_streamed_layers *layers = ms_streamed_layers_new();
    for (uint64_t nth = 1; nth <= 2; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        assert_int_equal(ms_streamed_layers_add(layers, (ms_streamed_blocks){&address, 1}, &err), MS_ENOMEM);
    }
    ms_fault_disarm_all();
    assert_int_equal(ms_streamed_layers_least_bytes(layers), 0);
    ms_streamed_layers_free(layers);
}

static uint64_t file_bytes(void)
{
    ms__resident resident;
    ms_error err;
    assert_ms_ok(ms__resident_read(&resident, &err), err);
    return resident.file_bytes;
}

static void pages_touched_without_being_entered_are_dropped(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    ms_streamed_drop();
    ms_streamed_set_window(BLOCK_BYTES);
    uint64_t before = file_bytes();
    volatile char sum = 0;
    for (size_t i = 0; i < BLOCKS; i++) {
        for (size_t at = 0; at < BLOCK_BYTES; at += 4096) {
            sum = (char)(sum + blocks[i][at]);
        }
    }
    uint64_t deadline_ns = ms_now_ns() + PATIENCE_NS;
    while (file_bytes() > before + BLOCK_BYTES + (24 << 20)) {
        assert_true(ms_now_ns() < deadline_ns);
        usleep(1000);
    }
    free_blocks(blocks);
}

static void a_child_has_the_bytes_but_no_worker(void **state)
{
    (void)state;
    char *blocks[BLOCKS];
    make_blocks(blocks);
    ms_streamed_drop();
    pid_t child = fork();
    if (child == 0) {
        ms_streamed_use(list(blocks, 1), list(&blocks[1], 1));
        _exit(blocks[0][4096] == 1 && blocks[5][0] == 6 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    free_blocks(blocks);
}

/* Makes a block with a fault armed. The worker reads /proc now and then, and may take the fault: then once more. */
static int alloc_under_fault(ms_fault kind, int nth, int system_errno)
{
    int rc = 0;
    for (int attempt = 0; rc == 0 && attempt < 20; attempt++) {
        void *block = NULL;
        ms_fault_arm(kind, (uint64_t)nth, system_errno);
        rc = library.alloc_aligned(&block, 64, BLOCK_BYTES);
        ms_fault_disarm_all();
        if (rc == 0) {
            library.free(block);
        }
    }
    return rc;
}

static void a_block_that_cannot_be_made_says_why(void **state)
{
    (void)state;
    const struct {
        ms_fault kind;
        int nth, system_errno, code;
    } cases[] = {
        {MS_FAULT_OPEN, 1, EMFILE, MS_ESYSTEM}, {MS_FAULT_OPEN, 2, ENOSPC, MS_ENOSPC},
        {MS_FAULT_WRITE, 1, EIO, MS_EIO},       {MS_FAULT_WRITE, 2, ENOSPC, MS_ENOSPC},
        {MS_FAULT_MAP, 1, ENOMEM, MS_ENOMEM},   {MS_FAULT_MAP, 2, EPERM, MS_ESYSTEM},
    };
    ms_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ms_ok(ms_streamed_begin(directory, &err), err);
        assert_int_equal(alloc_under_fault(cases[i].kind, cases[i].nth, cases[i].system_errno), ENOMEM);
        assert_int_equal(ms_streamed_failure(&err), cases[i].code);
        assert_true(err.text[0] != '\0');
        ms_streamed_end();
        assert_int_equal(streamed_now().blocks, 0);
    }
    void *block = NULL;
    assert_ms_ok(ms_streamed_begin(directory, &err), err);
    assert_int_equal(library.alloc_aligned(&block, 64, SIZE_MAX - 4096), ENOMEM);
    assert_int_equal(ms_streamed_failure(&err), MS_ENOMEM);
    ms_streamed_end();
}

static void bad_directories_are_refused(void **state)
{
    (void)state;
    ms_error err;
    assert_int_equal(ms_streamed_begin("/nowhere/at/all", &err), MS_ESYSTEM);
    assert_int_equal(ms_streamed_begin("/proc", &err), MS_ESYSTEM);
    if (access("/dev/shm", W_OK) == 0) {
        assert_int_equal(ms_streamed_begin("/dev/shm", &err), MS_ECONFIG);
    }
    ms_streamed_end(); /* nothing began: nothing happens */
    assert_ms_ok(ms_streamed_begin(directory, &err), err);
    assert_int_equal(ms_streamed_begin("/tmp/another", &err), MS_ESTATE);
    assert_ms_ok(ms_streamed_begin(directory, &err), err);
    ms_streamed_end();
    void *block = fake_alloc(&library, BLOCK_BYTES);
    assert_int_equal(streamed_now().blocks, 1);
    ms_streamed_end();
    library.free(block);
}

static void without_the_allocator_nothing_streams(void **state)
{
    (void)state;
    ms_error err;
    ms_hostmem_uninstall();
    assert_int_equal(ms_streamed_begin(directory, &err), MS_ENOTSUP);
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_blocks_made_meanwhile_are_streamed, setup, teardown),
        cmocka_unit_test_setup_teardown(dropped_bytes_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(the_window_holds_the_blocks_used_last, setup, teardown),
        cmocka_unit_test_setup_teardown(kept_blocks_stay_until_all_are_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(the_worker_fills_what_comes_next_within_the_window, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_dropped_while_it_is_filled_stays_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(the_next_layer_is_the_one_that_followed_before, setup, teardown),
        cmocka_unit_test_setup_teardown(layers_report_when_memory_is_short, setup, teardown),
        cmocka_unit_test_setup_teardown(pages_touched_without_being_entered_are_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_child_has_the_bytes_but_no_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(a_block_that_cannot_be_made_says_why, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_directories_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(without_the_allocator_nothing_streams, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
