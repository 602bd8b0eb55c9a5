/* Optimizer state on disk has the bits of a state in memory, in every form; after every kind of
 * failure a round can be repeated and gives the same result; nothing stays behind. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "memscale/hostmem.h"
#include "state_twins.h"
#include "test_common.h"

static int nothing_left(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return ms_memory_live_bytes() == 0 ? 0 : -1;
}

/* ---- the same bits ------------------------------------------------------------------- */

static void every_form_has_the_bits_of_memory(void **state)
{
    (void)state;
    const ms_optimizer_form forms[] = {
        twin_plain(BIG),
        twin_plain(1),
        {.has_max_exp_avg_sq = true, .count = BIG},
        {.weights = MS_ADAMW_BF16_MASTER, .count = BIG},
        {.weights = MS_ADAMW_BF16_SPLIT, .has_max_exp_avg_sq = true, .count = BIG},
        {.moments = MS_ADAMW_MOMENTS_8BIT, .count = 3 * BIG},
        {.weights = MS_ADAMW_BF16_SPLIT, .moments = MS_ADAMW_MOMENTS_8BIT, .count = 3 * BIG + 5},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
        twin t;
        twin_open(&t, stream, forms[i], i);
        for (uint64_t step = 1; step <= 3; step++) {
            ms_error err = {0};
            twin_step_memory(&t, step);
            assert_ms_ok(twins_step_disk(stream, &t, 1, &err), err);
            twin_assert_parameters(&t);
            twin_assert_state(stream, &t);
        }
        ms_optimizer_stream_close(stream);
        twin_close(&t);
    }
}

static void updates_may_come_in_another_order_than_expected(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin twins[TENSORS];
    twins_open(twins, stream, 1);
    for (uint64_t step = 1; step <= 4; step++) {
        const uint64_t ids[] = {twins[0].id, 99, twins[2].id};
        assert_ms_ok(ms_optimizer_stream_begin(stream, ids, 3, &err), err);
        for (int i = TENSORS - 1; i >= 0; i--) {
            twin_step_memory(&twins[i], step);
            assert_ms_ok(ms_optimizer_stream_update(stream, twins[i].id, &twin_group, &twins[i].disk, 1, &err), err);
        }
        assert_ms_ok(ms_optimizer_stream_end(stream, &err), err);
    }
    for (int i = 0; i < TENSORS; i++) {
        twin_assert_parameters(&twins[i]);
        twin_assert_state(stream, &twins[i]);
    }
    twins_close(twins, stream);
}

/* A caller that updates its own parameter, and fails once at a stretch. */
typedef struct own_arithmetic {
    const twin *t;
    uint64_t fails_at; /* an element of the stretch; UINT64_MAX: none */
    uint64_t computed; /* elements */
} own_arithmetic;

static int compute_own(void *context, uint64_t first, const ms_adamw_tensor *part, ms_error *err)
{
    own_arithmetic *own = context;
    assert_null(part->parameter);
    assert_null(part->gradient);
    if (first == own->fails_at) {
        own->fails_at = UINT64_MAX;
        return ms_fail(err, MS_ENOMEM, "no room on the card");
    }
    ms_adamw_tensor bound = *part;
    bound.parameter = (float *)own->t->disk.parameter + first;
    bound.gradient = (float *)own->t->disk.gradient + first;
    own->computed += part->count;
    return ms_adamw_step(&twin_group, &bound, 1, 1, err);
}

static int step_by(ms_optimizer_stream *stream, own_arithmetic *own, uint64_t step, ms_error *err)
{
    assert_ms_ok(ms_optimizer_stream_begin(stream, &own->t->id, 1, err), *err);
    (void)ms_optimizer_stream_update_by(stream, own->t->id, step, compute_own, own, err);
    return ms_optimizer_stream_end(stream, err);
}

static void the_callers_arithmetic_has_the_bits_of_memory_and_may_fail(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin t;
    ms_optimizer_form form = {.has_max_exp_avg_sq = true, .count = 2 * BIG};
    twin_open(&t, stream, form, 3);
    for (uint64_t step = 1; step <= 3; step++) {
        own_arithmetic own = {.t = &t, .fails_at = UINT64_MAX};
        twin_step_memory(&t, step);
        if (step == 2) { /* at the second stretch: the first one has its update, and is not computed again */
            uint64_t chunk_elements = MS_OPTIMIZER_CHUNK_BYTES / (3 * sizeof(float)) / 1024 * 1024;
            own.fails_at = chunk_elements;
            assert_ms_fails(step_by(stream, &own, step, &err), MS_ENOMEM, err, "no room on the card");
            assert_int_equal(own.computed, chunk_elements);
        }
        assert_ms_ok(step_by(stream, &own, step, &err), err);
        assert_int_equal(own.computed, 2 * BIG);
        twin_assert_parameters(&t);
        twin_assert_state(stream, &t);
    }
    own_arithmetic own = {.t = &t, .fails_at = UINT64_MAX};
    assert_ms_fails(ms_optimizer_stream_update_by(stream, t.id, 4, compute_own, &own, &err), MS_ESTATE, err,
                    "outside a round");
    assert_ms_fails(step_by(stream, &own, 0, &err), MS_EINVAL, err, "lacks its number");
    assert_ms_fails(step_by(stream, &own, 5, &err), MS_ESTATE, err, "update 5 was asked for after update 3");
    ms_optimizer_stream_close(stream);
    twin_close(&t);
}

static void a_replaced_state_continues(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin t;
    twin_open(&t, stream, twin_plain(BIG), 7);
    twin_step_memory(&t, 1);
    twin_step_memory(&t, 2);
    memcpy(t.disk.parameter, t.memory.parameter, BIG * 4);
    assert_ms_ok(ms_optimizer_stream_put(stream, t.id, &t.memory, &err), err);
    twin_assert_state(stream, &t);
    twin_step_memory(&t, 3);
    assert_ms_ok(twins_step_disk(stream, &t, 1, &err), err);
    twin_assert_parameters(&t);
    twin_assert_state(stream, &t);
    ms_optimizer_stream_close(stream);
    twin_close(&t);
}

static void arrays_that_a_replacement_lacks_get_their_first_values(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin t;
    twin_open(&t, stream, twin_plain(BIG), 7);
    twin_step_memory(&t, 1);
    ms_adamw_tensor source = t.memory;
    source.exp_avg = NULL;
    assert_ms_ok(ms_optimizer_stream_put(stream, t.id, &source, &err), err);
    memset(t.memory.exp_avg, 0, BIG * sizeof(float));
    twin_assert_state(stream, &t);
    ms_optimizer_stream_close(stream);
    twin_close(&t);
}

/* An array whose offset is UINT64_MAX is not written. */
static void an_export_skips_arrays_that_have_no_place(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin t;
    twin_open(&t, stream, twin_plain(BIG), 7);
    twin_step_memory(&t, 1);
    assert_ms_ok(twins_step_disk(stream, &t, 1, &err), err);
    uint64_t bytes[MS_PART_COUNT], offsets[MS_PART_COUNT];
    assert_ms_ok(ms_optimizer_stream_part_bytes(stream, t.id, bytes, &err), err);
    FILE *file = tmpfile();
    assert_non_null(file);
    memset(offsets, 0xff, sizeof offsets);
    assert_ms_ok(ms_optimizer_stream_export(stream, t.id, fileno(file), offsets, &err), err);
    assert_int_equal(lseek(fileno(file), 0, SEEK_END), 0);
    offsets[MS_PART_EXP_AVG_SQ] = 100;
    assert_ms_ok(ms_optimizer_stream_export(stream, t.id, fileno(file), offsets, &err), err);
    assert_int_equal(lseek(fileno(file), 0, SEEK_END), 100 + bytes[MS_PART_EXP_AVG_SQ]);
    fclose(file);
    ms_optimizer_stream_close(stream);
    twin_close(&t);
}

static uint64_t bytes_read(ms_optimizer_stream *stream)
{
    ms_optimizer_stream_stats stats;
    ms_optimizer_stream_get_stats(stream, &stats);
    return stats.read_bytes;
}

/* The next parts are read ahead, as far as the buffers allow, and no more than the hints name. */
static void reads_ahead_within(uint64_t buffer_bytes, uint64_t most_bytes)
{
    enum { MANY = 8 };
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(0);
    twin twins[TENSORS];
    twins_open(twins, stream, MANY);
    ms_optimizer_stream_set_buffers(stream, buffer_bytes);
    for (int i = 0; i < TENSORS; i++) {
        twin_step_memory(&twins[i], 1);
    }
    assert_ms_ok(twins_step_disk(stream, twins, TENSORS, &err), err);
    const uint64_t ids[] = {twins[0].id, twins[1].id, twins[2].id};
    uint64_t before = bytes_read(stream), wanted = most_bytes / 2 - MS_OPTIMIZER_CHUNK_BYTES;
    assert_ms_ok(ms_optimizer_stream_begin(stream, ids, TENSORS, &err), err);
    uint64_t deadline = ms_now_ns() + PATIENCE_NS;
    while (bytes_read(stream) - before < wanted && ms_now_ns() < deadline) {
        usleep(1000);
    }
    assert_in_range(bytes_read(stream) - before, wanted, most_bytes / 2);
    assert_ms_ok(ms_optimizer_stream_end(stream, &err), err);
    twins_close(twins, stream);
}

static void reading_runs_ahead_of_updates(void **state)
{
    (void)state;
    const uint64_t least = MS_OPTIMIZER_CHUNKS * MS_OPTIMIZER_CHUNK_BYTES;
    reads_ahead_within(0, least);
    reads_ahead_within(1, least);
    reads_ahead_within(2 * least + 1, 2 * least);
}

static uint64_t bytes_resident(ms_optimizer_stream *stream)
{
    ms_optimizer_stream_stats stats;
    ms_optimizer_stream_get_stats(stream, &stats);
    return stats.resident_bytes;
}

/* In a step with larger buffers more lies in memory; all of it is freed at its end. Fewer buffers in the middle of a step
 * are fewer at the next update. */
static void larger_buffers_have_the_same_bits_and_are_freed(void **state)
{
    (void)state;
    enum { MANY = 16 };
    const uint64_t usual = MS_OPTIMIZER_CHUNKS * MS_OPTIMIZER_CHUNK_BYTES;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin twins[TENSORS];
    twins_open(twins, stream, MANY);
    const uint64_t ids[] = {twins[0].id, twins[1].id, twins[2].id};
    for (uint64_t step = 1; step <= 4; step++) {
        ms_optimizer_stream_set_buffers(stream, step % 2 == 0 ? UINT64_MAX : 3 * usual);
        assert_ms_ok(ms_optimizer_stream_begin(stream, ids, TENSORS, &err), err);
        for (int i = 0; i < TENSORS; i++) {
            twin_step_memory(&twins[i], step);
            assert_ms_ok(ms_optimizer_stream_update(stream, ids[i], &twin_group, &twins[i].disk, 1, &err), err);
            if (i == 0 && step > 1) {
                assert_in_range(bytes_resident(stream), usual + 1, step % 2 == 0 ? UINT64_MAX : 3 * usual);
                ms_optimizer_stream_set_buffers(stream, 0);
            }
        }
        assert_in_range(bytes_resident(stream), 0, step == 1 ? 3 * usual : usual);
        assert_ms_ok(ms_optimizer_stream_end(stream, &err), err);
        assert_int_equal(bytes_resident(stream), 0);
    }
    for (int i = 0; i < TENSORS; i++) {
        twin_assert_parameters(&twins[i]);
        twin_assert_state(stream, &twins[i]);
    }
    twins_close(twins, stream);
}

static void space_and_buffers_are_bounded_and_freed(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream_stats stats;
    /* The cap has room for the state and one chunk, so outdated versions must be freed. */
    enum { MANY = 8 }; /* more chunks than buffers */
    uint64_t bytes = MANY * (twin_counts[0] + twin_counts[1] + twin_counts[2]) * 8;
    ms_optimizer_stream *stream = twin_stream(bytes + (MS_OPTIMIZER_CHUNK_BYTES + (1 << 20)));
    twin twins[TENSORS];
    twins_open(twins, stream, MANY);
    for (uint64_t step = 1; step <= 3; step++) {
        for (int i = 0; i < TENSORS; i++) {
            twin_step_memory(&twins[i], step);
        }
        assert_ms_ok(twins_step_disk(stream, twins, TENSORS, &err), err);
        twin_assert_parameters(&twins[0]);
    }
    ms_optimizer_stream_get_stats(stream, &stats);
    assert_int_equal(stats.resident_bytes, 0);
    assert_in_range(stats.peak_resident_bytes, 1, MS_OPTIMIZER_CHUNKS * MS_OPTIMIZER_CHUNK_BYTES);
    assert_in_range(stats.disk_bytes, bytes, bytes + (1 << 20));
    for (int i = 0; i < TENSORS; i++) {
        ms_optimizer_stream_remove(stream, twins[i].id);
    }
    ms_optimizer_stream_get_stats(stream, &stats);
    assert_int_equal(stats.disk_bytes, 0);
    twins_close(twins, stream);
}

/* ---- failures -------------------------------------------------------------------------- */

/* The nth operation of a kind fails in the second step. Either that has no effect (`code` is MS_OK), or
 * the step may fail with `code` and is repeated. Afterwards the bits equal those in memory. */
static void a_fault_changes_no_number(ms_fault kind, int system_errno, int code)
{
    uint64_t fired = 0, failed = 0;
    for (uint64_t nth = 1; nth == fired + 1; nth++) {
        ms_error err = {0};
        ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
        twin twins[TENSORS];
        twins_open(twins, stream, 1);
        ms_optimizer_stream_set_buffers(stream,
                                        nth % 2 * UINT64_MAX); /* the failed step's slots exceed the next one's */
        for (uint64_t step = 1; step <= 3; step++) {
            for (int i = 0; i < TENSORS; i++) {
                twin_step_memory(&twins[i], step);
            }
            if (step == 2) {
                ms_fault_arm(kind, nth, system_errno);
            }
            int rc = twins_step_disk(stream, twins, TENSORS, &err);
            if (rc != MS_OK) {
                assert_int_equal(step, 2);
                assert_int_equal(rc, code);
                assert_int_equal(err.code, code);
                failed++;
                ms_optimizer_stream_set_buffers(stream, 0);
                assert_ms_ok(twins_step_disk(stream, twins, TENSORS, &err), err);
            }
            if (step == 2) {
                fired += ms_fault_passed(kind) >= nth;
                ms_fault_disarm_all();
            }
        }
        for (int i = 0; i < TENSORS; i++) {
            twin_assert_parameters(&twins[i]);
            twin_assert_state(stream, &twins[i]);
        }
        twins_close(twins, stream);
    }
    assert_true(fired > 0);
    assert_int_equal(failed > 0, code != MS_OK);
}

static void faults_change_no_number(void **state)
{
    (void)state;
    a_fault_changes_no_number(MS_FAULT_READ, EIO, MS_EIO);
    a_fault_changes_no_number(MS_FAULT_FLIP, 0, MS_ECHECKSUM);
    a_fault_changes_no_number(MS_FAULT_SHORT, 0, MS_OK);
    a_fault_changes_no_number(MS_FAULT_WRITE, EIO, MS_OK); /* written again to another place */
    a_fault_changes_no_number(MS_FAULT_WRITE, ENOSPC, MS_OK);
}

static void out_of_memory_changes_no_number(void **state)
{
    (void)state;
    a_fault_changes_no_number(MS_FAULT_ALLOC, ENOMEM, MS_ENOMEM);
    a_fault_changes_no_number(MS_FAULT_MAP, ENOMEM, MS_OK); /* fewer chunks read ahead */
}

static void a_full_disk_is_reported_and_the_step_finished_later(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(twin_counts[0] * 8 + MS_OPTIMIZER_CHUNK_BYTES / 2);
    twin twins[TENSORS];
    twins_open(twins, stream, 1);
    for (int i = 0; i < TENSORS; i++) {
        twin_step_memory(&twins[i], 1);
    }
    assert_ms_ok(twins_step_disk(stream, twins, 1, &err), err);
    for (int again = 0; again < 3; again++) {
        assert_ms_fails(twins_step_disk(stream, twins + 1, 2, &err), MS_ENOSPC, err, "cap");
    }
    ms_optimizer_stream_remove(stream, twins[0].id); /* makes room */
    assert_ms_ok(twins_step_disk(stream, twins + 1, 2, &err), err);
    for (int i = 0; i < TENSORS; i++) {
        twin_assert_parameters(&twins[i]);
    }
    twin_assert_state(stream, &twins[1]);
    twin_assert_state(stream, &twins[2]);
    twins_close(twins, stream);
}

static void closing_in_the_middle_leaves_nothing(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_hostmem_stats before, after;
    ms_hostmem_get_stats(&before);
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin twins[TENSORS];
    twins_open(twins, stream, 1);
    const uint64_t ids[] = {twins[0].id, twins[1].id, twins[2].id};
    for (uint64_t step = 1; step <= 2; step++) {
        assert_ms_ok(ms_optimizer_stream_begin(stream, ids, 3, &err), err);
        twin_step_memory(&twins[0], step);
        assert_ms_ok(ms_optimizer_stream_update(stream, ids[0], &twin_group, &twins[0].disk, 1, &err), err);
    }
    ms_hostmem_get_stats(&after);
    assert_true(after.live_bytes > before.live_bytes); /* the buffers */
    twins_close(twins, stream);
    ms_hostmem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

static void a_killed_process_leaves_no_file(void **state)
{
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
        twin t;
        twin_open(&t, stream, twin_plain(BIG), 1);
        for (uint64_t step = 1;; step++) {
            ms_error err = {0};
            twin_step_memory(&t, step);
            if (twins_step_disk(stream, &t, 1, &err) != MS_OK || write(ready[1], "x", 1) != 1) {
                _exit(1);
            }
        }
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(rmdir(twin_spill_dir), 0); /* only an empty directory can be removed */
    assert_non_null(mkdtemp(strcpy(strrchr(twin_spill_dir, '-'), "-XXXXXX") - strlen("/var/tmp/memscale-stream")));
}

/* ---- fork --------------------------------------------------------------------------------- */

/* A thread that updates endlessly: at a fork it most likely holds the stream's lock. */
typedef struct updating {
    ms_optimizer_stream *stream;
    twin twins[TENSORS];
    atomic_bool ends;
    atomic_uint steps;
    int rc;
} updating;

static void update_on(void *argument)
{
    updating *u = argument;
    while (u->rc == MS_OK && !atomic_load(&u->ends)) {
        ms_error err = {0};
        unsigned step = atomic_load(&u->steps) + 1;
        for (int i = 0; i < TENSORS; i++) {
            u->twins[i].disk.step = step;
        }
        u->rc = twins_step_disk(u->stream, u->twins, TENSORS, &err);
        atomic_store(&u->steps, step);
    }
}

/* In the child: every call names the stream's owner and returns without waiting. */
static int use_in_child(updating *u)
{
    ms_error err = {0};
    ms_optimizer_stream_stats stats;
    ms_optimizer_form form = twin_plain(SMALL);
    uint64_t id = u->twins[0].id, made = 0, bytes[MS_PART_COUNT];
    const uint64_t nowhere[MS_PART_COUNT] = {UINT64_MAX};
    int wrong = 0;
    alarm(PATIENCE_S);
    wrong += !ms_optimizer_stream_is_inherited(u->stream);
    wrong += ms_optimizer_stream_begin(u->stream, &id, 1, &err) != MS_ESTATE;
    wrong += strstr(err.text, "parent process") == NULL || strstr(err.text, twin_spill_dir) == NULL;
    wrong += ms_optimizer_stream_update(u->stream, id, &twin_group, &u->twins[0].disk, 1, &err) != MS_ESTATE;
    wrong += ms_optimizer_stream_end(u->stream, &err) != MS_ESTATE;
    wrong += ms_optimizer_stream_put(u->stream, id, &u->twins[0].disk, &err) != MS_ESTATE;
    wrong += ms_optimizer_stream_export(u->stream, id, 1, nowhere, &err) != MS_ESTATE;
    wrong += ms_optimizer_stream_part_bytes(u->stream, id, bytes, &err) != MS_ESTATE;
    wrong += ms_optimizer_stream_add(u->stream, &form, &made, &err) != MS_ESTATE || made != 0;
    ms_optimizer_stream_remove(u->stream, id);
    ms_optimizer_stream_get_stats(u->stream, &stats);
    ms_optimizer_stream *own = twin_stream(UINT64_MAX); /* a new stream of the child's */
    twin t;
    twin_open(&t, own, form, 1);
    twin_step_memory(&t, 1);
    wrong += ms_optimizer_stream_is_inherited(own) || twins_step_disk(own, &t, 1, &err) != MS_OK;
    ms_optimizer_stream_close(own);
    ms_optimizer_stream_close(u->stream);
    return wrong;
}

/* The address sanitizer's allocator has locks that a child inherits locked if another thread holds
 * them: under it the parent's thread pauses during the fork. */
#if defined(__SANITIZE_ADDRESS__)
enum { UPDATES_MEANWHILE = 0 };
#else
enum { UPDATES_MEANWHILE = 1 };
#endif

static void a_child_is_refused_and_the_parent_continues(void **state)
{
    (void)state;
    updating u = {.stream = twin_stream(UINT64_MAX)};
    twins_open(u.twins, u.stream, 1);
    for (int i = 0; i < TENSORS; i++) {
        twin_fill(&u.twins[i], u.twins[i].disk.gradient, 5);
    }
    ms__thread thread = {0};
    ms_error err = {0};
    if (UPDATES_MEANWHILE) {
        assert_ms_ok(ms__thread_start(&thread, "updating", update_on, &u, &err), err);
    }
    for (int k = 0; k < 30; k++) {
        pid_t child = fork();
        if (child == 0) {
            _exit(use_in_child(&u));
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0); /* it exited without an error */
    }
    atomic_store(&u.ends, true);
    ms__thread_join(&thread);
    assert_int_equal(u.rc, MS_OK);
    assert_false(ms_optimizer_stream_is_inherited(u.stream));
    for (int i = 0; i < TENSORS; i++) {
        for (unsigned step = 1; step <= atomic_load(&u.steps); step++) {
            u.twins[i].memory.step = step;
            assert_ms_ok(ms_adamw_step(&twin_group, &u.twins[i].memory, 1, 1, &err), err);
        }
        twin_assert_parameters(&u.twins[i]);
        twin_assert_state(u.stream, &u.twins[i]);
    }
    twins_close(u.twins, u.stream);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void bad_calls_are_refused_and_change_nothing(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_optimizer_stream *stream = twin_stream(UINT64_MAX);
    twin t;
    twin_open(&t, stream, twin_plain(SMALL), 1);
    twin_step_memory(&t, 1);
    t.disk.step = 1;
    const uint64_t nowhere[MS_PART_COUNT] = {UINT64_MAX};
    assert_ms_fails(ms_optimizer_stream_update(stream, t.id, &twin_group, &t.disk, 1, &err), MS_ESTATE, err,
                    "outside a round");
    ms_adamw_tensor other = t.disk;
    other.count--;
    assert_ms_ok(ms_optimizer_stream_begin(stream, NULL, 0, &err), err);
    assert_ms_fails(ms_optimizer_stream_put(stream, t.id, &t.memory, &err), MS_ESTATE, err, "round");
    assert_ms_fails(ms_optimizer_stream_export(stream, t.id, 1, nowhere, &err), MS_ESTATE, err, "round");
    assert_ms_fails(ms_optimizer_stream_update(stream, t.id, &twin_group, &other, 1, &err), MS_EINVAL, err,
                    "another form");
    assert_ms_fails(ms_optimizer_stream_end(stream, &err), MS_EINVAL, err, "another form");
    t.disk.step = 3;
    assert_ms_fails(twins_step_disk(stream, &t, 1, &err), MS_ESTATE, err, "update 3 was asked for after update 0");
    t.disk.step = 1;
    assert_ms_ok(twins_step_disk(stream, &t, 1, &err), err);
    twin_assert_parameters(&t);
    ms_optimizer_form bad = {.moments = MS_ADAMW_MOMENTS_8BIT, .has_max_exp_avg_sq = true, .count = 1};
    uint64_t id;
    assert_ms_fails(ms_optimizer_stream_add(stream, &bad, &id, &err), MS_EINVAL, err, "amsgrad");
    const ms_optimizer_form unknown[] = {{.weights = MS_ADAMW_WEIGHTS_COUNT, .count = 1},
                                         {.moments = MS_ADAMW_MOMENTS_COUNT, .count = 1}};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_ms_fails(ms_optimizer_stream_add(stream, &unknown[i], &id, &err), MS_EINVAL, err, "no known kind");
    }
    bad = twin_plain(0);
    assert_ms_fails(ms_optimizer_stream_add(stream, &bad, &id, &err), MS_EINVAL, err, "0 elements");
    ms_optimizer_stream_close(stream);
    twin_close(&t);
    ms_optimizer_stream_options options = {.dir = "/proc/none"};
    assert_ms_fails(ms_optimizer_stream_open(&options, &stream, &err), MS_ECONFIG, err, "/proc/none");
}

int main(void)
{
#define TEST(body) cmocka_unit_test_teardown(body, nothing_left)
    const struct CMUnitTest tests[] = {
        TEST(every_form_has_the_bits_of_memory),
        TEST(updates_may_come_in_another_order_than_expected),
        TEST(the_callers_arithmetic_has_the_bits_of_memory_and_may_fail),
        TEST(a_replaced_state_continues),
        TEST(arrays_that_a_replacement_lacks_get_their_first_values),
        TEST(an_export_skips_arrays_that_have_no_place),
        TEST(reading_runs_ahead_of_updates),
        TEST(larger_buffers_have_the_same_bits_and_are_freed),
        TEST(space_and_buffers_are_bounded_and_freed),
        TEST(faults_change_no_number),
        TEST(out_of_memory_changes_no_number),
        TEST(a_full_disk_is_reported_and_the_step_finished_later),
        TEST(closing_in_the_middle_leaves_nothing),
        TEST(a_killed_process_leaves_no_file),
        TEST(a_child_is_refused_and_the_parent_continues),
        TEST(bad_calls_are_refused_and_change_nothing),
    };
    if (mkdtemp(twin_spill_dir) == NULL) {
        return 1;
    }
    int failures = cmocka_run_group_tests_name("optimizer stream", tests, NULL, NULL);
    rmdir(twin_spill_dir);
    return failures;
}
