/*
 * Optimizer state on disk: which tensors there are, their chunks, rounds of updates.
 * Called by the Python optimizer through ext. Buffers and transfers are state_slots.c's,
 * the arithmetic is techniques/adamw.c's.
 */
#include "memscale/optimizer_stream.h"

#include <string.h>

#include "base/array.h"
#include "base/os/file.h"
#include "base/thread.h"
#include "base/units.h"
#include "core/probe.h"
#include "execute/state_record.h"
#include "execute/state_slots.h"

typedef struct entry {
    ms_optimizer_form form;
    uint64_t chunk_elements;
    uint64_t chunk_count;
    ms__state_chunk *chunks;
} entry;

typedef MS__ARRAY(entry *) entries;
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
    uint64_t next_chunk; /* of that one, not yet read ahead */
    ms_error failure;    /* the first of the round */
};

/* ---- opening -------------------------------------------------------------------- */

bool ms_optimizer_stream_takes(uint64_t elements)
{
    return elements >= MS_OPTIMIZER_STREAM_LEAST_ELEMENTS;
}

static int find_disk(const char *dir, ms_disk *disk, ms_error *err)
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
        return ms_fail(err, MS_ECONFIG, "optimizer state on disk: no directory is fit for it (%s)",
                       disk->refusal);
    }
    return MS_OK;
}

static int open_engine(const ms_optimizer_stream_options *options, ms_optimizer_stream *stream,
                       ms_error *err)
{
    ms_disk *disk = ms_calloc(1, sizeof *disk);
    if (disk == NULL) {
        return ms_fail(err, MS_ENOMEM, "optimizer state on disk: out of memory");
    }
    int rc = find_disk(options->dir, disk, err);
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

int ms_optimizer_stream_open(const ms_optimizer_stream_options *options,
                             ms_optimizer_stream **stream, ms_error *err)
{
    ms_optimizer_stream *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "optimizer state on disk: out of memory");
    }
    int rc = open_engine(options, made, err);
    if (rc != MS_OK) {
        ms_free(made);
        return rc;
    }
    made->slots.engine = made->engine;
    ms__mutex_init(&made->lock);
    *stream = made;
    return MS_OK;
}

/*
 * Takes the lock, in the process that opened the stream. At a fork, a thread that the child does
 * not have may hold the lock and be changing what it guards: a child's copy never takes it, and
 * the fork need not wait for an update that lasts seconds.
 */
static int enter(ms_optimizer_stream *stream, ms_error *err)
{
    if (ms_optimizer_stream_is_inherited(stream)) {
        return ms_fail(err, MS_ESTATE, "optimizer state on disk in %s belongs to the parent process",
                       stream->dir);
    }
    ms__mutex_lock(&stream->lock);
    return MS_OK;
}

static void leave(ms_optimizer_stream *stream)
{
    ms__mutex_unlock(&stream->lock);
}

static void entry_free(entry *e)
{
    if (e != NULL) {
        ms_free(e->chunks);
        ms_free(e);
    }
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
    if (!is_inherited) { /* there, the lists may have been half changed when the process forked */
        for (size_t i = 0; i < stream->entries.count; i++) {
            entry_free(stream->entries.items[i]);
        }
        MS__ARRAY_FREE(&stream->entries);
        MS__ARRAY_FREE(&stream->hints);
        ms__mutex_destroy(&stream->lock);
    }
    ms_free(stream);
}

/* ---- entries ---------------------------------------------------------------------- */

static int check_form(const ms_optimizer_form *form, ms_error *err)
{
    if ((unsigned)form->weights >= MS_ADAMW_WEIGHTS_COUNT ||
        (unsigned)form->moments >= MS_ADAMW_MOMENTS_COUNT || form->count == 0) {
        return ms_fail(err, MS_EINVAL, "optimizer state: a form of %llu elements is of no known kind",
                       (unsigned long long)form->count);
    }
    if (form->has_max_exp_avg_sq && form->moments == MS_ADAMW_MOMENTS_8BIT) {
        return ms_fail(err, MS_EINVAL, "optimizer state: amsgrad has no 8-bit form");
    }
    if (form->count > INT64_MAX / MS_OPTIMIZER_CHUNK_BYTES) {
        return ms_fail(err, MS_EOVERFLOW, "optimizer state of %llu elements",
                       (unsigned long long)form->count);
    }
    return MS_OK;
}

static uint64_t elements_of(const entry *e, uint64_t chunk)
{
    return ms__min_u64(e->chunk_elements, e->form.count - chunk * e->chunk_elements);
}

static entry *entry_new(const ms_optimizer_form *form)
{
    entry *e = ms_calloc(1, sizeof *e);
    if (e == NULL) {
        return NULL;
    }
    e->form = *form;
    e->chunk_elements = ms__record_chunk_elements(form);
    e->chunk_count = ms__div_up(form->count, e->chunk_elements);
    e->chunks = ms_calloc(e->chunk_count, sizeof *e->chunks);
    if (e->chunks == NULL) {
        ms_free(e);
        return NULL;
    }
    for (uint64_t i = 0; i < e->chunk_count; i++) {
        uint64_t offsets[MS_PART_COUNT];
        e->chunks[i].bytes = ms__record_offsets(form, elements_of(e, i), offsets);
    }
    return e;
}

int ms_optimizer_stream_add(ms_optimizer_stream *stream, const ms_optimizer_form *form, uint64_t *id,
                            ms_error *err)
{
    int rc = check_form(form, err);
    if (rc != MS_OK) {
        return rc;
    }
    entry *made = entry_new(form);
    rc = enter(stream, err);
    if (rc != MS_OK) {
        entry_free(made);
        return rc;
    }
    entry **place = made != NULL ? MS__ARRAY_PUSH(&stream->entries) : NULL;
    if (place != NULL) {
        *place = made;
        *id = stream->entries.count;
    }
    leave(stream);
    if (place == NULL) {
        entry_free(made);
        return ms_fail(err, MS_ENOMEM, "optimizer state: out of memory for %llu elements",
                       (unsigned long long)form->count);
    }
    return MS_OK;
}

/* Under the lock. */
static entry *find(ms_optimizer_stream *stream, uint64_t id, ms_error *err)
{
    entry *e = id > 0 && id <= stream->entries.count ? stream->entries.items[id - 1] : NULL;
    if (e == NULL) {
        (void)ms_fail(err, MS_EINVAL, "optimizer state %llu does not exist", (unsigned long long)id);
    }
    return e;
}

void ms_optimizer_stream_remove(ms_optimizer_stream *stream, uint64_t id)
{
    if (enter(stream, NULL) != MS_OK) {
        return;
    }
    entry *e = find(stream, id, NULL);
    for (uint64_t i = 0; e != NULL && i < e->chunk_count; i++) {
        ms__state_drop(&stream->slots, &e->chunks[i]);
    }
    if (e != NULL) {
        stream->entries.items[id - 1] = NULL;
        entry_free(e);
    }
    leave(stream);
}

int ms_optimizer_stream_part_bytes(ms_optimizer_stream *stream, uint64_t id,
                                   uint64_t bytes[MS_PART_COUNT], ms_error *err)
{
    int rc = enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    const entry *e = find(stream, id, err);
    for (int part = 0; e != NULL && part < MS_PART_COUNT; part++) {
        bytes[part] = ms__record_part_bytes(&e->form, (ms_optimizer_part)part, e->form.count);
    }
    leave(stream);
    return e != NULL ? MS_OK : MS_EINVAL;
}

/* ---- reading ahead ------------------------------------------------------------------- */

/* The next chunk that will be wanted, or NULL. */
static ms__state_chunk *next_wanted(ms_optimizer_stream *stream)
{
    while (stream->next_hint < stream->hints.count) {
        entry *e = find(stream, stream->hints.items[stream->next_hint], NULL);
        if (e != NULL && stream->next_chunk < e->chunk_count) {
            return &e->chunks[stream->next_chunk];
        }
        stream->next_hint++;
        stream->next_chunk = 0;
    }
    return NULL;
}

static int read_ahead(ms_optimizer_stream *stream, ms_error *err)
{
    int rc = MS_OK;
    ms__state_chunk *chunk = next_wanted(stream);
    while (chunk != NULL && ms__state_read_ahead(&stream->slots, chunk, &rc, err)) {
        stream->next_chunk++;
        chunk = next_wanted(stream);
    }
    return rc;
}

static int set_hints(ms_optimizer_stream *stream, const uint64_t *ids, size_t count, ms_error *err)
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

/* An update went to a chunk that was not the one expected: what was read ahead for the
 * hints before it is dropped one by one as buffers are needed. */
static void pass_over(ms_optimizer_stream *stream, uint64_t id, uint64_t chunk)
{
    bool is_expected = stream->next_hint < stream->hints.count &&
                       stream->hints.items[stream->next_hint] == id;
    if (is_expected && stream->next_chunk <= chunk) {
        stream->next_chunk = chunk + 1;
    }
}

/* ---- rounds ----------------------------------------------------------------------------- */

static int remember(ms_optimizer_stream *stream, int rc, const ms_error *err)
{
    if (rc != MS_OK && stream->failure.code == MS_OK) {
        stream->failure = *err;
    }
    return rc;
}

static int give_failure(const ms_optimizer_stream *stream, ms_error *err)
{
    if (err != NULL && stream->failure.code != MS_OK) {
        *err = stream->failure;
    }
    return stream->failure.code;
}

int ms_optimizer_stream_begin(ms_optimizer_stream *stream, const uint64_t *ids, size_t count,
                              ms_error *err)
{
    ms_error cause = {0};
    int rc = enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    stream->failure = (ms_error){0};
    rc = set_hints(stream, ids, count, &cause);
    rc = rc == MS_OK ? ms__state_save_rest(&stream->slots, &cause) : rc;
    rc = rc == MS_OK ? read_ahead(stream, &cause) : rc;
    stream->in_round = true;
    remember(stream, rc, &cause);
    give_failure(stream, err);
    leave(stream);
    return rc;
}

static int check_update(const entry *e, const ms_adamw_tensor *tensor, ms_error *err)
{
    if (tensor->weights != e->form.weights || tensor->moments != e->form.moments ||
        tensor->count != e->form.count) {
        return ms_fail(err, MS_EINVAL, "optimizer state of %llu elements: the tensor has %llu, or "
                                       "another form", (unsigned long long)e->form.count,
                       (unsigned long long)tensor->count);
    }
    if (tensor->step == 0 || tensor->parameter == NULL || tensor->gradient == NULL) {
        return ms_fail(err, MS_EINVAL, "optimizer state: an update lacks its number, its parameter "
                                       "or its gradient");
    }
    return MS_OK;
}

/* Updates a chunk and starts to write it. */
static int update_chunk(ms_optimizer_stream *stream, entry *e, uint64_t index,
                        const ms_adamw_group *group, const ms_adamw_tensor *tensor,
                        uint32_t threads, ms_error *err)
{
    ms__state_chunk *chunk = &e->chunks[index];
    uint64_t elements = elements_of(e, index);
    ms__state_slot *slot = NULL;
    bool is_new;
    if (chunk->step == tensor->step) {
        ms__state_forget(&stream->slots, chunk);
        return MS_OK;
    }
    if (chunk->step + 1 != tensor->step) {
        return ms_fail(err, MS_ESTATE, "optimizer state: update %llu was asked for after update %llu",
                       (unsigned long long)tensor->step, (unsigned long long)chunk->step);
    }
    int rc = ms__state_load(&stream->slots, chunk, &slot, &is_new, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (is_new) {
        ms__record_fill_new(&e->form, elements, slot->memory);
    }
    ms_adamw_tensor part =
        ms__record_bind(&e->form, tensor, index * e->chunk_elements, elements, slot->memory);
    rc = ms_adamw_step(group, &part, 1, threads, err);
    if (rc != MS_OK) {
        ms__state_release(slot);
        return rc;
    }
    chunk->step = tensor->step;
    return ms__state_store(&stream->slots, slot, err);
}

static int update(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_group *group,
                  const ms_adamw_tensor *tensor, uint32_t threads, ms_error *err)
{
    entry *e = find(stream, id, err);
    if (e == NULL) {
        return MS_EINVAL;
    }
    int rc = check_update(e, tensor, err);
    for (uint64_t i = 0; rc == MS_OK && i < e->chunk_count; i++) {
        pass_over(stream, id, i);
        rc = update_chunk(stream, e, i, group, tensor, threads, err);
        rc = rc == MS_OK ? read_ahead(stream, err) : rc;
    }
    return rc;
}

int ms_optimizer_stream_update(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_group *group,
                               const ms_adamw_tensor *tensor, uint32_t threads, ms_error *err)
{
    ms_error cause = {0};
    int rc = enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (!stream->in_round) {
        leave(stream);
        return ms_fail(err, MS_ESTATE, "optimizer state: an update outside a round");
    }
    if (stream->failure.code == MS_OK) {
        rc = update(stream, id, group, tensor, threads, &cause);
        remember(stream, rc, &cause);
    }
    rc = give_failure(stream, err);
    leave(stream);
    return rc;
}

/* Ends a round, or what stands for one. */
static int rest(ms_optimizer_stream *stream, ms_error *err)
{
    ms_error cause = {0};
    remember(stream, ms__state_rest(&stream->slots, &cause), &cause);
    stream->hints.count = 0;
    stream->in_round = false;
    int rc = give_failure(stream, err);
    stream->failure = (ms_error){0};
    return rc;
}

int ms_optimizer_stream_end(ms_optimizer_stream *stream, ms_error *err)
{
    int rc = enter(stream, err);
    if (rc == MS_OK) {
        rc = rest(stream, err);
        leave(stream);
    }
    return rc;
}

/* ---- whole states ---------------------------------------------------------------------- */

static int put_chunk(ms_optimizer_stream *stream, entry *e, uint64_t index,
                     const ms_adamw_tensor *source, ms_error *err)
{
    ms__state_chunk *chunk = &e->chunks[index];
    ms__state_slot *slot = NULL;
    uint64_t elements = elements_of(e, index);
    bool is_new;
    ms__state_drop(&stream->slots, chunk);
    int rc = ms__state_load(&stream->slots, chunk, &slot, &is_new, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__record_fill_new(&e->form, elements, slot->memory);
    ms__record_fill_from(&e->form, source, index * e->chunk_elements, elements, slot->memory);
    chunk->step = source->step;
    return ms__state_store(&stream->slots, slot, err);
}

static int fail_in_round(ms_error *err)
{
    return ms_fail(err, MS_ESTATE, "optimizer state: a round of updates has not ended");
}

int ms_optimizer_stream_put(ms_optimizer_stream *stream, uint64_t id, const ms_adamw_tensor *source,
                            ms_error *err)
{
    int rc = enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    entry *e = find(stream, id, err);
    rc = e == NULL ? MS_EINVAL : stream->in_round ? fail_in_round(err) : MS_OK;
    if (rc == MS_OK) {
        ms_error cause = {0};
        for (uint64_t i = 0; rc == MS_OK && i < e->chunk_count; i++) {
            rc = remember(stream, put_chunk(stream, e, i, source, &cause), &cause);
        }
        rc = rest(stream, err);
    }
    leave(stream);
    return rc;
}

static int write_parts(const entry *e, uint64_t index, const unsigned char *record, int fd,
                       const uint64_t offsets[MS_PART_COUNT], ms_error *err)
{
    const ms__file file = {.fd = fd};
    uint64_t places[MS_PART_COUNT];
    uint64_t elements = elements_of(e, index);
    int rc = MS_OK;
    ms__record_offsets(&e->form, elements, places);
    for (int i = 0; rc == MS_OK && i < MS_PART_COUNT; i++) {
        ms_optimizer_part part = (ms_optimizer_part)i;
        uint64_t bytes = ms__record_part_bytes(&e->form, part, elements);
        uint64_t begin = ms__record_part_bytes(&e->form, part, index * e->chunk_elements);
        if (bytes > 0 && offsets[i] != UINT64_MAX) {
            rc = ms__file_write(&file, record + places[i], bytes, ms__add_sat(offsets[i], begin), err);
        }
    }
    return rc;
}

static int export_chunk(ms_optimizer_stream *stream, entry *e, uint64_t index, int fd,
                        const uint64_t offsets[MS_PART_COUNT], ms_error *err)
{
    ms__state_slot *slot = NULL;
    bool is_new;
    if (e->chunks[index].step != e->chunks[0].step) {
        return ms_fail(err, MS_ESTATE, "optimizer state: a step has ended half-way through the tensor");
    }
    int rc = ms__state_load(&stream->slots, &e->chunks[index], &slot, &is_new, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (is_new) {
        ms__record_fill_new(&e->form, elements_of(e, index), slot->memory);
    }
    rc = write_parts(e, index, slot->memory, fd, offsets, err);
    ms__state_release(slot);
    return rc;
}

static int export(ms_optimizer_stream *stream, uint64_t id, int fd,
                  const uint64_t offsets[MS_PART_COUNT], ms_error *err)
{
    entry *e = find(stream, id, err);
    if (e == NULL) {
        return MS_EINVAL;
    }
    int rc = ms__state_save_rest(&stream->slots, err);
    rc = rc == MS_OK ? set_hints(stream, &id, 1, err) : rc;
    for (uint64_t i = 0; rc == MS_OK && i < e->chunk_count; i++) {
        rc = read_ahead(stream, err);
        rc = rc == MS_OK ? export_chunk(stream, e, i, fd, offsets, err) : rc;
    }
    return rc;
}

int ms_optimizer_stream_export(ms_optimizer_stream *stream, uint64_t id, int fd,
                               const uint64_t offsets[MS_PART_COUNT], ms_error *err)
{
    ms_error cause = {0};
    int rc = enter(stream, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = stream->in_round ? fail_in_round(err) : MS_OK;
    if (rc == MS_OK) {
        remember(stream, export(stream, id, fd, offsets, &cause), &cause);
        rc = rest(stream, err);
    }
    leave(stream);
    return rc;
}

/* ---- questions ----------------------------------------------------------------------------- */

void ms_optimizer_stream_get_stats(ms_optimizer_stream *stream, ms_optimizer_stream_stats *stats)
{
    ms_offload_stats tier;
    ms_offload_get_stats(stream->engine, &tier);
    bool is_entered = enter(stream, NULL) == MS_OK; /* in a child: nothing changes these any more */
    *stats = (ms_optimizer_stream_stats){
        .disk_bytes = tier.tier_bytes,
        .resident_bytes = stream->slots.resident_bytes,
        .peak_resident_bytes = stream->slots.peak_resident_bytes,
        .written_bytes = tier.written_bytes,
        .read_bytes = tier.read_bytes,
        .stall_ns = stream->slots.stall_ns,
    };
    if (is_entered) {
        leave(stream);
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
