/*
 * Checksums are XXH3's, and the same whatever instructions they are made with: what was
 * written with one variant must be found sound by another.
 */
#include "test_common.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_xxh3),
        cmocka_unit_test(every_variant_gives_the_same_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
