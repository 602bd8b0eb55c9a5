/*
 * assets.h - the files that are built into the program: templates, styles, scripts, documents. Written by
 * embed.py at build time.
 */
#ifndef MSS_ASSETS_H
#define MSS_ASSETS_H

#include <stddef.h>

typedef struct mss_asset {
    const char *name; /* the file's, without its folder */
    const unsigned char *bytes; /* a NUL follows */
    size_t size;
} mss_asset;

/* NULL where there is none of this name. */
const mss_asset *mss_asset_find(const char *name);

#endif
