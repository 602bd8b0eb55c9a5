/*
 * state_record.h - how a chunk of optimizer state lies in memory and on disk: its arrays
 * one after the other. Used by state_tensor.c and optimizer_stream.c; knows nothing of files or threads.
 */
#ifndef MS_EXECUTE_STATE_RECORD_H
#define MS_EXECUTE_STATE_RECORD_H

#include "memscale/optimizer_stream.h"

/* Bytes of an array of a stretch of `elements`; 0 where the form has none. */
uint64_t ms__record_part_bytes(const ms_optimizer_form *form, ms_optimizer_part part, uint64_t elements);

/* Where each array begins in the record of a stretch; returns the record's bytes. */
uint64_t ms__record_offsets(const ms_optimizer_form *form, uint64_t elements, uint64_t offsets[MS_PART_COUNT]);

/* Elements of a full chunk: whole blocks, a record of at most MS_OPTIMIZER_CHUNK_BYTES. */
uint64_t ms__record_chunk_elements(const ms_optimizer_form *form);

/* The state of a stretch before the first step. */
void ms__record_fill_new(const ms_optimizer_form *form, uint64_t elements, unsigned char *record);

/* Copies what `source` has of the stretch of `elements` that begins at element `at`. */
void ms__record_fill_from(const ms_optimizer_form *form, const ms_adamw_tensor *source, uint64_t at, uint64_t elements,
                          unsigned char *record);

/* The stretch as a tensor of its own: parameter and gradient of `whole`, state in the
 * record. */
ms_adamw_tensor ms__record_bind(const ms_optimizer_form *form, const ms_adamw_tensor *whole, uint64_t at,
                                uint64_t elements, unsigned char *record);

#endif
