/* An allocator loaded before libc (here: this program) stays in use: hostmem takes its slots too, and
 * passes on to it, not to libc, the blocks that are not hostmem's. */
#include <errno.h>
#include <malloc.h>

#include "fake.h"

#if TEST_OWN_ALLOCATOR
static void calls_are_passed_to_the_interposer(void **state)
{
    (void)state;
    print_message("skipped: the sanitizer is the interposer, the other tests run with it\n");
    skip();
}
#else
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static unsigned memalign_calls;
static unsigned free_calls;

/* Exported by the linker, because libc defines them too. */
int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    memalign_calls++;
    *out = __libc_memalign(alignment, bytes);
    return *out == NULL ? ENOMEM : 0;
}

void free(void *block)
{
    free_calls++;
    __libc_free(block);
}

static void calls_are_passed_to_the_interposer(void **state)
{
    (void)state;
    const char *variables[] = {"FAKE_C10_LAZY", "FAKE_C10_NOW"};
    for (size_t i = 0; i < 2; i++) {
        fake library = fake_load(variables[i]);
        assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
        memalign_calls = free_calls = 0;
        void *small = fake_alloc(&library, 1000);
        void *large = fake_alloc(&library, 3 * MIB);
        assert_false(ms_hostmem_find(small, NULL));
        assert_true(ms_hostmem_find(large, NULL));
        assert_int_equal(memalign_calls, 1);
        library.free(large);
        assert_int_equal(free_calls, 0);
        library.free(small);
        assert_int_equal(free_calls, 1);
        ms_hostmem_uninstall();
        library.free(fake_alloc(&library, 3 * MIB));
        assert_int_equal(memalign_calls, 2);
        assert_true(free_calls >= 2); /* uninstalling closes handles, which calls free too */
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_passed_to_the_interposer),
    };
    return cmocka_run_group_tests_name("hostmem interposer", tests, NULL, NULL);
}
