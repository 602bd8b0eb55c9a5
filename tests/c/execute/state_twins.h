/*
 * Tensors with their optimizer state twice, in memory and on disk, for the tests of
 * memscale/optimizer_stream.h: both are stepped alike and must have the same bits.
 */
#ifndef MS_TEST_STATE_TWINS_H
#define MS_TEST_STATE_TWINS_H

#include "memscale/optimizer_stream.h"

/* A full chunk and a short one of fp32 moments. */
#define BIG ((uint64_t)512 * 1024 + 777)
#define SMALL ((uint64_t)20 * 1024 + 3)

enum { TENSORS = 3, THREADS = 2 };

/* The streams' directory: a template for mkdtemp(), which main() calls. */
extern char twin_spill_dir[];
extern const ms_adamw_group twin_group;
extern const uint64_t twin_counts[TENSORS]; /* elements of three tensors */

typedef struct twin {
    ms_optimizer_form form;
    ms_adamw_tensor memory; /* with its state */
    ms_adamw_tensor disk;   /* parameter and gradient */
    uint64_t id;
    unsigned char *arrays[MS_PART_COUNT];
} twin;

ms_optimizer_stream *twin_stream(uint64_t cap_bytes);
/* fp32 with moments of fp32. */
ms_optimizer_form twin_plain(uint64_t count);

void twin_open(twin *t, ms_optimizer_stream *stream, ms_optimizer_form form, uint64_t seed);
void twin_close(twin *t);
/* Three tensors of twin_counts times `scale`; closing closes the stream too. */
void twins_open(twin twins[TENSORS], ms_optimizer_stream *stream, uint64_t scale);
void twins_close(twin twins[TENSORS], ms_optimizer_stream *stream);

/* Finite values of the tensor's own type. */
void twin_fill(const twin *t, void *values, uint64_t seed);
/* Makes a new gradient and steps the state in memory. */
void twin_step_memory(twin *t, uint64_t step);
/* Runs one round over all states on disk; returns the first failure. */
int twins_step_disk(ms_optimizer_stream *stream, twin *twins, size_t count, ms_error *err);

void twin_assert_parameters(const twin *t);
void twin_assert_state(ms_optimizer_stream *stream, const twin *t);

#endif
