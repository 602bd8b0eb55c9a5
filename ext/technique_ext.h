/*
 * A technique for Python: a named tuple with the columns that hooks need. technique.c makes the rows; the
 * executor's files return them.
 */
#ifndef MS_EXT_TECHNIQUE_EXT_H
#define MS_EXT_TECHNIQUE_EXT_H

#include "common.h"

#include "memscale/technique.h"

/* A new reference to the technique's row; never NULL once the module is imported. */
PyObject *ms_ext_technique(ms_technique technique);

#endif
