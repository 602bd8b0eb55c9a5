#include "pages/qr.h"

#include <errno.h>
#include <qrencode.h>
#include <stdio.h>
#include <string.h>

enum { RUN_BYTES = 24, DARK = 1 };

/* How many squares from `at` on are dark. */
static int dark_run(const unsigned char *row, int side, int at)
{
    int length = 0;
    while (at + length < side && (row[at + length] & DARK) != 0) {
        length++;
    }
    return length;
}

/* A rectangle for each run of dark squares in a row. Every second square at most begins one. */
static char *draw(const QRcode *code)
{
    size_t side = (size_t)code->width, room = side * (side / 2 + 1) * RUN_BYTES + 1, length = 0;
    char *path = ms_malloc(room);
    for (int y = 0; path != NULL && y < code->width; y++) {
        const unsigned char *row = code->data + (size_t)y * side;
        for (int x = 0; x < code->width;) {
            int run = dark_run(row, code->width, x);
            if (run > 0) {
                length += (size_t)snprintf(path + length, room - length, "M%d %dh%dv1h-%dz", x, y, run, run);
            }
            x += run + 1;
        }
    }
    return path;
}

int mss_qr_path(const char *text, char **path, int *side, ms_error *err)
{
    QRcode *code = QRcode_encodeString8bit(text, 0, QR_ECLEVEL_M);
    if (code == NULL) {
        return errno == ENOMEM ? ms_fail(err, MS_ENOMEM, "out of memory for a QR code")
                               : ms_fail(err, MS_EINVAL, "%zu bytes are no QR code", strlen(text));
    }
    *side = code->width;
    *path = draw(code);
    QRcode_free(code);
    return *path != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "out of memory for a QR code");
}
