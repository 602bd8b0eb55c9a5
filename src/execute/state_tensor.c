/*
 * The state of one parameter: its form, its chunks, and the operations on a chunk.
 * optimizer_stream.c calls it for one chunk after another.
 */
#include "execute/state_tensor.h"

#include "base/os/file.h"
#include "base/units.h"
#include "execute/state_record.h"

int ms__state_tensor_check(const ms_optimizer_form *form, ms_error *err)
{
    if ((unsigned)form->weights >= MS_ADAMW_WEIGHTS_COUNT || (unsigned)form->moments >= MS_ADAMW_MOMENTS_COUNT ||
        form->count == 0) {
        return ms_fail(err, MS_EINVAL, "optimizer state: a form of %llu elements is of no known kind",
                       (unsigned long long)form->count);
    }
    if (form->has_max_exp_avg_sq && form->moments == MS_ADAMW_MOMENTS_8BIT) {
        return ms_fail(err, MS_EINVAL, "optimizer state: amsgrad has no 8-bit form");
    }
    if (form->count > INT64_MAX / MS_OPTIMIZER_CHUNK_BYTES) {
        return ms_fail(err, MS_EOVERFLOW, "optimizer state of %llu elements", (unsigned long long)form->count);
    }
    return MS_OK;
}

static uint64_t elements_of(const ms__state_tensor *state, uint64_t chunk)
{
    return ms__min_u64(state->chunk_elements, state->form.count - chunk * state->chunk_elements);
}

ms__state_tensor *ms__state_tensor_new(const ms_optimizer_form *form)
{
    ms__state_tensor *state = ms_calloc(1, sizeof *state);
    if (state == NULL) {
        return NULL;
    }
    state->form = *form;
    state->chunk_elements = ms__record_chunk_elements(form);
    state->chunk_count = ms__div_up(form->count, state->chunk_elements);
    state->chunks = ms_calloc(state->chunk_count, sizeof *state->chunks);
    if (state->chunks == NULL) {
        ms_free(state);
        return NULL;
    }
    for (uint64_t i = 0; i < state->chunk_count; i++) {
        uint64_t offsets[MS_PART_COUNT];
        state->chunks[i].bytes = ms__record_offsets(form, elements_of(state, i), offsets);
    }
    return state;
}

void ms__state_tensor_free(ms__state_tensor *state)
{
    if (state != NULL) {
        ms_free(state->chunks);
        ms_free(state);
    }
}

int ms__state_tensor_check_update(const ms__state_tensor *state, const ms_adamw_tensor *tensor, ms_error *err)
{
    if (tensor->weights != state->form.weights || tensor->moments != state->form.moments ||
        tensor->count != state->form.count) {
        return ms_fail(err, MS_EINVAL,
                       "optimizer state of %llu elements: the tensor has %llu, or "
                       "another form",
                       (unsigned long long)state->form.count, (unsigned long long)tensor->count);
    }
    return tensor->step > 0 ? MS_OK : ms_fail(err, MS_EINVAL, "optimizer state: an update lacks its number");
}

int ms__state_tensor_update(ms__state_slots *slots, ms__state_tensor *state, uint64_t index,
                            const ms__state_update *update, ms_error *err)
{
    const ms_adamw_tensor *tensor = update->tensor;
    ms__state_chunk *chunk = &state->chunks[index];
    uint64_t elements = elements_of(state, index);
    ms__state_slot *slot = NULL;
    bool is_new;
    if (chunk->step == tensor->step) {
        ms__state_forget(slots, chunk);
        return MS_OK;
    }
    if (chunk->step + 1 != tensor->step) {
        return ms_fail(err, MS_ESTATE, "optimizer state: update %llu was asked for after update %llu",
                       (unsigned long long)tensor->step, (unsigned long long)chunk->step);
    }
    int rc = ms__state_load(slots, chunk, &slot, &is_new, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (is_new) {
        ms__record_fill_new(&state->form, elements, slot->memory);
    }
    uint64_t first = index * state->chunk_elements;
    ms_adamw_tensor part = ms__record_bind(&state->form, tensor, first, elements, slot->memory);
    rc = update->compute(update->context, first, &part, err);
    if (rc != MS_OK) {
        ms__state_release(slot);
        return rc;
    }
    chunk->step = tensor->step;
    return ms__state_store(slots, slot, err);
}

int ms__state_tensor_put(ms__state_slots *slots, ms__state_tensor *state, uint64_t index, const ms_adamw_tensor *source,
                         ms_error *err)
{
    ms__state_chunk *chunk = &state->chunks[index];
    ms__state_slot *slot = NULL;
    uint64_t elements = elements_of(state, index);
    bool is_new;
    ms__state_drop(slots, chunk);
    int rc = ms__state_load(slots, chunk, &slot, &is_new, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__record_fill_new(&state->form, elements, slot->memory);
    ms__record_fill_from(&state->form, source, index * state->chunk_elements, elements, slot->memory);
    chunk->step = source->step;
    return ms__state_store(slots, slot, err);
}

static int write_parts(const ms__state_tensor *state, uint64_t index, const unsigned char *record, int fd,
                       const uint64_t offsets[MS_PART_COUNT], ms_error *err)
{
    const ms__file file = {.fd = fd};
    uint64_t places[MS_PART_COUNT];
    uint64_t elements = elements_of(state, index);
    int rc = MS_OK;
    ms__record_offsets(&state->form, elements, places);
    for (int i = 0; rc == MS_OK && i < MS_PART_COUNT; i++) {
        ms_optimizer_part part = (ms_optimizer_part)i;
        uint64_t bytes = ms__record_part_bytes(&state->form, part, elements);
        uint64_t begin = ms__record_part_bytes(&state->form, part, index * state->chunk_elements);
        if (bytes > 0 && offsets[i] != UINT64_MAX) {
            rc = ms__file_write(&file, record + places[i], bytes, ms__add_sat(offsets[i], begin), err);
        }
    }
    return rc;
}

int ms__state_tensor_export(ms__state_slots *slots, ms__state_tensor *state, uint64_t index, int fd,
                            const uint64_t offsets[MS_PART_COUNT], ms_error *err)
{
    ms__state_slot *slot = NULL;
    bool is_new;
    if (state->chunks[index].step != state->chunks[0].step) {
        return ms_fail(err, MS_ESTATE, "optimizer state: a step has ended half-way through the tensor");
    }
    int rc = ms__state_load(slots, &state->chunks[index], &slot, &is_new, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (is_new) {
        ms__record_fill_new(&state->form, elements_of(state, index), slot->memory);
    }
    rc = write_parts(state, index, slot->memory, fd, offsets, err);
    ms__state_release(slot);
    return rc;
}
