/*
 * A step whose saved storages are a GPU's (the double's): computed on a stream, stored, freed and
 * reused for the next, fetched in backward and checked; with transfers beside the computation and
 * without. The allocator is a small copy of torch's: released blocks are reused at once.
 */
#include "offload/offload_fixture.h"

#include "memscale/execute.h"

enum { LAYERS = 6, BYTES = 200 * 1024 + 8, BLOCKS = 2 * LAYERS, WINDOW = 450 * 1024 };

typedef struct block {
    unsigned char *memory;
    int holders; /* strong references; 0: free */
} block;

typedef struct reference {
    int block; /* -1: the block has been reused */
    bool is_strong;
    uint64_t life; /* of the block, at the reference's creation */
} reference;

typedef struct gpu {
    block blocks[BLOCKS];
    uint64_t lives[BLOCKS];
    void *stream;
    uint64_t peak_blocks;
} gpu;

static int block_new(gpu *self)
{
    uint64_t used = 1;
    int found = -1;
    for (int i = BLOCKS - 1; i >= 0; i--) { /* the lowest free one: mostly the one freed last */
        used += self->blocks[i].holders > 0;
        found = self->blocks[i].holders == 0 ? i : found;
    }
    assert_true(found >= 0);
    self->peak_blocks = used > self->peak_blocks ? used : self->peak_blocks;
    self->blocks[found].holders = 1;
    self->lives[found]++;
    return found;
}

static void *reference_new(gpu *self, int number)
{
    reference *made = malloc(sizeof *made);
    assert_non_null(made);
    *made = (reference){.block = number, .is_strong = true, .life = self->lives[number]};
    self->blocks[number].holders++;
    return made;
}

static void weaken(void *context, void *memory)
{
    gpu *self = context;
    reference *one = memory;
    self->blocks[one->block].holders -= one->is_strong;
    one->is_strong = false;
}

static bool strengthen(void *context, void *memory)
{
    gpu *self = context;
    reference *one = memory;
    if (!one->is_strong && self->blocks[one->block].holders > 0 && self->lives[one->block] == one->life) {
        self->blocks[one->block].holders++;
        one->is_strong = true;
    }
    return one->is_strong;
}

static void release(void *context, void *memory)
{
    weaken(context, memory);
    free(memory);
}

static int obtain(void *context, uint64_t bytes, void **memory, void **address, uint64_t *capacity, ms_error *err)
{
    gpu *self = context;
    int number = block_new(self);
    (void)err;
    *memory = reference_new(self, number);
    self->blocks[number].holders--;
    *address = self->blocks[number].memory;
    *capacity = bytes;
    return MS_OK;
}

static void *stream_of(void *context)
{
    return ((gpu *)context)->stream;
}

/* ---- the layers' computation ------------------------------------------------------ */

static void make_bytes(void *argument, unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        memory[i] = (unsigned char)(i * 13 + (uintptr_t)argument);
    }
}

static uint64_t wrong_bytes;

static void check_bytes(void *argument, unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        wrong_bytes += memory[i] != (unsigned char)(i * 13 + (uintptr_t)argument);
    }
}

static void launch(const gpu *self, const unsigned char *memory, cuda_double_kernel *kernel, uintptr_t seed)
{
    assert_int_equal(
        the_double()->launch(self->stream, (uintptr_t)memory, BYTES, kernel == make_bytes, kernel, (void *)seed), 0);
}

static void open_executor(gpu *self, bool overlaps, ms_execute **execute)
{
    ms_error err = {0};
    ms_execute_host host = {.context = self,
                            .weaken = weaken,
                            .strengthen = strengthen,
                            .release = release,
                            .obtain = obtain,
                            .stream = stream_of};
    ms_offload_options tier = small_options();
    char name[] = "layer";
    ms_plan_entry entry = {.name = name, .technique = MS_TECHNIQUE_OFFLOAD_HOST};
    ms_plan plan = {.entries = &entry,
                    .entry_count = 1,
                    .fallback = MS_TECHNIQUE_OFFLOAD_HOST,
                    .offload_min_bytes = 1,
                    .write_window_bytes = WINDOW,
                    .read_window_bytes = WINDOW};
    assert_ms_ok(ms_execute_open(&host, NULL, execute, &err), err);
    assert_int_equal(ms_execute_device(*execute), -1);
    assert_ms_ok(ms_execute_open_tier(*execute, &tier, &err), err);
    assert_int_equal(ms_execute_device(*execute), 0);
    assert_ms_ok(ms_execute_set_plan(*execute, &plan, &err), err);
    ms_execute_set_overlap(*execute, overlaps);
}

/* One layer's forward: allocates its storage, saves it, releases it. */
static ms_extent *forward(gpu *self, ms_execute *execute, uintptr_t seed, bool overlaps)
{
    ms_error err = {0};
    ms_call_facts facts = {.replayable = false};
    ms_execute_stats stats;
    uint32_t layer;
    ms_frame *frame;
    ms_extent *extent;
    assert_ms_ok(ms_execute_add_layer(execute, "layer", &layer, &err), err);
    assert_ms_ok(ms_execute_enter(execute, 1, layer, &facts, &frame, &err), err);
    int number = block_new(self);
    launch(self, self->blocks[number].memory, make_bytes, seed);
    assert_ms_ok(ms_extent_store(execute, frame, 1000 + seed, 0, self->blocks[number].memory, BYTES, BYTES,
                                 reference_new(self, number), &extent, &err),
                 err);
    assert_non_null(extent);
    assert_false(ms_extent_is_packed(extent)); /* a device's bytes are not scanned */
    self->blocks[number].holders--;
    ms_execute_leave(execute, 1);
    ms_execute_get_stats(execute, &stats);
    assert_true(overlaps || stats.storing_bytes == 0);
    return extent;
}

static void backward(gpu *self, ms_execute *execute, ms_extent *extent, uintptr_t seed, bool overlaps)
{
    ms_error err = {0};
    ms_execute_stats stats;
    uint64_t mark = 0;
    void *memory;
    assert_ms_ok(ms_extent_take(execute, extent, &memory, &err), err);
    launch(self, self->blocks[((reference *)memory)->block].memory, check_bytes, seed);
    ms_extent_taken(execute, extent, &mark);
    ms_execute_get_stats(execute, &stats);
    assert_true(overlaps || stats.fetched_bytes <= BYTES); /* nothing was fetched ahead */
    ms_extent_drop(execute, extent, mark);
}

static void run_steps(bool overlaps)
{
    gpu self = {0};
    ms_execute *execute;
    uint64_t step, step_ns;
    for (int i = 0; i < BLOCKS; i++) {
        self.blocks[i].memory = pages_new(BYTES);
    }
    open_executor(&self, overlaps, &execute);
    the_double()->schedule(3, 300000);
    wrong_bytes = 0;
    for (uintptr_t at = 0; at < 5; at++) {
        ms_extent *extents[LAYERS];
        for (uintptr_t i = 0; i < LAYERS; i++) {
            extents[i] = forward(&self, execute, 10 * at + i, overlaps);
        }
        for (uintptr_t i = LAYERS; i-- > 0;) {
            backward(&self, execute, extents[i], 10 * at + i, overlaps);
        }
        assert_true(ms_execute_boundary(execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    }
    /* The last stores of a forward may still run when backward begins: those storages stay. The host is ahead, so it
     * may be all that fit in the window. */
    uint64_t moved = ms_counter_get(ms_execute_counters(execute), MS_COUNTER_OFFLOADED_STORAGES);
    assert_true(moved <= 5 * LAYERS && moved >= (uint64_t)(overlaps ? 5 : 5 * LAYERS));
    assert_int_equal(ms_counter_get(ms_execute_counters(execute), MS_COUNTER_DISK_BYTES),
                     tested->tier == MS_TIER_DISK ? moved * BYTES : 0);
    assert_true(self.peak_blocks < LAYERS); /* blocks were freed */
    ms_execute_close(execute);
    enter_device();
    assert_int_equal(the_double()->stream_synchronize(NULL), 0);
    leave_device();
    assert_int_equal(wrong_bytes, 0);
    for (int i = 0; i < BLOCKS; i++) {
        assert_int_equal(self.blocks[i].holders, 0);
        pages_free(self.blocks[i].memory, BYTES);
    }
}

static void storages_come_back_with_transfers_beside_the_computation(void **state)
{
    (void)state;
    run_steps(true);
}

static void storages_come_back_with_transfers_waited_for(void **state)
{
    (void)state;
    run_steps(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(storages_come_back_with_transfers_beside_the_computation),
        OFFLOAD_TEST(storages_come_back_with_transfers_waited_for),
    };
    const char *const names[] = {"cuda", "cuda, pageable", "cuda and disk"};
    int failures = 0;
    for (int i = 0; i < 3; i++) {
        failures += run_on_backend(names[i], "steps on a GPU", tests, sizeof tests / sizeof tests[0]);
    }
    return failures;
}
