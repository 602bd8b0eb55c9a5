/* The twins of state_twins.h. */
#include "state_twins.h"

#include <unistd.h>

#include "test_common.h"

char twin_spill_dir[] = "/var/tmp/memscale-stream-XXXXXX";

const ms_adamw_group twin_group = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0};

const uint64_t twin_counts[TENSORS] = {BIG, SMALL, BIG / 2};

static size_t width(const ms_optimizer_form *form)
{
    return form->weights == MS_ADAMW_FP32 ? 4 : 2;
}

void twin_fill(const twin *t, void *values, uint64_t seed)
{
    for (uint64_t i = 0; i < t->form.count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        float value = ((float)(seed >> 40) - 0x1p23f) * 0x1p-24f;
        if (t->form.weights == MS_ADAMW_FP32) {
            ((float *)values)[i] = value;
        } else {
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            ((uint16_t *)values)[i] = (uint16_t)(bits >> 16);
        }
    }
}

static void bind_arrays(ms_adamw_tensor *tensor, unsigned char *const arrays[MS_PART_COUNT])
{
    tensor->exp_avg = arrays[MS_PART_EXP_AVG];
    tensor->exp_avg_sq = arrays[MS_PART_EXP_AVG_SQ];
    tensor->max_exp_avg_sq = (float *)arrays[MS_PART_MAX_EXP_AVG_SQ];
    tensor->extra = arrays[MS_PART_EXTRA];
    tensor->exp_avg_absmax = (float *)arrays[MS_PART_EXP_AVG_ABSMAX];
    tensor->exp_avg_sq_absmax = (float *)arrays[MS_PART_EXP_AVG_SQ_ABSMAX];
}

void twin_open(twin *t, ms_optimizer_stream *stream, ms_optimizer_form form, uint64_t seed)
{
    ms_error err = {0};
    uint64_t bytes[MS_PART_COUNT];
    memset(t, 0, sizeof *t);
    t->form = form;
    assert_ms_ok(ms_optimizer_stream_add(stream, &form, &t->id, &err), err);
    assert_ms_ok(ms_optimizer_stream_part_bytes(stream, t->id, bytes, &err), err);
    ms_adamw_tensor tensor = {.weights = form.weights, .moments = form.moments, .count = form.count};
    t->memory = t->disk = tensor;
    t->memory.parameter = malloc(form.count * width(&form));
    t->disk.parameter = malloc(form.count * width(&form));
    t->disk.gradient = t->memory.gradient = malloc(form.count * width(&form));
    for (int part = 0; part < MS_PART_COUNT; part++) {
        t->arrays[part] = bytes[part] > 0 ? calloc(1, bytes[part]) : NULL;
    }
    if (form.moments == MS_ADAMW_MOMENTS_8BIT) {
        memset(t->arrays[MS_PART_EXP_AVG], 127, form.count);
    }
    bind_arrays(&t->memory, t->arrays);
    twin_fill(t, t->memory.parameter, seed);
    memcpy(t->disk.parameter, t->memory.parameter, form.count * width(&form));
}

void twin_close(twin *t)
{
    free(t->memory.parameter);
    free(t->disk.parameter);
    free(t->disk.gradient);
    for (int part = 0; part < MS_PART_COUNT; part++) {
        free(t->arrays[part]);
    }
}

void twin_step_memory(twin *t, uint64_t step)
{
    ms_error err = {0};
    twin_fill(t, t->memory.gradient, step * 977);
    t->memory.step = t->disk.step = step;
    assert_ms_ok(ms_adamw_step(&twin_group, &t->memory, 1, 1, &err), err);
}

int twins_step_disk(ms_optimizer_stream *stream, twin *twins, size_t count, ms_error *err)
{
    uint64_t ids[TENSORS] = {0};
    for (size_t i = 0; i < count; i++) {
        ids[i] = twins[i].id;
    }
    int rc = ms_optimizer_stream_begin(stream, ids, count, err);
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms_optimizer_stream_update(stream, twins[i].id, &twin_group, &twins[i].disk, THREADS, err);
    }
    ms_error later = {0};
    int ended = ms_optimizer_stream_end(stream, rc == MS_OK ? err : &later);
    return rc != MS_OK ? rc : ended;
}

void twin_assert_parameters(const twin *t)
{
    assert_memory_equal(t->disk.parameter, t->memory.parameter, t->form.count * width(&t->form));
}

void twin_assert_state(ms_optimizer_stream *stream, const twin *t)
{
    ms_error err = {0};
    uint64_t bytes[MS_PART_COUNT], offsets[MS_PART_COUNT], all = 0;
    assert_ms_ok(ms_optimizer_stream_part_bytes(stream, t->id, bytes, &err), err);
    for (int part = 0; part < MS_PART_COUNT; part++) {
        offsets[part] = all;
        all += bytes[part];
    }
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_ms_ok(ms_optimizer_stream_export(stream, t->id, fileno(file), offsets, &err), err);
    for (int part = 0; part < MS_PART_COUNT; part++) {
        unsigned char *read = malloc(bytes[part] + 1);
        assert_int_equal(pread(fileno(file), read, bytes[part], (off_t)offsets[part]), bytes[part]);
        assert_memory_equal(read, bytes[part] > 0 ? t->arrays[part] : read, bytes[part]);
        free(read);
    }
    fclose(file);
}

ms_optimizer_stream *twin_stream(uint64_t cap_bytes)
{
    ms_optimizer_stream *stream = NULL;
    ms_error err = {0};
    ms_optimizer_stream_options options = {.dir = twin_spill_dir, .cap_bytes = cap_bytes};
    assert_ms_ok(ms_optimizer_stream_open(&options, &stream, &err), err);
    return stream;
}

ms_optimizer_form twin_plain(uint64_t count)
{
    return (ms_optimizer_form){.count = count};
}

void twins_open(twin twins[TENSORS], ms_optimizer_stream *stream, uint64_t scale)
{
    for (uint64_t i = 0; i < TENSORS; i++) {
        twin_open(&twins[i], stream, twin_plain(twin_counts[i] * scale), i + 1);
    }
}

void twins_close(twin twins[TENSORS], ms_optimizer_stream *stream)
{
    ms_optimizer_stream_close(stream);
    for (int i = 0; i < TENSORS; i++) {
        twin_close(&twins[i]);
    }
}
