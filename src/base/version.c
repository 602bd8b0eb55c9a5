/*
 * The library's version. Called by the program, the extension and anyone who
 * links the library; the number itself is written once, in meson.build.
 */
#include "memscale/base.h"

#include "ms_config.h"

const char *ms_version(void)
{
    return MS_VERSION_TEXT;
}
