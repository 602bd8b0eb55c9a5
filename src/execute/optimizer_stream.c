/*
 * Optimizer state on disk: the list of tensors, rounds of updates, reading ahead. The Python
 * optimizer calls it through ext, from any thread: each call holds one lock throughout.
 * state_tensor.c works on a tensor's chunks; state_slots.c owns buffers and transfers.
 */
#include "memscale/optimizer_stream.h"

#include <string.h>

#include "base/array.h"
#include "base/thread.h"
#include "base/units.h"
#include "execute/state_record.h"
#include "execute/state_tensor.h"
#include "hardware/probe.h"

typedef MS__ARRAY(ms__state_tensor *) entries;
typedef MS__ARRAY(uint64_t) hints;

struct ms_optimizer_stream {
    ms_offload *engine;
    char dir[MS_PATH_MAX];

    ms__mutex lock; /* guards all that follows */
    entries entries; /* by id - 1; NULL: removed */
    ms__state_slots slots;
    bool in_round;
    hints hints; /* ids whose updates are expected */
    size_t next_hint;
    uint64_t next_chunk; /* of that tensor, not read ahead yet */
    ms_error failure;    /* the round's first */
};

/* ---- opening -------------------------------------------------------------------- */

uint64_t ms_optimizer_host_elements(uint32_t arrays, uint32_t item_bytes)
{
    enum { UNIT = 512 };
    uint64_t elements = MS_OPTIMIZER_HOST_BUFFER_BYTES / ((uint64_t)arrays * item_bytes);
    return elements >= UNIT ? elements / UNIT * UNIT : UNIT;
}

bool ms_optimizer_stream_takes(uint64_t elements)
{
    return elements >= MS_OPTIMIZER_STREAM_LEAST_ELEMENTS;
}

static int stream_find_disk(const char *dir, ms_disk *disk, ms_error *err)
{
    if (dir != NULL) {
        int rc = ms_disk_probe(dir, disk, err);
        if (rc != MS_OK) {
            return rc;
        }
    } else {
        ms__disk_choose(true, disk);
    }
    if (disk->dir[0] == '\0') {
        return ms_fail(err, MS_ECONFIG, "optimizer state on disk: no directory is fit for it (%s)", disk->refusal);
    }
    return MS_OK;
}

static int stream_open_engine(const ms_optimizer_stream_options *options, ms_optimizer_stream *stream, ms_error *err)
{
    ms_disk *disk = ms_calloc(1, sizeof *disk);
    if (disk == NULL) {
        return ms_fail(err, MS_ENOMEM, "optimizer state on disk: out of memory");
    }
    int rc = stream_find_disk(options->dir, disk, err);
    if (rc == MS_OK) {
        memcpy(stream->dir, disk->dir, sizeof stream->dir);
        ms_offload_options engine = {
            .tier = MS_TIER_DISK,
            .dir = stream->dir,
            .cap_bytes = options->cap_bytes != 0 ? options->cap_bytes : disk->free_bytes / 2,
            .slot_bytes = MS_OPTIMIZER_CHUNK_BYTES,
            .timeout_ns = options->timeout_ns,
        };
        rc = ms_offload_open(&engine, &stream->engine, err);
    }
    ms_free(disk);
    return rc;
}

int ms_optimizer_stream_open(const ms_optimizer_stream_options *options, ms_optimizer_stream **stream, ms_error *err)
{
    ms_optimizer_stream *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "optimizer state on disk: out of memory");
    }
    int rc = stream_open_engine(options, made, err);
    if (rc != MS_OK) {
        ms_free(made);
        return rc;
    }
    made->slots.engine = made->engine;
    made->slots.slot_count = MS_OPTIMIZER_CHUNKS;
    ms__mutex_init(&made->lock);
    *stream = made;
    return MS_OK;
}

/*
 * Takes the lock, in the process that opened the stream. At a fork, a thread that the child does
 * not have may hold the lock while it changes the lists. So a child's copy never takes it, and a
 * fork need not wait for an update of several seconds.
 */
static int stream_enter(ms_optimizer_stream *stream, ms_error *err)
{
    if (ms_optimizer_stream_is_inherited(stream)) {
        return ms_fail(err, MS_ESTATE, "optimizer state on disk in %s belongs to the parent process", stream->dir);
    }
    ms__mutex_lock(&stream->lock);
    return MS_OK;
}

static void stream_leave(ms_optimizer_stream *stream)
{
    ms__mutex_unlock(&stream->lock);
}

void ms_optimizer_stream_close(ms_optimizer_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    bool is_inherited = ms_optimizer_stream_is_inherited(stream);
    bool is_hung = ms_offload_quiesce(stream->engine, NULL) == MS_ETIMEDOUT;
    ms_offload_close(stream->engine);
    ms__state_close(&stream->slots, is_hung);
    if (!is_inherited) { /* in a child, the lists may be half changed since the fork */
        for (size_t i = 0; i < stream->entries.count; i++) {
            ms__state_tensor_free(stream->entries.items[i]);
        }
        MS__ARRAY_FREE(&stream->entries);
        MS__ARRAY_FREE(&stream->hints);
        ms__mutex_destroy(&stream->lock);
    }
    ms_free(stream);
}

/* ---- entries ---------------------------------------------------------------------- */

int ms_optimizer_stream_add(ms_optimizer_stream *stream, const ms_optimizer_form *form, uint64_t *id, ms_error *err)
{
    int rc = ms__state_tensor_check(form, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__state_tensor *made = ms__state_tensor_new(form);
    rc = stream_enter(stream, err);
    if (rc != MS_OK) {
        ms__state_tensor_free(made);
        return rc;
    }
    ms__state_tensor **place = made != NULL ? MS__ARRAY_PUSH(&stream->entries) : NULL;
    if (place != NULL) {
        *place = made;
        *id = stream->entries.count;
    }
    stream_leave(stream);
    if (place == NULL) {
        ms__state_tensor_free(made);
        return ms_fail(err, MS_ENOMEM, "optimizer state: out of memory for %llu elements",
                       (unsigned long long)form->count);
    }
    return MS_OK;
}

/* Under the lock. */
static ms__state_tensor *stream_find(ms_optimizer_stream *stream, uint64_t id, ms_error *err)
{
    ms__state_tensor *state = id > 0 && id <= stream->entries.count ? stream->entries.items[id - 1] : NULL;
    if (state == NULL) {
        (void)ms_fail(err, MS_EINVAL, "optimizer state %llu does not exist", (unsigned long long)id);
    }
    return state;
}

void ms_optimizer_stream_remove(ms_optimizer_stream *stream, uint64_t id)
{
    if (stream_enter(stream, NULL) != MS_OK) {
        return;
    }
    ms__state_tensor *state = stream_find(stream, id, NULL);
    for (uint64_t i = 0; state != NULL && i < state->chunk_count; i++) {
        ms__state_drop(&stream->slots, &state->chunks[i]);
    }
    if (state != NULL) {
        stream->entries.items[id - 1] = NULL;
        ms__state_tensor_free(state);
    }
    stream_leave(stream);
}

int ms_optimizer_stream_part_bytes(ms_optimizer_stream *stream, uint64_t id, uint64_t bytes[MS_PART_COUNT],
                                   ms_error *err)
{
    int rc = stream_enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    const ms__state_tensor *state = stream_find(stream, id, err);
    for (int part = 0; state != NULL && part < MS_PART_COUNT; part++) {
        bytes[part] = ms__record_part_bytes(&state->form, (ms_optimizer_part)part, state->form.count);
    }
    stream_leave(stream);
    return state != NULL ? MS_OK : MS_EINVAL;
}

void ms_optimizer_stream_set_buffers(ms_optimizer_stream *stream, uint64_t bytes)
{
    uint64_t count = ms__max_u64(bytes / MS_OPTIMIZER_CHUNK_BYTES, MS_OPTIMIZER_CHUNKS);
    if (stream_enter(stream, NULL) == MS_OK) {
        ms__state_set_count(&stream->slots, (uint32_t)ms__min_u64(count, MS_OPTIMIZER_CHUNKS_MOST));
        stream_leave(stream);
    }
}

/* ---- reading ahead ------------------------------------------------------------------- */

/* The next chunk to read ahead, or NULL. */
static ms__state_chunk *hints_next_chunk(ms_optimizer_stream *stream)
{
    while (stream->next_hint < stream->hints.count) {
        ms__state_tensor *state = stream_find(stream, stream->hints.items[stream->next_hint], NULL);
        if (state != NULL && stream->next_chunk < state->chunk_count) {
            return &state->chunks[stream->next_chunk];
        }
        stream->next_hint++;
        stream->next_chunk = 0;
    }
    return NULL;
}

static int stream_read_ahead(ms_optimizer_stream *stream, ms_error *err)
{
    int rc = MS_OK;
    ms__state_chunk *chunk = hints_next_chunk(stream);
    while (chunk != NULL && ms__state_read_ahead(&stream->slots, chunk, &rc, err)) {
        stream->next_chunk++;
        chunk = hints_next_chunk(stream);
    }
    return rc;
}

static int hints_set(ms_optimizer_stream *stream, const uint64_t *ids, size_t count, ms_error *err)
{
    stream->hints.count = 0;
    stream->next_hint = 0;
    stream->next_chunk = 0;
    if (MS__ARRAY_RESERVE(&stream->hints, count) != MS_OK) {
        return ms_fail(err, MS_ENOMEM, "optimizer state: out of memory for %zu tensors", count);
    }
    if (count > 0) {
        memcpy(stream->hints.items, ids, count * sizeof *ids);
    }
    stream->hints.count = count;
    return MS_OK;
}

/* Adjusts the hints after an update of another chunk than expected: chunks read ahead for the skipped
 * hints are dropped one by one when buffers are needed. */
static void hints_skip(ms_optimizer_stream *stream, uint64_t id, uint64_t chunk)
{
    bool is_expected = stream->next_hint < stream->hints.count && stream->hints.items[stream->next_hint] == id;
    if (is_expected && stream->next_chunk <= chunk) {
        stream->next_chunk = chunk + 1;
    }
}

/* ---- rounds ----------------------------------------------------------------------------- */

static int stream_note_failure(ms_optimizer_stream *stream, int rc, const ms_error *err)
{
    if (rc != MS_OK && stream->failure.code == MS_OK) {
        stream->failure = *err;
    }
    return rc;
}

static int stream_return_failure(const ms_optimizer_stream *stream, ms_error *err)
{
    if (err != NULL && stream->failure.code != MS_OK) {
        *err = stream->failure;
    }
    return stream->failure.code;
}

int ms_optimizer_stream_begin(ms_optimizer_stream *stream, const uint64_t *ids, size_t count, ms_error *err)
{
    ms_error cause = {0};
    int rc = stream_enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    stream->failure = (ms_error){0};
    rc = hints_set(stream, ids, count, &cause);
    if (rc == MS_OK) {
        rc = ms__state_save_rest(&stream->slots, &cause);
    }
    if (rc == MS_OK) {
        rc = stream_read_ahead(stream, &cause);
    }
    stream->in_round = true;
    stream_note_failure(stream, rc, &cause);
    stream_return_failure(stream, err);
    stream_leave(stream);
    return rc;
}

static int stream_update(ms_optimizer_stream *stream, uint64_t id, ms__state_tensor *state,
                         const ms__state_update *update, ms_error *err)
{
    int rc = ms__state_tensor_check_update(state, update->tensor, err);
    for (uint64_t i = 0; rc == MS_OK && i < state->chunk_count; i++) {
        hints_skip(stream, id, i);
        rc = ms__state_tensor_update(&stream->slots, state, i, update, err);
        if (rc == MS_OK) {
            rc = stream_read_ahead(stream, err);
        }
    }
    return rc;
}

/* Within a round. `update->tensor` NULL: the number `step` of a state of its own form. */
static int stream_enter_update(ms_optimizer_stream *stream, uint64_t id, uint64_t step, ms__state_update update,
                               ms_error *err)
{
    ms_error cause = {0};
    int rc = stream_enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (!stream->in_round) {
        stream_leave(stream);
        return ms_fail(err, MS_ESTATE, "optimizer state: an update outside a round");
    }
    if (stream->failure.code == MS_OK) {
        ms__state_tensor *state = stream_find(stream, id, &cause);
        ms_adamw_tensor bare = {.step = step};
        if (state != NULL) {
            bare.weights = state->form.weights;
            bare.moments = state->form.moments;
            bare.count = state->form.count;
        }
        update.tensor = update.tensor != NULL ? update.tensor : &bare;
        rc = state != NULL ? stream_update(stream, id, state, &update, &cause) : MS_EINVAL;
        stream_note_failure(stream, rc, &cause);
    }
    rc = stream_return_failure(stream, err);
    stream_leave(stream);
    return rc;
}

int ms_optimizer_stream_update_by(ms_optimizer_stream *stream, uint64_t id, uint64_t step, ms_optimizer_compute compute,
                                  void *context, ms_error *err)
{
    return stream_enter_update(stream, id, step, (ms__state_update){.compute = compute, .context = context}, err);
}

typedef struct adamw_call {
    const ms_adamw_group *group;
    uint32_t threads;
} adamw_call;

static int compute_adamw(void *context, uint64_t first, const ms_adamw_tensor *part, ms_error *err)
{
    const adamw_call *call = context;
    (void)first;
    return ms_adamw_step(call->group, part, 1, call->threads, err);
}

int ms_optimizer_stream_update(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_group *group,
                               const ms_adamw_tensor *tensor, uint32_t threads, ms_error *err)
{
    adamw_call call = {.group = group, .threads = threads};
    ms__state_update update = {.tensor = tensor, .compute = compute_adamw, .context = &call};
    if (tensor->parameter == NULL || tensor->gradient == NULL) {
        return ms_fail(err, MS_EINVAL, "optimizer state: an update lacks its parameter or its gradient");
    }
    return stream_enter_update(stream, id, tensor->step, update, err);
}

/* Ends a round, or an operation on a whole state. */
static int stream_rest(ms_optimizer_stream *stream, ms_error *err)
{
    ms_error cause = {0};
    stream_note_failure(stream, ms__state_rest(&stream->slots, &cause), &cause);
    stream->hints.count = 0;
    stream->in_round = false;
    int rc = stream_return_failure(stream, err);
    stream->failure = (ms_error){0};
    return rc;
}

int ms_optimizer_stream_end(ms_optimizer_stream *stream, ms_error *err)
{
    int rc = stream_enter(stream, err);
    if (rc == MS_OK) {
        rc = stream_rest(stream, err);
        stream_leave(stream);
    }
    return rc;
}

/* ---- whole states ---------------------------------------------------------------------- */

static int fail_within_round(ms_error *err)
{
    return ms_fail(err, MS_ESTATE, "optimizer state: a round of updates has not ended");
}

int ms_optimizer_stream_put(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_tensor *source, ms_error *err)
{
    int rc = stream_enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__state_tensor *state = stream_find(stream, id, err);
    rc = state == NULL ? MS_EINVAL : stream->in_round ? fail_within_round(err) : MS_OK;
    if (rc == MS_OK) {
        ms_error cause = {0};
        for (uint64_t i = 0; rc == MS_OK && i < state->chunk_count; i++) {
            rc = stream_note_failure(stream, ms__state_tensor_put(&stream->slots, state, i, source, &cause), &cause);
        }
        rc = stream_rest(stream, err);
    }
    stream_leave(stream);
    return rc;
}

static int stream_export(ms_optimizer_stream *stream, uint64_t id, int fd, const uint64_t offsets[MS_PART_COUNT],
                         ms_error *err)
{
    ms__state_tensor *state = stream_find(stream, id, err);
    if (state == NULL) {
        return MS_EINVAL;
    }
    int rc = ms__state_save_rest(&stream->slots, err);
    if (rc == MS_OK) {
        rc = hints_set(stream, &id, 1, err);
    }
    for (uint64_t i = 0; rc == MS_OK && i < state->chunk_count; i++) {
        rc = stream_read_ahead(stream, err);
        if (rc == MS_OK) {
            rc = ms__state_tensor_export(&stream->slots, state, i, fd, offsets, err);
        }
    }
    return rc;
}

int ms_optimizer_stream_export(ms_optimizer_stream *stream, uint64_t id, int fd, const uint64_t offsets[MS_PART_COUNT],
                               ms_error *err)
{
    ms_error cause = {0};
    int rc = stream_enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = stream->in_round ? fail_within_round(err) : MS_OK;
    if (rc == MS_OK) {
        stream_note_failure(stream, stream_export(stream, id, fd, offsets, &cause), &cause);
        rc = stream_rest(stream, err);
    }
    stream_leave(stream);
    return rc;
}

/* ---- queries ------------------------------------------------------------------------------- */

void ms_optimizer_stream_get_stats(ms_optimizer_stream *stream, ms_optimizer_stream_stats *stats)
{
    ms_offload_stats tier;
    ms_offload_get_stats(stream->engine, &tier);
    bool is_entered = stream_enter(stream, NULL) == MS_OK; /* in a child no thread changes these */
    *stats = (ms_optimizer_stream_stats){
        .disk_bytes = tier.tier_bytes,
        .resident_bytes = stream->slots.resident_bytes,
        .peak_resident_bytes = stream->slots.peak_resident_bytes,
        .written_bytes = tier.written_bytes,
        .read_bytes = tier.read_bytes,
        .stall_ns = stream->slots.stall_ns,
    };
    if (is_entered) {
        stream_leave(stream);
    }
}

bool ms_optimizer_stream_is_inherited(const ms_optimizer_stream *stream)
{
    return ms_offload_is_inherited(stream->engine);
}

const char *ms_optimizer_stream_dir(const ms_optimizer_stream *stream)
{
    return stream->dir;
}

const char *ms_optimizer_stream_description(const ms_optimizer_stream *stream)
{
    return ms_offload_description(stream->engine);
}
