/*
 * assets.h - the files built into the program: templates, styles, scripts, documents. embed.py embeds them at
 * build time.
 */
#ifndef MSS_ASSETS_H
#define MSS_ASSETS_H

#include <stddef.h>

typedef struct mss_asset {
    const char *name; /* the file's, without its folder */
    const unsigned char *bytes; /* a NUL follows */
    size_t size;
} mss_asset;

/* The asset with this name, or NULL. */
const mss_asset *mss_asset_find(const char *name);

#endif
