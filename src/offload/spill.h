/*
 * spill.h - the space of the disk tier: one unnamed spill file per engine, its extents,
 * its disk blocks. Used by backends that keep bytes in a file; moves nothing itself.
 *
 * Tests: tests/c/offload/test_limits.c, test_faults.c.
 */
#ifndef MS_OFFLOAD_SPILL_H
#define MS_OFFLOAD_SPILL_H

#include "base/os/file.h"
#include "base/thread.h"
#include "offload/backend.h"
#include "offload/extents.h"

/* The first member of such a backend's struct. */
typedef struct ms__spill {
    ms__backend base; /* first */
    ms__file file;
    uint64_t cap_bytes;
    ms__mutex lock; /* guards what follows */
    ms__extents extents;
    uint64_t allocated_bytes; /* disk blocks reserved, from the file's start */
} ms__spill;

/* Creates the file and fills `base`, except for the number of lanes. `means` is one word for the
 * mechanism that moves the bytes. */
int ms__spill_open(ms__spill *spill, const ms__backend_ops *ops, const ms__backend_options *options, const char *means,
                   ms_error *err);
void ms__spill_close(ms__spill *spill);
/* In a forked child. */
void ms__spill_forget(ms__spill *spill);

/* reserve() and release() of the table; the backend is a spill. */
int ms__spill_reserve(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err);
void ms__spill_release(ms__backend *backend, uint64_t position, uint64_t bytes);

#endif
