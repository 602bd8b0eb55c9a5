/*
 * state_tensor.h - the state of one parameter, cut into chunks, and the operations on a chunk:
 * update it, fill it from a state in memory, write it into a file. Called by optimizer_stream.c,
 * which knows the tensors and their order; calls state_slots.h, which knows the place of a chunk's
 * bytes. The caller holds the stream's lock, except for ms__state_tensor_check(), _new(), _free().
 *
 * Tests: tests/c/execute/test_optimizer_stream.c.
 */
#ifndef MS_EXECUTE_STATE_TENSOR_H
#define MS_EXECUTE_STATE_TENSOR_H

#include "execute/state_slots.h"

typedef struct ms__state_tensor {
    ms_optimizer_form form;
    uint64_t chunk_elements; /* of all but the last */
    uint64_t chunk_count;
    ms__state_chunk *chunks;
} ms__state_tensor;

/* MS_EINVAL or MS_EOVERFLOW for an impossible form. */
int ms__state_tensor_check(const ms_optimizer_form *form, ms_error *err);

/* A new state of a checked form; NULL when out of memory. */
ms__state_tensor *ms__state_tensor_new(const ms_optimizer_form *form);
/* Drop its chunks first. Accepts NULL. */
void ms__state_tensor_free(ms__state_tensor *state);

/* MS_EINVAL if the tensor has another form, or its update no number. */
int ms__state_tensor_check_update(const ms__state_tensor *state, const ms_adamw_tensor *tensor, ms_error *err);

/* How the arrays of a chunk are computed, and the tensor that they are bound to. */
typedef struct ms__state_update {
    const ms_adamw_tensor *tensor;
    ms_optimizer_compute compute;
    void *context;
} ms__state_update;

/* Updates a chunk and starts to write it. Does nothing if the chunk already has this update;
 * MS_ESTATE unless the update is the chunk's next. */
int ms__state_tensor_update(ms__state_slots *slots, ms__state_tensor *state, uint64_t index,
                            const ms__state_update *update, ms_error *err);

/* Fills the chunk from `source` and starts to write it. */
int ms__state_tensor_put(ms__state_slots *slots, ms__state_tensor *state, uint64_t index, const ms_adamw_tensor *source,
                         ms_error *err);

/* Writes the chunk's arrays to their places in the file; `offsets` as in
 * ms_optimizer_stream_export(). */
int ms__state_tensor_export(ms__state_slots *slots, ms__state_tensor *state, uint64_t index, int fd,
                            const uint64_t offsets[MS_PART_COUNT], ms_error *err);

#endif
