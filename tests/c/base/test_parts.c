/* Arrays that share an allocation do not overlap, are aligned and zeroed, and sizes that are
 * too large fail instead of wrapping. */
#include <stdint.h>
#include <string.h>

#include "base/parts.h"
#include "test_common.h"

typedef struct things {
    uint8_t *bytes;
    uint64_t *words;
    uint32_t *none;
    long double *wide;
} things;

enum { BYTES = 5, WORDS = 7, WIDE = 3 };

static void lay_out(things *of, ms__parts *parts)
{
    of->bytes = MS__PART(parts, of->bytes, BYTES);
    of->words = MS__PART(parts, of->words, WORDS);
    of->none = MS__PART(parts, of->none, 0);
    of->wide = MS__PART(parts, of->wide, WIDE);
}

static void parts_lie_beside_each_other(void **state)
{
    (void)state;
    things of;
    ms__parts parts = {0};
    lay_out(&of, &parts);
    assert_null(of.words);
    assert_int_equal(parts.used_bytes, 16 + 64 + 0 + WIDE * sizeof(long double));
    assert_true(ms__parts_allocate(&parts));
    lay_out(&of, &parts);
    assert_ptr_equal(of.bytes, parts.block);
    assert_int_equal((uintptr_t)of.wide % MS__PART_ALIGNMENT, 0);
    for (int i = 0; i < WORDS; i++) {
        assert_int_equal(of.words[i], 0);
    }
    memset(of.bytes, 1, BYTES);
    memset(of.words, 2, WORDS * sizeof *of.words);
    memset(of.wide, 3, WIDE * sizeof *of.wide);
    assert_int_equal(of.bytes[BYTES - 1], 1);
    assert_int_equal(of.words[0], UINT64_C(0x0202020202020202));
    assert_int_equal(of.words[WORDS - 1], UINT64_C(0x0202020202020202));
    ms_free(parts.block);
}

static void what_no_memory_can_hold_is_refused(void **state)
{
    (void)state;
    ms__parts parts = {0};
    uint64_t *words = MS__PART(&parts, words, SIZE_MAX / 2);
    assert_null(words);
    assert_int_equal(parts.used_bytes, UINT64_MAX / MS__PART_ALIGNMENT * MS__PART_ALIGNMENT);
    words = MS__PART(&parts, words, 1);
    assert_false(ms__parts_allocate(&parts));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_lie_beside_each_other),
        cmocka_unit_test(what_no_memory_can_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
