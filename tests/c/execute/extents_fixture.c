/*
 * An executor over the memory tier, for the tests of extents: see extents_fixture.h.
 */
#include "extents_fixture.h"

#include "execute/execute_internal.h"
#include "test_common.h"

void set_windows(fixture *f, uint64_t write_bytes, uint64_t read_bytes)
{
    char name[] = "layer";
    ms_plan_entry entry = {.name = name, .technique = MS_TECHNIQUE_OFFLOAD_DISK};
    ms_plan plan = {.entries = &entry,
                    .entry_count = 1,
                    .fallback = MS_TECHNIQUE_OFFLOAD_DISK,
                    .offload_min_bytes = 1,
                    .write_window_bytes = write_bytes,
                    .read_window_bytes = read_bytes};
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
}

void open_frame(fixture *f)
{
    ms_call_facts facts = {.replayable = false};
    uint32_t layer;
    assert_ms_ok(ms_execute_add_layer(f->execute, "layer", &layer, &f->err), f->err);
    assert_ms_ok(ms_execute_enter(f->execute, 1, layer, &facts, &f->frame, &f->err), f->err);
    assert_non_null(f->frame);
}

int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 1 << 20, 0);
    open_frame(f);
    *state = f;
    return 0;
}

static void assert_nothing_lives(fixture *f)
{
    uint64_t step, step_ns;
    ms_execute_stats stats;
    ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    ms_execute_get_stats(f->execute, &stats);
    assert_int_equal(stats.live_extents, 0);
    assert_int_equal(stats.storing_bytes, 0);
    assert_int_equal(stats.fetched_bytes, 0);
    assert_int_equal(stats.tier_bytes, 0);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(f->host.locks, f->host.unlocks);
}

int close_fixture(void **state)
{
    fixture *f = *state;
    ms_fault_disarm_all();
    ms_execute_leave(f->execute, 1);
    assert_nothing_lives(f);
    assert_int_equal(f->host.live_storages, 0);
    ms_execute_close(f->execute);
    assert_int_equal(ms_memory_live_blocks(), 0);
    free(f);
    return 0;
}

ms_extent *store(fixture *f, storage *item, uint64_t version)
{
    ms_extent *extent;
    void *memory = memory_of(&f->host, item);
    assert_ms_ok(ms_extent_store(f->execute, f->frame, (uintptr_t)item, version, item->data, item->bytes, item->bytes,
                                 memory, &extent, &f->err),
                 f->err);
    if (extent == NULL) { /* the reference is still the test's */
        ms_execute_host table;
        host kept = f->host;
        host_table(&f->host, &table);
        f->host = kept;
        table.release(&f->host, memory);
    }
    return extent;
}

void store_apart(fixture *f, ms_extent **extents, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        storage *item = storage_new(&f->host, BYTES, i);
        extents[i] = store(f, item, 0);
        storage_let_go(&f->host, item);
    }
}

void settle(fixture *f)
{
    ms_execute_stats stats;
    do {
        ms_execute_poll(f->execute);
        ms_execute_get_stats(f->execute, &stats);
    } while (stats.storing_bytes > 0);
}

bool take(fixture *f, ms_extent *extent, uint64_t *mark, unsigned seed)
{
    void *memory;
    assert_ms_ok(ms_extent_take(f->execute, extent, &memory, &f->err), f->err);
    assert_true(memory_is_strong(memory));
    bool same = storage_holds(memory_storage(memory), extent->bytes, seed);
    ms_extent_taken(f->execute, extent, mark);
    return same;
}

uint64_t counter(fixture *f, ms_counter id)
{
    return ms_counter_get(ms_execute_counters(f->execute), id);
}
