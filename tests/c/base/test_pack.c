/* Bit packing: two-valued storages are found at any width and rebuilt bit for bit, others are refused, and the
 * kernels of this processor agree with the reference. */
#include "test_common.h"

#include "base/pack.h"

enum { BYTES = 70000 };

static uint64_t state_of_random = 1;

static uint64_t next_random(void)
{
    state_of_random = state_of_random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state_of_random >> 33;
}

/* Words of `width` bytes, each one of the two. */
static void fill(unsigned char *data, uint64_t bytes, uint32_t width, const uint64_t values[2])
{
    for (uint64_t at = 0; at + width <= bytes; at += width) {
        memcpy(data + at, &values[next_random() % 10 == 0], width);
    }
}

static const uint32_t widths[] = {1, 2, 4, 8};

/* Packs, rebuilds into memory of other contents, compares, and looks at the size. */
static void assert_packs(const unsigned char *data, uint64_t bytes, uint64_t most_bytes)
{
    unsigned char *again = malloc(bytes + 64);
    assert_non_null(again);
    memset(again, 0xA5, bytes + 64);
    assert_true(ms__pack_may(data, bytes));
    ms__packed *packed = ms__pack(data, bytes);
    assert_non_null(packed);
    assert_true(ms__packed_bytes(packed) <= most_bytes + 64);
    ms__unpack(packed, again);
    assert_memory_equal(data, again, bytes);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(again[bytes + i], 0xA5); /* nothing written past the end */
    }
    ms__packed_free(packed);
    free(again);
}

static void words_of_every_width_come_back(void **state)
{
    (void)state;
    const uint64_t values[][2] = {
        {0, 0x3F8E38E4},                                   /* dropout: 0 and 1 / (1 - p) */
        {0x80000000, 0},                                   /* zeros of both signs */
        {0x7FC00001, 0xFFC00000},                          /* NaNs */
        {UINT64_C(0x3FF0000000000000), 0},                 /* doubles */
        {UINT64_C(0x0102030405060708), UINT64_C(0x1112131415161718)},
    };
    unsigned char *data = malloc(BYTES + 8);
    assert_non_null(data);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        for (int w = 0; w < 4; w++) {
            for (uint64_t words = 1; words * widths[w] <= 300; words++) {
                uint64_t bytes = words * widths[w];
                fill(data, bytes, widths[w], values[i]);
                assert_packs(data, bytes, bytes / widths[w] / 8 + 1);
            }
            uint64_t bytes = BYTES / 8 * 8 - widths[w];
            fill(data + 1, bytes, widths[w], values[i]); /* unaligned */
            assert_packs(data + 1, bytes, bytes / widths[w] / 8 + 1);
        }
    }
    free(data);
}

static void a_float_mask_takes_a_thirtysecond_and_a_bool_an_eighth(void **state)
{
    (void)state;
    const uint64_t mask[2] = {0x3F8E38E4, 0}, comparison[2] = {0, 1};
    unsigned char *data = malloc(1 << 20);
    assert_non_null(data);
    fill(data, 1 << 20, 4, mask);
    assert_packs(data, 1 << 20, (1 << 20) / 32);
    fill(data, 1 << 20, 1, comparison);
    assert_packs(data, 1 << 20, (1 << 20) / 8);
    free(data);
}

static void one_value_is_two_that_are_equal(void **state)
{
    (void)state;
    unsigned char *data = malloc(BYTES);
    assert_non_null(data);
    for (int value = 0; value < 256; value += 51) {
        memset(data, value, BYTES);
        assert_packs(data, BYTES, BYTES / 64);
        assert_packs(data, 1, 1);
    }
    /* The second value lies far behind the start. */
    memset(data, 0, BYTES);
    data[BYTES - 3] = 7;
    assert_packs(data, BYTES, BYTES / 8);
    free(data);
}

static void a_third_value_anywhere_is_noticed(void **state)
{
    (void)state;
    const uint64_t values[2] = {0, 0x3F8E38E4};
    unsigned char *data = malloc(BYTES);
    assert_non_null(data);
    for (uint64_t at = 0; at < BYTES; at += at < 600 || at > BYTES - 600 ? 1 : 997) {
        fill(data, BYTES, 4, values);
        memcpy(data, &values[0], 4);
        memcpy(data + 8, &values[1], 4);
        unsigned char before = data[at];
        data[at] = 0x5A; /* a byte of neither value */
        ms__packed *packed = ms__pack(data, BYTES);
        assert_null(packed);
        data[at] = before;
        assert_packs(data, BYTES, BYTES / 32 + 1);
    }
    free(data);
}

static void ordinary_numbers_are_given_up_at_once(void **state)
{
    (void)state;
    /* Only the first words are mapped: reading further would fault. */
    float *numbers = malloc(4096 + 8 * sizeof *numbers);
    assert_non_null(numbers);
    for (int i = 0; i < 1032; i++) {
        numbers[i] = 0.001f * (float)i;
    }
    assert_false(ms__pack_may(numbers, 4096));
    assert_null(ms__pack(numbers, 4096));
    assert_false(ms__pack_may(numbers, 0));
    free(numbers);
}

static void without_memory_nothing_is_packed(void **state)
{
    (void)state;
    unsigned char data[64] = {0, 1, 0, 1};
    uint64_t blocks = ms_memory_live_blocks();
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    ms__packed *packed = ms__pack(data, sizeof data);
    ms_fault_disarm_all();
    /* The call may succeed with a narrower width, whose allocation doesn't fail. */
    if (packed != NULL) {
        ms__packed_free(packed);
    }
    assert_int_equal(ms_memory_live_blocks(), blocks);
}

/* The reference against the kernels of this processor, on random words with an occasional third value. */
static void the_kernels_agree_with_the_reference(void **state)
{
    (void)state;
    const ms__pack_kernels *chosen = ms__pack_select();
    for (int round = 0; round < 20000; round++) {
        unsigned char data[600], mine[600], theirs[600], my_bits[80], their_bits[80];
        uint32_t width = widths[next_random() % 4];
        uint64_t count = 1 + next_random() % (sizeof data / 8);
        uint64_t values[2] = {next_random(), next_random()};
        uint64_t mask = width == 8 ? UINT64_MAX : (UINT64_C(1) << width * 8) - 1;
        values[0] &= mask;
        values[1] = round % 7 == 0 ? values[0] : values[1] & mask;
        fill(data, count * width, width, values);
        if (round % 3 == 0) {
            data[next_random() % (count * width)] ^= (unsigned char)(1u << next_random() % 8);
        }
        bool packs = ms__pack_plain.pack(data, count, width, values, my_bits);
        assert_int_equal(chosen->pack(data, count, width, values, their_bits), packs);
        if (packs) {
            assert_memory_equal(my_bits, their_bits, (count + 7) / 8);
            ms__pack_plain.unpack(my_bits, count, width, values, mine);
            chosen->unpack(their_bits, count, width, values, theirs);
            assert_memory_equal(mine, data, count * width);
            assert_memory_equal(theirs, data, count * width);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_every_width_come_back),
        cmocka_unit_test(a_float_mask_takes_a_thirtysecond_and_a_bool_an_eighth),
        cmocka_unit_test(one_value_is_two_that_are_equal),
        cmocka_unit_test(a_third_value_anywhere_is_noticed),
        cmocka_unit_test(ordinary_numbers_are_given_up_at_once),
        cmocka_unit_test(without_memory_nothing_is_packed),
        cmocka_unit_test(the_kernels_agree_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
