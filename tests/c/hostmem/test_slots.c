/* The slots: taken only if they hold the expected values, restored exactly, without harm to live
 * blocks or to other tools that took them. */
#include <errno.h>
#include <sys/mman.h>

#include "fake.h"
#include "hostmem/slots.h"

static char last_line[1024];

static void remember_line(void *context, ms_log_level level, const char *line)
{
    (void)context;
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static int setup(void **state)
{
    (void)state;
    last_line[0] = '\0';
    ms_log_set_sink(remember_line, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    ms_log_set_sink(NULL, NULL);
    ms_hostmem_stats stats = stats_now();
    return stats.live_bytes == 0 && stats.cached_bytes == 0 && stats.means == MS_HOSTMEM_NONE ? 0 : -1;
}

/* ---- helpers ------------------------------------------------------------- */

static ms__got_slot slot_of(const fake *library, const char *symbol)
{
    ms__got_slot slot = {0};
    char reason[MS__GOT_SLOT_REASON_MAX];
    (void)ms__got_slot_find(ms__got_slot_library(library->path), symbol, 0, &slot, reason);
    assert_non_null(slot.cell);
    return slot;
}

static uintptr_t held_by(const ms__got_slot *slot)
{
    return atomic_load(slot->cell);
}

static uintptr_t linker_answer(const char *symbol)
{
    return (uintptr_t)dlsym(RTLD_DEFAULT, symbol);
}

/* Checks that both slots hold the linker's addresses. */
static bool are_slots_restored(const fake *library)
{
    ms__got_slot memalign_slot = slot_of(library, "posix_memalign");
    ms__got_slot free_slot = slot_of(library, "free");
    return held_by(&memalign_slot) == linker_answer("posix_memalign") && held_by(&free_slot) == linker_answer("free");
}

static bool is_writable(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    char line[512];
    bool found = false;
    bool writable = false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start;
        unsigned long end;
        char rights[5];
        assert_int_equal(sscanf(line, "%lx-%lx %4s", &start, &end, rights), 3);
        found = (uintptr_t)address >= start && (uintptr_t)address < end;
        writable = rights[1] == 'w';
    }
    fclose(maps);
    assert_true(found);
    return writable;
}

static void assert_serves_blocks(const fake *library)
{
    ms_hostmem_stats before = stats_now();
    char *big = fake_alloc(library, MS_HOSTMEM_MIN_BYTES);
    char *huge = fake_alloc(library, 5 * MIB + 1);
    char *small = fake_alloc(library, MS_HOSTMEM_MIN_BYTES - 1);
    assert_true(ms_hostmem_find(big, NULL));
    assert_true(ms_hostmem_find(huge, NULL));
    assert_false(ms_hostmem_find(small, NULL));
    assert_int_equal((uintptr_t)big % 4096, 0);
    assert_int_equal((uintptr_t)huge % (2 * MIB), 0);
    memset(big, 1, MS_HOSTMEM_MIN_BYTES);
    memset(huge, 2, 5 * MIB + 1);
    memset(small, 3, MS_HOSTMEM_MIN_BYTES - 1);
    assert_int_equal(stats_now().live_blocks, before.live_blocks + 2);
    assert_int_equal(stats_now().live_bytes, before.live_bytes + MS_HOSTMEM_MIN_BYTES + 5 * MIB + 4096);
    library->free(big);
    library->free(huge);
    library->free(small);
    library->free(NULL);
    assert_int_equal(stats_now().live_bytes, before.live_bytes);
}

/* ---- bindings ------------------------------------------------------------ */

static void serves_and_restores(const char *variable, bool is_lazy, bool is_read_only)
{
    fake library = fake_load(variable);
    ms__got_slot before = slot_of(&library, "free");
    assert_int_equal(before.is_read_only, is_read_only);
    assert_int_equal(!is_writable((void *)before.cell), is_read_only);
    assert_int_equal(held_by(&before) != linker_answer("free"), is_lazy);
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
    assert_non_null(strstr(last_line, "memory maps of their own"));
    assert_int_equal(!is_writable((void *)before.cell), is_read_only);
    assert_serves_blocks(&library);
    assert_serves_blocks(&library); /* the first call did not rebind the slots */
    ms_hostmem_uninstall();
    assert_true(are_slots_restored(&library));
    assert_int_equal(!is_writable((void *)before.cell), is_read_only);
    void *block = fake_alloc(&library, 3 * MIB);
    assert_false(ms_hostmem_find(block, NULL));
    library.free(block);
}

static void lazy_slots_are_served_and_restored(void **state)
{
    (void)state;
    serves_and_restores("FAKE_C10_LAZY", getenv("LD_BIND_NOW") == NULL, false);
}

static void read_only_slots_are_served_and_restored(void **state)
{
    (void)state;
    serves_and_restores("FAKE_C10_NOW", false, true);
}

static void slots_without_a_plt_are_served_and_restored(void **state)
{
    (void)state;
    serves_and_restores("FAKE_C10_NOPLT", false, true);
}

/* ---- without the slots --------------------------------------------------- */

static void assert_falls_back(const fake *library, const char *why)
{
    ms_hostmem_means means = install_into(library);
    assert_int_equal(means, TEST_OWN_ALLOCATOR ? MS_HOSTMEM_NONE : MS_HOSTMEM_MALLOPT);
    assert_int_equal(stats_now().means, means);
    if (strstr(last_line, why) == NULL) {
        fail_msg("the log says \"%s\", not \"%s\"", last_line, why);
    }
}

static void a_library_without_slots_gets_mallopt(void **state)
{
    (void)state;
    fake library = fake_load("FAKE_C10_NONE");
    assert_falls_back(&library, "does not call posix_memalign through a slot");
    enum { BLOCKS = 16 }; /* more than the heap's free memory can serve */
    void *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = fake_alloc(&library, MIB + 4096);
        memset(blocks[i], 1, MIB + 4096);
        assert_false(ms_hostmem_find(blocks[i], NULL));
    }
    if (!TEST_OWN_ALLOCATOR) {
        /* glibc's header of a block that is a map of its own has bit 1 set. */
        assert_int_equal(((size_t *)blocks[BLOCKS - 1])[-1] & 2, 2);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        library.free(blocks[i]);
    }
    ms_hostmem_uninstall();
    if (!TEST_OWN_ALLOCATOR) { /* uninstalling restores mallopt()'s setting */
        blocks[0] = fake_alloc(&library, MIB + 4096);
        assert_int_equal(((size_t *)blocks[0])[-1] & 2, 0);
        library.free(blocks[0]);
    }
}

static void a_library_that_is_not_loaded_gets_mallopt(void **state)
{
    (void)state;
    fake library = {.path = "libno_such_thing.so"};
    assert_falls_back(&library, "is not loaded");
    ms_hostmem_uninstall();
}

static void a_fall_back_does_not_stop_the_slots_later(void **state)
{
    (void)state;
    fake missing = {.path = "libno_such_thing.so"};
    fake library = fake_load("FAKE_C10_LAZY");
    assert_falls_back(&missing, "is not loaded");
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
    ms_hostmem_uninstall();
    assert_int_equal(stats_now().means, MS_HOSTMEM_SLOTS);
    ms_hostmem_uninstall();
    assert_true(are_slots_restored(&library));
}

/* ---- other users of the same slots --------------------------------------- */

static uintptr_t thief_goes_on_to;
static unsigned thief_calls;

static void thief_free(void *block)
{
    thief_calls++;
    ((void (*)(void *))thief_goes_on_to)(block);
}

static void steal(const ms__got_slot *slot, uintptr_t expected, uintptr_t desired)
{
    assert_true(ms__got_slot_exchange(slot, expected, desired));
}

static void a_slot_with_an_unexpected_value_is_left_alone(void **state)
{
    (void)state;
    const char *variables[] = {"FAKE_C10_LAZY", "FAKE_C10_NOW"};
    for (size_t i = 0; i < 2; i++) {
        fake library = fake_load(variables[i]);
        ms__got_slot slot = slot_of(&library, "free");
        thief_goes_on_to = linker_answer("free");
        steal(&slot, slot.found, (uintptr_t)thief_free);
        assert_falls_back(&library, "already leads to");
        assert_int_equal(held_by(&slot), (uintptr_t)thief_free);
        ms__got_slot other = slot_of(&library, "posix_memalign");
        assert_int_equal(held_by(&other), other.found);
        assert_int_equal(other.found, other.real); /* the linker's address, not the hook */
        ms_hostmem_uninstall();
        assert_int_equal(held_by(&slot), (uintptr_t)thief_free);
        steal(&slot, (uintptr_t)thief_free, slot.found);
    }
}

static void a_slot_taken_by_another_tool_is_not_restored_and_gets_no_new_blocks(void **state)
{
    (void)state;
    fake library = fake_load("FAKE_C10_LAZY");
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
    void *before = fake_alloc(&library, 2 * MIB);
    assert_true(ms_hostmem_find(before, NULL));
    ms__got_slot slot = slot_of(&library, "free");
    thief_goes_on_to = held_by(&slot);
    thief_calls = 0;
    steal(&slot, thief_goes_on_to, (uintptr_t)thief_free);

    void *after = fake_alloc(&library, 2 * MIB);
    assert_false(ms_hostmem_find(after, NULL));
    ms_hostmem_uninstall();
    assert_int_equal(held_by(&slot), (uintptr_t)thief_free);
    library.free(after);
    library.free(before);
    assert_int_equal(thief_calls, 2);
    assert_int_equal(held_by(&slot), (uintptr_t)thief_free);
    assert_int_equal(stats_now().live_blocks, 0);
    steal(&slot, (uintptr_t)thief_free, linker_answer("free"));
    assert_true(are_slots_restored(&library));
}

/* ---- installing and uninstalling ----------------------------------------- */

static void users_are_counted(void **state)
{
    (void)state;
    fake library = fake_load("FAKE_C10_LAZY");
    install_into(&library);
    install_into(&library);
    ms_hostmem_uninstall();
    assert_serves_blocks(&library);
    ms_hostmem_uninstall();
    assert_true(are_slots_restored(&library));
    ms_hostmem_uninstall(); /* an extra call does nothing */
    install_into(&library);
    assert_serves_blocks(&library);
    ms_hostmem_uninstall();
    assert_true(are_slots_restored(&library));
}

static void a_second_library_is_refused(void **state)
{
    (void)state;
    fake first = fake_load("FAKE_C10_LAZY");
    fake second = fake_load("FAKE_C10_NOW");
    ms_error err;
    install_into(&first);
    assert_ms_fails(ms_hostmem_install(second.path, NULL, &err), MS_ESTATE, err, "served already");
    assert_ms_fails(ms_hostmem_install(NULL, NULL, &err), MS_ESTATE, err, "libc10.so");
    assert_true(are_slots_restored(&second));
    ms_hostmem_uninstall();
    assert_true(are_slots_restored(&first));
}

static void free_stays_until_the_last_block_is_gone(const char *variable)
{
    fake library = fake_load(variable);
    ms_hostmem_set_ceiling(64 * MIB);
    install_into(&library);
    char *first = fake_alloc(&library, 2 * MIB);
    char *second = fake_alloc(&library, 3 * MIB);
    library.free(fake_alloc(&library, 4 * MIB));
    assert_int_equal(stats_now().cached_bytes, 4 * MIB);
    void *buffer = ms_hostmem_alloc(MIB); /* a buffer of the library: doesn't keep `free` hooked */
    ms_hostmem_uninstall();

    ms__got_slot memalign_slot = slot_of(&library, "posix_memalign");
    ms__got_slot free_slot = slot_of(&library, "free");
    assert_int_equal(stats_now().cached_bytes, 0);
    assert_int_equal(held_by(&memalign_slot), linker_answer("posix_memalign"));
    assert_int_not_equal(held_by(&free_slot), linker_answer("free"));
    void *foreign = fake_alloc(&library, 2 * MIB);
    assert_false(ms_hostmem_find(foreign, NULL));
    memset(first, 1, 2 * MIB);
    library.free(first);
    library.free(foreign);
    assert_int_not_equal(held_by(&free_slot), linker_answer("free"));
    memset(second, 2, 3 * MIB);
    library.free(second);
    assert_true(are_slots_restored(&library));
    assert_int_equal(stats_now().live_blocks, 1);
    assert_int_equal(stats_now().cached_bytes, 0);
    ms_hostmem_release(buffer);
}

static void free_stays_while_blocks_live(void **state)
{
    (void)state;
    free_stays_until_the_last_block_is_gone("FAKE_C10_LAZY");
    free_stays_until_the_last_block_is_gone("FAKE_C10_NOW");
    free_stays_until_the_last_block_is_gone("FAKE_C10_NOPLT");
}

/* A thread may have read the slot just before it was restored. */
static void a_call_in_flight_at_uninstall_is_not_served(void **state)
{
    (void)state;
    fake library = fake_load("FAKE_C10_LAZY");
    install_into(&library);
    ms__got_slot memalign_slot = slot_of(&library, "posix_memalign");
    ms__got_slot free_slot = slot_of(&library, "free");
    uintptr_t hooks[2] = {held_by(&memalign_slot), held_by(&free_slot)};
    void *block = fake_alloc(&library, 2 * MIB);
    ms_hostmem_uninstall();
    void *late = NULL;
    assert_int_equal(((int (*)(void **, size_t, size_t))hooks[0])(&late, 64, 2 * MIB), 0);
    assert_false(ms_hostmem_find(late, NULL)); /* although `free` is still hooked */
    library.free(block);
    assert_true(are_slots_restored(&library));
    ((void (*)(void *))hooks[1])(late);
    assert_int_equal(((int (*)(void **, size_t, size_t))hooks[0])(&late, 64, 2 * MIB), 0);
    assert_false(ms_hostmem_find(late, NULL));
    library.free(late);
}

static void installing_again_over_living_blocks_works(void **state)
{
    (void)state;
    fake library = fake_load("FAKE_C10_NOW");
    fake other = fake_load("FAKE_C10_LAZY");
    install_into(&library);
    void *block = fake_alloc(&library, 2 * MIB);
    ms_hostmem_uninstall();
    assert_falls_back(&other, "still live");
    ms_hostmem_uninstall();
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
    library.free(block);
    assert_serves_blocks(&library);
    ms_hostmem_uninstall();
    assert_true(are_slots_restored(&library));
}

/* ---- arguments and faults ------------------------------------------------ */

static void odd_alignments_get_what_posix_promises(void **state)
{
    (void)state;
    fake library = fake_load("FAKE_C10_LAZY");
    install_into(&library);
    void *block = NULL;
    if (!TEST_OWN_ALLOCATOR) { /* a sanitizer ends the program instead */
        assert_int_equal(library.alloc_aligned(&block, 24, 2 * MIB), EINVAL);
        assert_int_equal(library.alloc_aligned(&block, 0, 2 * MIB), EINVAL);
        assert_int_equal(library.alloc_aligned(&block, 64, SIZE_MAX - 100), ENOMEM);
        assert_int_equal(library.alloc_aligned(&block, 64, SIZE_MAX / 2 - 100), ENOMEM);
    }
    const struct {
        size_t alignment;
        size_t bytes;
        bool is_ours;
    } cases[] = {
        {sizeof(void *), MIB, true},     {4096, MIB, true},         {8192, MIB + MIB / 2, false}, {8192, 2 * MIB, true},
        {2 * MIB, 2 * MIB + 4096, true}, {4 * MIB, 4 * MIB, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(library.alloc_aligned(&block, cases[i].alignment, cases[i].bytes), 0);
        assert_int_equal((uintptr_t)block % cases[i].alignment, 0);
        assert_int_equal(ms_hostmem_find(block, NULL), cases[i].is_ours);
        library.free(block);
    }
    ms_hostmem_uninstall();
}

static void every_failing_map_call_leaves_a_working_allocator(void **state)
{
    (void)state;
    const char *variables[] = {"FAKE_C10_LAZY", "FAKE_C10_NOW"};
    for (size_t i = 0; i < 2; i++) {
        fake library = fake_load(variables[i]);
        bool has_fired = true;
        for (uint64_t nth = 1; has_fired; nth++) {
            assert_true(nth < 100);
            ms_hostmem_set_ceiling(32 * MIB);
            ms_fault_arm(MS_FAULT_MAP, nth, ENOMEM);
            (void)install_into(&library);
            char *a = fake_alloc(&library, 2 * MIB);
            char *b = fake_alloc(&library, MIB);
            memset(a, 1, 2 * MIB);
            memset(b, 1, MIB);
            library.free(a);
            ms_hostmem_uninstall();
            library.free(b);
            has_fired = ms_fault_passed(MS_FAULT_MAP) >= nth;
            ms_fault_disarm_all();
            ms_hostmem_trim(0, false); /* the next call restores the remaining slot */
            assert_int_equal(stats_now().live_bytes, 0);
            assert_int_equal(stats_now().cached_bytes, 0);
            assert_true(are_slots_restored(&library));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lazy_slots_are_served_and_restored, setup, teardown),
        cmocka_unit_test_setup_teardown(read_only_slots_are_served_and_restored, setup, teardown),
        cmocka_unit_test_setup_teardown(slots_without_a_plt_are_served_and_restored, setup, teardown),
        cmocka_unit_test_setup_teardown(a_library_without_slots_gets_mallopt, setup, teardown),
        cmocka_unit_test_setup_teardown(a_library_that_is_not_loaded_gets_mallopt, setup, teardown),
        cmocka_unit_test_setup_teardown(a_fall_back_does_not_stop_the_slots_later, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slot_with_an_unexpected_value_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slot_taken_by_another_tool_is_not_restored_and_gets_no_new_blocks, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(users_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_library_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(free_stays_while_blocks_live, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_in_flight_at_uninstall_is_not_served, setup, teardown),
        cmocka_unit_test_setup_teardown(installing_again_over_living_blocks_works, setup, teardown),
        cmocka_unit_test_setup_teardown(odd_alignments_get_what_posix_promises, setup, teardown),
        cmocka_unit_test_setup_teardown(every_failing_map_call_leaves_a_working_allocator, setup, teardown),
    };
    return cmocka_run_group_tests_name("hostmem slots", tests, NULL, NULL);
}
