/*
 * The library's version. The number itself is in meson.build only.
 */
#include "memscale/base.h"

#include "ms_config.h"

const char *ms_version(void)
{
    return MS_VERSION_TEXT;
}
