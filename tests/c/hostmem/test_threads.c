/* Many threads at once: threads free blocks that others allocated, the ceiling moves, slots are taken
 * and restored, and the process forks. Run under TSan and ASan. */
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "fake.h"

enum { WORKERS = 4, SHELF = 64 };

typedef struct workshop {
    fake library;
    _Atomic(unsigned char *) shelf[SHELF]; /* blocks on their way from thread to thread */
    atomic_bool is_over;
    atomic_uint wrong;
    atomic_ulong rounds;
} workshop;

typedef struct worker {
    ms__thread thread;
    workshop *shop;
    uint64_t seed;
} worker;

/* A block carries its size in its first bytes and repeats the low byte at its end. */
static unsigned char *make_block(const workshop *shop, uint64_t *seed)
{
    size_t bytes = MIB / 2 + (size_t)(next_random(seed) % 8) * 400000;
    void *block = NULL;
    if (shop->library.alloc_aligned(&block, 64, bytes) != 0) {
        return NULL;
    }
    memcpy(block, &bytes, sizeof bytes);
    ((unsigned char *)block)[bytes - 1] = (unsigned char)bytes;
    return block;
}

static void drop_block(workshop *shop, unsigned char *block)
{
    if (block == NULL) {
        return;
    }
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    ms_hostmem_block found;
    bool is_wrong = block[bytes - 1] != (unsigned char)bytes;
    if (ms_hostmem_find(block + bytes - 1, &found)) {
        is_wrong |= found.address != (uintptr_t)block || found.bytes < bytes;
    }
    atomic_fetch_add(&shop->wrong, is_wrong);
    shop->library.free(block);
}

static void work(void *argument)
{
    worker *self = argument;
    workshop *shop = self->shop;
    while (!atomic_load(&shop->is_over)) {
        unsigned char *block = make_block(shop, &self->seed);
        size_t place = next_random(&self->seed) % SHELF;
        drop_block(shop, atomic_exchange(&shop->shelf[place], block));
        shop->library.free(NULL);
        atomic_fetch_add(&shop->rounds, 1);
    }
}

static void start(workshop *shop, worker *workers, const char *variable)
{
    ms_error err;
    memset(workers, 0, WORKERS * sizeof *workers);
    shop->library = fake_load(variable);
    for (uint64_t i = 0; i < WORKERS; i++) {
        workers[i].shop = shop;
        workers[i].seed = i + 1;
        assert_ms_ok(ms__thread_start(&workers[i].thread, "worker", work, &workers[i], &err), err);
    }
}

static void finish(workshop *shop, worker *workers)
{
    atomic_store(&shop->is_over, true);
    for (size_t i = 0; i < WORKERS; i++) {
        ms__thread_join(&workers[i].thread);
    }
    for (size_t i = 0; i < SHELF; i++) {
        drop_block(shop, atomic_exchange(&shop->shelf[i], NULL));
    }
    assert_int_equal(atomic_load(&shop->wrong), 0);
}

static void assert_all_gone(void)
{
    ms_hostmem_stats stats = stats_now();
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.live_blocks, 0);
    assert_int_equal(stats.cached_bytes, 0);
    assert_int_equal(stats.means, MS_HOSTMEM_NONE);
}

static void blocks_pass_between_threads_under_a_moving_ceiling(void **state)
{
    (void)state;
    workshop shop = {0};
    worker workers[WORKERS];
    fake library = fake_load("FAKE_C10_LAZY");
    install_into(&library);
    start(&shop, workers, "FAKE_C10_LAZY");
    uint64_t seed = 7;
    /* Live bytes stay under 64 + 4 blocks of 3.4 MB: the ceilings are above and below. */
    for (int i = 0; i < 400; i++) {
        uint64_t ceiling_bytes = (uint64_t)(next_random(&seed) % 300) * MIB;
        ms_hostmem_set_ceiling(ceiling_bytes);
        for (int k = 0; k < 20; k++) {
            ms_hostmem_stats stats = stats_now();
            uint64_t held_bytes = stats.live_bytes + stats.cached_bytes;
            assert_true(stats.cached_bytes == 0 || held_bytes <= ceiling_bytes);
            assert_true(stats.peak_held_bytes >= stats.peak_live_bytes);
        }
        usleep(200);
    }
    finish(&shop, workers);
    ms_hostmem_uninstall();
    assert_all_gone();
}

static void slots_come_and_go_under_running_threads(const char *variable)
{
    workshop shop = {0};
    worker workers[WORKERS];
    fake library = fake_load(variable);
    start(&shop, workers, variable);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
        ms_hostmem_set_ceiling(100 * MIB);
        usleep(500);
        ms_hostmem_uninstall();
        usleep(100);
    }
    finish(&shop, workers);
    assert_all_gone();
}

static void slots_are_taken_and_restored_under_load(void **state)
{
    (void)state;
    slots_come_and_go_under_running_threads("FAKE_C10_NOW");
    slots_come_and_go_under_running_threads("FAKE_C10_NOPLT");
}

/* The work of a DataLoader's child: uses inherited blocks, allocates and frees its own. Its exit status
 * names the broken promise. */
static int live_as_a_child(workshop *shop, unsigned char *inherited)
{
    alarm(PATIENCE_S); /* a lock left behind would hang here */
    ms_hostmem_stats at_birth = stats_now();
    if (at_birth.cached_bytes != 0 || inherited[0] != 77) {
        return 1;
    }
    for (int i = 0; i < 20; i++) {
        void *block = NULL;
        if (shop->library.alloc_aligned(&block, 64, 2 * MIB) != 0 || !ms_hostmem_find(block, NULL)) {
            return 2;
        }
        memset(block, 1, 2 * MIB);
        shop->library.free(block);
    }
    shop->library.free(inherited);
    ms_hostmem_stats at_end = stats_now();
    if (at_end.live_blocks != at_birth.live_blocks - 1 || at_end.live_bytes != at_birth.live_bytes - 2 * MIB ||
        at_end.cached_bytes != 0) {
        return 3;
    }
    for (size_t i = 0; i < SHELF; i++) {
        unsigned char *block = atomic_exchange(&shop->shelf[i], NULL);
        /* A sanitizer's own allocator does not survive the fork of a process with threads. */
        if (!TEST_OWN_ALLOCATOR || ms_hostmem_find(block, NULL)) {
            drop_block(shop, block);
        }
    }
    ms_hostmem_uninstall();
    return atomic_load(&shop->wrong) == 0 ? 0 : 4;
}

static void children_of_a_concurrent_fork_work(void **state)
{
    (void)state;
    workshop shop = {0};
    worker workers[WORKERS];
    fake library = fake_load("FAKE_C10_LAZY");
    install_into(&library);
    ms_hostmem_set_ceiling(150 * MIB);
    start(&shop, workers, "FAKE_C10_LAZY");
    for (int i = 0; i < 60; i++) {
        unsigned char *inherited = fake_alloc(&shop.library, 2 * MIB);
        inherited[0] = 77;
        pid_t child = fork();
        if (child == 0) {
            _exit(live_as_a_child(&shop, inherited));
        }
        assert_true(child > 0);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fail_msg("child %d ended with %x", i, status);
        }
        assert_int_equal(inherited[0], 77);
        shop.library.free(inherited);
    }
    finish(&shop, workers);
    ms_hostmem_uninstall();
    assert_all_gone();
}

static void release(void *block)
{
    ms_hostmem_release(block);
}

/* The block is free but counts until it is unmapped; the unmapping thread does not exist in the
 * child. */
static void bytes_being_unmapped_do_not_count_in_a_child(void **state)
{
    (void)state;
    enum { LARGE_BYTES = 256 << 20 };
    ms_error err;
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* small pages take longer to unmap */
    for (int i = 0; i < 5; i++) {
        ms__thread thread = {0};
        void *block = ms_hostmem_alloc(LARGE_BYTES);
        memset(block, 1, LARGE_BYTES);
        assert_ms_ok(ms__thread_start(&thread, "release", release, block, &err), err);
        while (stats_now().live_blocks != 0) {
        }
        pid_t child = fork();
        if (child == 0) {
            _exit(stats_now().live_bytes == 0 ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        ms__thread_join(&thread);
        assert_all_gone();
    }
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

/* Other libraries' fork handlers run in the thread that holds hostmem's lock, and may free. */
static fake handler_library;
static void *handler_blocks[3];

static void free_in_prepare(void)
{
    handler_library.free(handler_blocks[0]);
    handler_blocks[0] = NULL;
}

static void free_in_child(void)
{
    handler_library.free(handler_blocks[1]);
    handler_blocks[1] = NULL;
}

static void other_fork_handlers_may_free_blocks(void **state)
{
    (void)state;
    handler_library = fake_load("FAKE_C10_LAZY");
    install_into(&handler_library);
    for (size_t i = 0; i < 3; i++) {
        handler_blocks[i] = fake_alloc(&handler_library, 2 * MIB);
    }
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_S);
        _exit(stats_now().live_blocks == 1 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(stats_now().live_blocks, 2);
    handler_library.free(handler_blocks[1]);
    handler_library.free(handler_blocks[2]);
    memset(handler_blocks, 0, sizeof handler_blocks);
    ms_hostmem_uninstall();
    assert_all_gone();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_pass_between_threads_under_a_moving_ceiling),
        cmocka_unit_test(slots_are_taken_and_restored_under_load),
        cmocka_unit_test(children_of_a_concurrent_fork_work),
        cmocka_unit_test(bytes_being_unmapped_do_not_count_in_a_child),
        cmocka_unit_test(other_fork_handlers_may_free_blocks),
    };
    handler_library = fake_load("FAKE_C10_LAZY");
    /* Registered before hostmem's, so that they run while it holds the lock: after it in prepare,
     * before it in the child. */
    pthread_atfork(free_in_prepare, NULL, free_in_child);
    return cmocka_run_group_tests_name("hostmem threads", tests, NULL, NULL);
}
