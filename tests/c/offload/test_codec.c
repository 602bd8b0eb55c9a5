/* codec.h: decompressed bytes equal the original for all kinds of numbers. Damage is detected or gives
 * other bytes, but never causes a write beyond the data. */
#include "test_common.h"

#include <errno.h>

#include "offload/codec.h"

#define AREA ((uint64_t)3 << 20)

static ms__codec *codec;
static unsigned char *data, *compressed, *back;
static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random_state >> 24;
}

/* ---- kinds of numbers ------------------------------------------------------------ */

static float bell(void)
{
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        sum += (double)(next_random() % 4096) / 2048 - 1;
    }
    return (float)(sum * 0.7391);
}

static void make_floats(uint64_t bytes)
{
    for (uint64_t at = 0; at + 4 <= bytes; at += 4) {
        float number = bell();
        memcpy(data + at, &number, 4);
    }
}

static void make_bf16(uint64_t bytes)
{
    for (uint64_t at = 0; at + 2 <= bytes; at += 2) {
        float number = bell();
        memcpy(data + at, (unsigned char *)&number + 2, 2);
    }
}

static void make_doubles(uint64_t bytes)
{
    for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
        double number = (double)bell() + 1e-9 * (double)next_random();
        memcpy(data + at, &number, 8);
    }
}

static void make_indices(uint64_t bytes)
{
    for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
        uint64_t number = next_random() % 50257;
        memcpy(data + at, &number, 8);
    }
}

static void make_half_zero(uint64_t bytes)
{
    make_floats(bytes);
    for (uint64_t at = 0; at < bytes; at += 4) {
        if (data[at + 3] & 0x80) {
            memset(data + at, 0, 4);
        }
    }
}

static void make_zeros(uint64_t bytes)
{
    memset(data, 0, bytes);
}

static void make_noise(uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at++) {
        data[at] = (unsigned char)next_random();
    }
}

typedef struct kind {
    const char *name;
    void (*make)(uint64_t bytes);
    uint64_t least_percent; /* compressed size of 1 MiB of it; 100: not compressible */
    uint64_t most_percent;
} kind;

static const kind kinds[] = {
    {"floats", make_floats, 70, 90},   {"bf16", make_bf16, 50, 80},           {"doubles", make_doubles, 70, 97},
    {"indices", make_indices, 10, 40}, {"half zero", make_half_zero, 30, 65}, {"zeros", make_zeros, 0, 2},
    {"noise", make_noise, 100, 100},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- tests ------------------------------------------------------------------------- */

/* Compresses `bytes` of data and checks that they come back exactly; returns the compressed size, or
 * `bytes` if they are not compressed. */
static uint64_t round_trip(uint64_t bytes)
{
    ms__codec_view view;
    ms__codec_look(codec, data, bytes, &view);
    uint64_t size = ms__codec_compress(codec, &view, data, bytes, compressed, bytes);
    if (size == 0) {
        return bytes;
    }
    assert_true(size <= bytes);
    memset(back, 0xA5, bytes + 64);
    assert_true(ms__codec_decompress(codec, compressed, size, back, bytes));
    assert_memory_equal(back, data, bytes);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(back[bytes + (uint64_t)i], 0xA5);
    }
    return size;
}

static void numbers_of_every_kind_and_size_come_back(void **state)
{
    (void)state;
    const uint64_t sizes[] = {1,     2,     3,      7,      8,      9,      4095,    4096,         16384,
                              16385, 65536, 262143, 262144, 262145, 300007, 1 << 20, (1 << 20) + 5};
    for (int k = 0; k < KINDS; k++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            make_noise(sizes[i]);
            kinds[k].make(sizes[i]);
            (void)round_trip(sizes[i]);
        }
    }
}

static void few_values_are_compressed_and_noise_is_not(void **state)
{
    (void)state;
    uint64_t bytes = 1 << 20;
    for (int k = 0; k < KINDS; k++) {
        ms__codec_view view;
        kinds[k].make(bytes);
        uint64_t percent = round_trip(bytes) * 100 / bytes;
        assert_in_range(percent, kinds[k].least_percent, kinds[k].most_percent);
        ms__codec_look(codec, data, bytes, &view);
        uint64_t expected = view.expected_bytes * 100 / bytes;
        assert_true(expected <= percent + 3 && percent <= expected + 3);
    }
}

static void too_little_room_is_reported(void **state)
{
    (void)state;
    uint64_t bytes = 300007;
    ms__codec_view view;
    make_noise(bytes);
    make_half_zero(bytes);
    ms__codec_look(codec, data, bytes, &view);
    uint64_t size = ms__codec_compress(codec, &view, data, bytes, compressed, bytes);
    assert_true(size > 0);
    for (uint64_t room = 0; room <= bytes; room += room < 200 ? 1 : 4099) {
        memset(compressed + room, 0x5A, 64);
        uint64_t got = ms__codec_compress(codec, &view, data, bytes, compressed, room);
        assert_true(got == 0 || (got == size && room >= size));
        for (int i = 0; i < 64; i++) {
            assert_int_equal(compressed[room + (uint64_t)i], 0x5A);
        }
    }
}

/* Also cuts at every length, and random bytes: the sanitizers check the memory touched. */
static void damage_is_detected_or_gives_other_bytes(void **state)
{
    (void)state;
    uint64_t bytes = 70001;
    ms__codec_view view;
    make_noise(bytes);
    make_floats(bytes);
    ms__codec_look(codec, data, bytes, &view);
    uint64_t size = ms__codec_compress(codec, &view, data, bytes, compressed, bytes);
    assert_true(size > 0);
    for (int i = 0; i < 3000; i++) {
        uint64_t at = i < 64 ? (uint64_t)i / 8 : next_random() % size;
        unsigned char bit = (unsigned char)(1u << (i < 64 ? i % 8 : (int)(next_random() % 8)));
        compressed[at] ^= bit;
        memset(back + bytes, 0xA5, 64);
        bool is_whole = ms__codec_decompress(codec, compressed, size, back, bytes);
        assert_true(!is_whole || memcmp(back, data, bytes) != 0 || at < 2);
        assert_int_equal(back[bytes], 0xA5);
        compressed[at] ^= bit;
    }
    for (uint64_t cut = 0; cut < size; cut += cut < 300 ? 1 : 997) {
        assert_false(ms__codec_decompress(codec, compressed, cut, back, bytes));
    }
    for (int i = 0; i < 300; i++) {
        for (uint64_t at = 0; at < 4096; at++) {
            compressed[at] = (unsigned char)next_random();
        }
        compressed[0] = (unsigned char)(1u << i % 4);
        (void)ms__codec_decompress(codec, compressed, 4096, back, bytes);
    }
    assert_false(ms__codec_decompress(codec, compressed, 4096, back, 0));
}

static void without_the_library_there_is_no_codec(void **state)
{
    (void)state;
    ms_error err = {0};
    ms__codec *none = NULL;
    ms_fault_arm(MS_FAULT_DRIVER, 1, 0);
    assert_ms_fails(ms__codec_open(&none, &err), MS_ENOTSUP, err, "libzstd");
    ms_fault_disarm_all();
    assert_null(none);
}

static void without_memory_there_is_no_codec(void **state)
{
    (void)state;
    uint64_t blocks = ms_memory_live_blocks();
    for (uint64_t nth = 1; nth <= 2; nth++) {
        ms_error err = {0};
        ms__codec *none = NULL;
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        assert_ms_fails(ms__codec_open(&none, &err), MS_ENOMEM, err, "no memory");
        ms_fault_disarm_all();
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
}

static int open_all(void **state)
{
    (void)state;
    data = ms_malloc(AREA);
    compressed = ms_malloc(AREA);
    back = ms_malloc(AREA);
    return data == NULL || compressed == NULL || back == NULL || ms__codec_open(&codec, NULL) != MS_OK;
}

static int close_all(void **state)
{
    (void)state;
    ms__codec_close(codec);
    ms_free(data);
    ms_free(compressed);
    ms_free(back);
    return ms_memory_live_blocks() != 0;
}

int main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(without_the_library_there_is_no_codec)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_memory_there_is_no_codec),
        cmocka_unit_test_setup_teardown(numbers_of_every_kind_and_size_come_back, open_all, close_all),
        cmocka_unit_test_setup_teardown(few_values_are_compressed_and_noise_is_not, open_all, close_all),
        cmocka_unit_test_setup_teardown(too_little_room_is_reported, open_all, close_all),
        cmocka_unit_test_setup_teardown(damage_is_detected_or_gives_other_bytes, open_all, close_all),
    };
    int failures = cmocka_run_group_tests_name("codec, no library", first, NULL, NULL);
    ms_error err = {0};
    ms__codec *probe = NULL;
    int rc = ms__codec_open(&probe, &err);
    if (rc == MS_ENOTSUP) {
        print_message("skipped: %s\n", err.text);
        return failures != 0 ? failures : 77;
    }
    ms__codec_close(probe);
    return failures + cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
