/*
 * state_tensor.h - the state of one parameter, cut into chunks, and what is done to a chunk:
 * updated, made from a state in memory, written into a file. Between optimizer_stream.c, which
 * knows which tensors there are and when, and state_slots.h, which knows where a chunk's bytes
 * are. The stream's lock is held, but for ms__state_tensor_check(), _new() and _free().
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

/* MS_EINVAL or MS_EOVERFLOW for a form that no state has. */
int ms__state_tensor_check(const ms_optimizer_form *form, ms_error *err);

/* As new, of a form that was checked; NULL where memory is out. */
ms__state_tensor *ms__state_tensor_new(const ms_optimizer_form *form);
/* Its chunks have to be dropped before. NULL is fine. */
void ms__state_tensor_free(ms__state_tensor *state);

/* MS_EINVAL for a tensor of another form, or one that lacks what an update needs. */
int ms__state_tensor_check_update(const ms__state_tensor *state, const ms_adamw_tensor *tensor, ms_error *err);

/* Updates a chunk and starts to write it; does nothing to one that has had this update.
 * MS_ESTATE for another than the next. */
int ms__state_tensor_update(ms__state_slots *slots, ms__state_tensor *state, uint64_t index,
                            const ms_adamw_group *group, const ms_adamw_tensor *tensor, uint32_t threads,
                            ms_error *err);

/* The chunk becomes what `source` has of it, and starts to be written. */
int ms__state_tensor_put(ms__state_slots *slots, ms__state_tensor *state, uint64_t index, const ms_adamw_tensor *source,
                         ms_error *err);

/* Writes the chunk's arrays to where they belong in the file: `offsets` as for
 * ms_optimizer_stream_export(). */
int ms__state_tensor_export(ms__state_slots *slots, ms__state_tensor *state, uint64_t index, int fd,
                            const uint64_t offsets[MS_PART_COUNT], ms_error *err);

#endif
