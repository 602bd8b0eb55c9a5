/*
 * A technique as Python sees it: a named tuple with the columns that hooks need. Made in technique.c, handed
 * out by the executor's files.
 */
#ifndef MS_EXT_TECHNIQUE_EXT_H
#define MS_EXT_TECHNIQUE_EXT_H

#include "common.h"

#include "memscale/technique.h"

/* A new reference to the technique's row; never NULL once the module is imported. */
PyObject *ms_ext_technique(ms_technique technique);

#endif
