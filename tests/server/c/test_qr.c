/* QR codes: the path draws the squares that libqrencode computes, a text that is too long is refused, and memory that is
 * out is told. */
#include <qrencode.h>

#include "pages/qr.h"
#include "test_common.h"

enum { SIDE_MOST = 177 };

/* Draws "M<x> <y>h<run>v1h-<run>z..." into squares; each only once. */
static void draw(const char *path, int side, unsigned char *squares)
{
    while (*path != '\0') {
        int x, y, run, back, used = 0;
        assert_int_equal(sscanf(path, "M%d %dh%dv1h-%dz%n", &x, &y, &run, &back, &used), 4);
        assert_true(used > 0 && run > 0 && run == back && x >= 0 && x + run <= side && y >= 0 && y < side);
        for (int i = 0; i < run; i++) {
            assert_int_equal(squares[y * side + x + i]++, 0);
        }
        path += used;
    }
}

static void test_the_path_has_the_dark_squares(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "otpauth://totp/memscale:a%40b.c?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        static unsigned char squares[SIDE_MOST * SIDE_MOST];
        ms_error err;
        char *path = NULL;
        int side = 0;
        assert_ms_ok(mss_qr_path(texts[i], &path, &side, &err), err);
        QRcode *code = QRcode_encodeString8bit(texts[i], 0, QR_ECLEVEL_M);
        assert_int_equal(side, code->width);
        memset(squares, 0, sizeof squares);
        draw(path, side, squares);
        for (int at = 0; at < side * side; at++) {
            assert_int_equal(squares[at], code->data[at] & 1);
        }
        QRcode_free(code);
        ms_free(path);
    }
}

static void test_what_is_too_long_is_refused(void **state)
{
    (void)state;
    ms_error err;
    char text[2400], *path = NULL;
    int side = 0;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_ms_fails(mss_qr_path(text, &path, &side, &err), MS_EINVAL, err, "2399 bytes");
    text[2000] = '\0';
    assert_ms_ok(mss_qr_path(text, &path, &side, &err), err);
    ms_free(path);
}

static void test_without_memory(void **state)
{
    (void)state;
    ms_error err;
    char *path = NULL;
    int side = 0;
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_ms_fails(mss_qr_path("a", &path, &side, &err), MS_ENOMEM, err, "QR");
    ms_fault_disarm_all();
    assert_null(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_path_has_the_dark_squares),
        cmocka_unit_test(test_what_is_too_long_is_refused),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
