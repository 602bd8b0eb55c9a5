/*
 * qr.h - a text as a QR code for an SVG picture, by libqrencode. Pure; the page's template has the picture around it, so
 * that nothing is rendered unescaped and the page's Content-Security-Policy needs no exception.
 *
 * Tests: tests/server/c/test_qr.c.
 */
#ifndef MSS_PAGES_QR_H
#define MSS_PAGES_QR_H

#include "memscale/base.h"

/* The dark squares as a path of `*side` by `*side` units, without the light edge of four units that readers need. Free
 * the path with ms_free(). MS_EINVAL if the text is too long for a code, MS_ENOMEM. */
MS_NODISCARD int mss_qr_path(const char *text, char **path, int *side, ms_error *err);

#endif
