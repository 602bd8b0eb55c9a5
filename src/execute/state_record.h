/*
 * state_record.h - the layout of a chunk of optimizer state in memory and on disk: its arrays one
 * after another. Used by state_tensor.c and optimizer_stream.c; uses no files or threads.
 *
 * Tests: tests/c/execute/test_optimizer_stream.c.
 */
#ifndef MS_EXECUTE_STATE_RECORD_H
#define MS_EXECUTE_STATE_RECORD_H

#include "memscale/optimizer_stream.h"

/* Bytes of one array in a record of `elements`; 0 if the form has no such array. */
uint64_t ms__record_part_bytes(const ms_optimizer_form *form, ms_optimizer_part part, uint64_t elements);

/* Fills in the offset of each array in a record of `elements`; returns the record's bytes. */
uint64_t ms__record_offsets(const ms_optimizer_form *form, uint64_t elements, uint64_t offsets[MS_PART_COUNT]);

/* Elements of a full chunk: whole blocks in a record of at most MS_OPTIMIZER_CHUNK_BYTES. */
uint64_t ms__record_chunk_elements(const ms_optimizer_form *form);

/* Fills a record with the state before the first step. */
void ms__record_fill_new(const ms_optimizer_form *form, uint64_t elements, unsigned char *record);

/* Copies the state of `elements` elements, from element `at` on, from `source`. */
void ms__record_fill_from(const ms_optimizer_form *form, const ms_adamw_tensor *source, uint64_t at, uint64_t elements,
                          unsigned char *record);

/* A stretch of `whole` as a separate tensor: its parameter and gradient, its state in the record. */
ms_adamw_tensor ms__record_bind(const ms_optimizer_form *form, const ms_adamw_tensor *whole, uint64_t at,
                                uint64_t elements, unsigned char *record);

#endif
