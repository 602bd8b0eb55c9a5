/*
 * Checksums are XXH3's and equal for every instruction set: one variant accepts the data that another wrote.
 */
#include "test_common.h"

#include <stdlib.h>

#include "base/checksum.h"

static void values_are_those_of_xxh3(void **state)
{
    (void)state;
    /* The reference implementation's own self test, of no bytes with seed 0. */
    assert_true(ms__checksum_plain("", 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(ms__checksum_select()("", 0) == UINT64_C(0x2D06800538D394C2));
}

static void every_variant_gives_the_same_value(void **state)
{
    (void)state;
    enum { LONGEST = 5000 };
    unsigned char bytes[LONGEST + 1];
    uint32_t number = 2654435761U;
    ms__checksum_fn checksum = ms__checksum_select();
    for (size_t i = 0; i < sizeof bytes; i++) {
        number = number * 1664525U + 1013904223U;
        bytes[i] = (unsigned char)(number >> 24);
    }
    /* From an odd address too, and over every length up to several stripes. */
    for (size_t length = 0; length <= LONGEST; length += length < 1100 ? 1 : 97) {
        assert_true(checksum(bytes, length) == ms__checksum_plain(bytes, length));
        assert_true(checksum(bytes + 1, length) == ms__checksum_plain(bytes + 1, length));
    }
}

/* At any address, below and above the size of streaming copies: the same value, every byte copied, none around
 * them written. */
static void a_copy_has_the_value_and_the_bytes(void **state)
{
    (void)state;
    const size_t lengths[] = {0, 1, 31, 64, 4096, 8192, 8193, 100003, 262143, 262144, 262145, 300007};
    enum { LONGEST = 300007, GUARD = 256 };
    unsigned char *from = malloc(LONGEST + GUARD), *to = aligned_alloc(GUARD, 301056);
    assert_true(from != NULL && to != NULL);
    for (size_t i = 0; i < LONGEST + GUARD; i++) {
        from[i] = (unsigned char)(i * 2654435761U >> 13);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (size_t shift = 0; shift <= 128; shift += shift < 2 ? 1 : 62) {
            size_t bytes = lengths[i];
            ms__checksum_copy_fn copies[] = {ms__checksum_copy_plain, ms__checksum_copy_select()};
            for (int k = 0; k < 2; k++) {
                memset(to, 0xA5, 301056);
                assert_true(copies[k](to + shift, from + 1, bytes) == ms__checksum_plain(from + 1, bytes));
                assert_memory_equal(to + shift, from + 1, bytes);
                assert_int_equal(to[shift + bytes], 0xA5);
                assert_true(shift == 0 || to[shift - 1] == 0xA5);
            }
        }
    }
    free(from);
    free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_xxh3),
        cmocka_unit_test(every_variant_gives_the_same_value),
        cmocka_unit_test(a_copy_has_the_value_and_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
