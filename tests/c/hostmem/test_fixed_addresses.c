/* In a program at fixed addresses, such as Debian's Python, code that takes the address of a libc
 * function makes the program's stub the function's address everywhere, also for dlsym(). */
#include "fake.h"

static void the_program_has_stubs(void **state)
{
    (void)state;
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    assert_non_null(libc);
    assert_true((uintptr_t)malloc == (uintptr_t)dlsym(RTLD_DEFAULT, "malloc"));
    assert_true((uintptr_t)malloc != (uintptr_t)dlsym(libc, "malloc"));
    assert_true((uintptr_t)free != (uintptr_t)dlsym(libc, "free"));
    assert_true((uintptr_t)posix_memalign != (uintptr_t)dlsym(libc, "posix_memalign"));
    dlclose(libc);
}

static void glibc_is_recognised_behind_its_stub(void **state)
{
    (void)state;
    fake missing = {.path = "libno_such_thing.so"};
    assert_int_equal(install_into(&missing), MS_HOSTMEM_MALLOPT);
    ms_hostmem_uninstall();
}

static void serves(const char *variable)
{
    fake library = fake_load(variable);
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
    void *block = fake_alloc(&library, MIB);
    assert_true(ms_hostmem_find(block, NULL));
    library.free(block);
    assert_int_equal(stats_now().live_bytes, 0);
    ms_hostmem_uninstall();
    block = fake_alloc(&library, MIB);
    assert_false(ms_hostmem_find(block, NULL));
    library.free(block);
}

static void slots_are_served_whatever_the_binding(void **state)
{
    (void)state;
    serves("FAKE_C10_LAZY");
    serves("FAKE_C10_NOW");
    serves("FAKE_C10_NOPLT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_program_has_stubs),
        cmocka_unit_test(glibc_is_recognised_behind_its_stub),
        cmocka_unit_test(slots_are_served_whatever_the_binding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
