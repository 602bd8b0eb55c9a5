/*
 * The tracer's account of storages: the meaning of each address, and live bytes. An address serves one storage after
 * another; each storage is a life with a number. Called by the extension for each storage that a traced step
 * allocates or frees; trace.c files the events.
 */
#include "base/units.h"
#include "trace/trace_internal.h"

static int push_life(ms_trace *trace, uint64_t bytes, uint32_t *index, ms_error *err)
{
    if (trace->lives.count >= UINT32_MAX) {
        return ms_fail(err, MS_EOVERFLOW, "trace: too many storages");
    }
    trace_life *life = MS__ARRAY_PUSH(&trace->lives);
    if (life == NULL) {
        return ms__trace_no_memory(err);
    }
    life->bytes = bytes;
    life->role = MS_STORAGE_ACTIVATION;
    *index = (uint32_t)trace->lives.count - 1;
    return MS_OK;
}

int ms__trace_put_key(ms_trace *trace, uint64_t key, uint64_t value, ms_error *err)
{
    return ms__keymap_put(&trace->keys, key, value) == MS_OK ? MS_OK : ms__trace_no_memory(err);
}

static void count_parameter(ms_trace *trace, uint64_t bytes, uint32_t item_bytes, bool trainable, bool is_new)
{
    ms_residents *residents = &trace->residents;
    if (is_new) {
        residents->parameter_bytes = ms__add_sat(residents->parameter_bytes, bytes);
        residents->largest_parameter_bytes = ms__max_u64(residents->largest_parameter_bytes, bytes);
    }
    if (trainable) {
        residents->trainable_bytes = ms__add_sat(residents->trainable_bytes, bytes);
        trace->largest_trainable_bytes = ms__max_u64(trace->largest_trainable_bytes, bytes);
        trace->optimizer_elements = ms__add_sat(trace->optimizer_elements, bytes / item_bytes);
    }
}

int ms_trace_resident(ms_trace *trace, uint64_t key, uint64_t bytes, uint32_t item_bytes, ms_resident_role role,
                      bool trainable, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (item_bytes == 0) {
        return ms_fail(err, MS_EINVAL, "trace: elements of no bytes");
    }
    uint64_t known = 0;
    bool is_new = !ms__keymap_get(&trace->keys, key, &known);
    bool is_parameter = role == MS_RESIDENT_PARAMETER;
    bool was_trainable = !is_new && (known & RESIDENT_TRAINABLE) != 0;
    if (!is_new && (known & KEY_KIND) != KEY_RESIDENT) {
        return MS_OK; /* also of the batch, reported first */
    }
    uint64_t value = KEY_RESIDENT | (was_trainable || (is_parameter && trainable) ? RESIDENT_TRAINABLE : 0);
    if (role == MS_RESIDENT_BATCH && is_new) {
        uint32_t index = 0;
        rc = push_life(trace, bytes, &index, err);
        if (rc != MS_OK) {
            return rc;
        }
        trace->lives.items[index].role = MS_STORAGE_BATCH;
        value = KEY_LIFE | index;
    }
    rc = ms__trace_put_key(trace, key, value, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (is_parameter) {
        count_parameter(trace, bytes, item_bytes, trainable && !was_trainable, is_new);
    } else if (is_new) {
        uint64_t *total = role == MS_RESIDENT_BATCH ? &trace->residents.batch_bytes : &trace->residents.buffer_bytes;
        *total = ms__add_sat(*total, bytes);
    }
    return MS_OK;
}

static void add_live(ms_trace *trace, uint64_t bytes)
{
    trace->live_bytes = ms__add_sat(trace->live_bytes, bytes);
    trace->peak_bytes = ms__max_u64(trace->peak_bytes, trace->live_bytes);
}

int ms_trace_born(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    uint64_t known;
    if (ms__keymap_get(&trace->keys, key, &known)) {
        bool resident = (known & KEY_KIND) == KEY_RESIDENT ||
                        ((known & KEY_KIND) == KEY_LIFE && trace->lives.items[known].role == MS_STORAGE_BATCH);
        return resident ? MS_OK
                        : ms_fail(err, MS_EINVAL, "trace: storage %#llx was born twice", (unsigned long long)key);
    }
    uint32_t index = 0;
    if (bytes == 0) {
        return MS_OK;
    }
    rc = push_life(trace, bytes, &index, err);
    if (rc == MS_OK) {
        rc = ms__trace_put_key(trace, key, KEY_LIFE | index, err);
    }
    if (rc == MS_OK) {
        trace->lives.items[index].in_step = trace->phase <= MS_TRACE_BACKWARD;
        rc = ms__trace_record(trace, (ms_event){.kind = MS_EVENT_ALLOC, .storage = index}, err);
    }
    if (rc == MS_OK) {
        uint64_t peak_before = trace->peak_bytes;
        add_live(trace, bytes);
        ms__trace_sum_born(trace, key, index, peak_before);
    }
    return rc;
}

void ms__trace_release_life(ms_trace *trace, uint32_t index)
{
    const trace_life *life = &trace->lives.items[index];
    if (life->freed && life->holds == 0) {
        trace->live_bytes = ms__sub_sat(trace->live_bytes, life->bytes);
    }
}

int ms_trace_died(ms_trace *trace, uint64_t key, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    uint64_t value;
    if (rc != MS_OK || !ms__keymap_get(&trace->keys, key, &value)) {
        return rc;
    }
    uint32_t index = (uint32_t)(value & KEY_INDEX);
    if ((value & KEY_KIND) == KEY_COPY) {
        trace_save *save = &trace->saves.items[index];
        ms__keymap_remove(&trace->keys, key);
        save->copies--;
        return save->copies == 0 && save->tokens == 0 ? ms__trace_drop_save(trace, index, err) : MS_OK;
    }
    /* The address of a replaced resident may serve another storage. */
    ms__keymap_remove(&trace->keys, key);
    if ((value & KEY_KIND) != KEY_LIFE || trace->lives.items[index].role == MS_STORAGE_BATCH) {
        return MS_OK;
    }
    bool replaced = false;
    rc = ms__trace_sum_replaces(trace, index, &replaced, err);
    if (rc != MS_OK || replaced) {
        return rc;
    }
    rc = ms__trace_record(trace, (ms_event){.kind = MS_EVENT_FREE, .storage = index}, err);
    trace->lives.items[index].freed = true;
    ms__trace_release_life(trace, index);
    return rc;
}

int ms_trace_untouched(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    uint32_t life;
    if (rc == MS_OK && ms__trace_find_life(trace, key, &life)) {
        trace->lives.items[life].untouched_bytes = ms__min_u64(bytes, trace->lives.items[life].bytes);
    }
    return rc;
}

static int add_old_gradient(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err)
{
    uint32_t index = 0;
    uint32_t *slot = MS__ARRAY_PUSH(&trace->old_gradients);
    if (slot == NULL) {
        return ms__trace_no_memory(err);
    }
    int rc = push_life(trace, bytes, &index, err);
    if (rc == MS_OK) {
        *slot = index;
        trace->lives.items[index].role = MS_STORAGE_GRADIENT;
        trace->lives.items[index].in_step = true;
        rc = ms__trace_put_key(trace, key, KEY_LIFE | index, err);
    }
    return rc;
}

int ms_trace_role(ms_trace *trace, uint64_t key, uint64_t bytes, ms_storage_role role, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (role != MS_STORAGE_OUTPUT && role != MS_STORAGE_GRADIENT) {
        return ms_fail(err, MS_EINVAL, "trace: role %d is not one to be given", (int)role);
    }
    uint64_t value;
    if (!ms__keymap_get(&trace->keys, key, &value)) {
        bool old = role == MS_STORAGE_GRADIENT && bytes > 0 && trace->phase >= MS_TRACE_BACKWARD;
        return old ? add_old_gradient(trace, key, bytes, err) : MS_OK;
    }
    if ((value & KEY_KIND) == KEY_RESIDENT) {
        return MS_OK;
    }
    uint32_t index = (uint32_t)(value & KEY_INDEX);
    trace_life *life = (value & KEY_KIND) == KEY_COPY ? &trace->lives.items[trace->saves.items[index].life]
                                                      : &trace->lives.items[index];
    /* A gradient that was freed as an activation and survives in a copy keeps its role. */
    bool fits = life->role != MS_STORAGE_BATCH && !(role == MS_STORAGE_GRADIENT && life->freed);
    if (fits) {
        life->role = role;
    }
    return MS_OK;
}

int ms_trace_final(ms_trace *trace, uint64_t key, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    uint32_t life;
    if (rc != MS_OK || trace->phase != MS_TRACE_BACKWARD || !ms__trace_find_life(trace, key, &life)) {
        return rc;
    }
    rc = ms__trace_record(trace, (ms_event){.kind = MS_EVENT_FINAL, .storage = life}, err);
    if (rc != MS_OK) {
        return rc;
    }
    /* One storage may hold gradients of several parameters: the last one counts. */
    trace_life *gradient = &trace->lives.items[life];
    if (gradient->is_final) {
        trace->nodes.items[gradient->final_node].backward.items[gradient->final_index].kind = TRACE_VOID_EVENT;
    }
    gradient->is_final = true;
    gradient->final_node = trace->backward_node;
    gradient->final_index = trace->nodes.items[trace->backward_node].backward.count - 1;
    return MS_OK;
}

bool ms__trace_find_life(const ms_trace *trace, uint64_t key, uint32_t *life)
{
    uint64_t value;
    if (!ms__keymap_get(&trace->keys, key, &value) || (value & KEY_KIND) != KEY_LIFE) {
        return false;
    }
    *life = (uint32_t)value;
    return true;
}

bool ms__trace_is_resident(const ms_trace *trace, uint64_t key, bool *written)
{
    uint64_t value = 0;
    bool known = ms__keymap_get(&trace->keys, key, &value) && (value & KEY_KIND) == KEY_RESIDENT;
    *written = known && (value & RESIDENT_WRITTEN) != 0;
    return known;
}

int ms__trace_resident_written(ms_trace *trace, uint64_t key, ms_error *err)
{
    uint64_t value = 0;
    ms__keymap_get(&trace->keys, key, &value);
    return ms__trace_put_key(trace, key, value | RESIDENT_WRITTEN, err);
}

/* ---- questions --------------------------------------------------------------- */

uint64_t ms_trace_live_bytes(const ms_trace *trace)
{
    return trace->live_bytes;
}

uint64_t ms_trace_peak_bytes(const ms_trace *trace)
{
    return trace->peak_bytes;
}
