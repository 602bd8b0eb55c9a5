/*
 * The tracer's account of saved tensors: the saves of each node, their requests in backward and their release. Called
 * for every tensor that autograd packs, unpacks or drops.
 */
#include "trace/trace_internal.h"

static int find_save(ms_trace *trace, uint32_t node, uint32_t life, uint32_t *index, ms_error *err)
{
    uint64_t pair = (uint64_t)node << 32 | life;
    uint64_t known;
    if (ms__keymap_get(&trace->save_of, pair, &known)) {
        *index = (uint32_t)known;
        return MS_OK;
    }
    if (trace->saves.count >= UINT32_MAX) {
        return ms_fail(err, MS_EOVERFLOW, "trace: too many saved storages");
    }
    trace_save *save = MS__ARRAY_PUSH(&trace->saves);
    if (save == NULL || ms__keymap_put(&trace->save_of, pair, trace->saves.count - 1) != MS_OK) {
        return ms__trace_no_memory(err);
    }
    save->node = node;
    save->life = life;
    *index = (uint32_t)trace->saves.count - 1;
    trace->lives.items[life].holds++;
    ms_event event = {.kind = MS_EVENT_SAVE, .storage = life};
    return ms__trace_push(&trace->nodes.items[node].forward, event, err);
}

/* The node saves a storage again that it had released: withdraws the DROP. */
static void take_back_drop(ms_trace *trace, trace_save *save)
{
    if (!save->dropped) {
        return;
    }
    trace_node *node = &trace->nodes.items[save->node];
    trace_program *program = save->drop_backward ? &node->backward : &node->forward;
    program->items[save->drop_index].kind = TRACE_VOID_EVENT;
    save->dropped = false;
    trace->lives.items[save->life].holds++;
}

int ms_trace_saved(ms_trace *trace, uint64_t key, uint32_t *node, uint64_t *serial, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (!ms__trace_in_forward(trace)) {
        *node = trace->phase == MS_TRACE_BACKWARD ? trace->backward_node : TRACE_NO_NODE;
        *serial = 0;
        return MS_OK;
    }
    uint32_t current = 0;
    rc = ms__trace_forward_node(trace, MS_EVENT_SAVE, &current, err);
    uint64_t value;
    if (rc != MS_OK) {
        return rc;
    }
    *node = current;
    *serial = 0;
    if (!ms__keymap_get(&trace->keys, key, &value) || (value & KEY_KIND) != KEY_LIFE ||
        trace->lives.items[value].role == MS_STORAGE_BATCH) {
        return MS_OK;
    }
    uint32_t index = 0;
    rc = find_save(trace, current, (uint32_t)value, &index, err);
    if (rc != MS_OK) {
        return rc;
    }
    take_back_drop(trace, &trace->saves.items[index]);
    trace->saves.items[index].tokens++;
    *serial = (uint64_t)index + 1;
    return MS_OK;
}

/* The save of a node and serial; *save is NULL for serial 0. */
static int save_of_serial(ms_trace *trace, uint32_t node, uint64_t serial, trace_save **save, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    bool known = serial == 0 || (serial <= trace->saves.count && trace->saves.items[serial - 1].node == node &&
                                 trace->saves.items[serial - 1].tokens > 0);
    if (!known || (node >= trace->nodes.count && node != TRACE_NO_NODE)) {
        return ms_fail(err, MS_EINVAL, "trace: node %u has no saved tensor with serial %llu", (unsigned)node,
                       (unsigned long long)serial);
    }
    *save = serial != 0 ? &trace->saves.items[serial - 1] : NULL;
    return MS_OK;
}

int ms_trace_unpacked(ms_trace *trace, uint32_t node, uint64_t serial, uint64_t copy_key, ms_error *err)
{
    trace_save *save = NULL;
    int rc = save_of_serial(trace, node, serial, &save, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__trace_sum_ends(trace);
    if (trace->phase == MS_TRACE_BACKWARD && node != TRACE_NO_NODE) {
        trace->backward_node = node;
    }
    if (save == NULL) {
        return MS_OK;
    }
    uint64_t known;
    if (copy_key != 0 && !ms__keymap_get(&trace->keys, copy_key, &known)) {
        rc = ms__trace_put_key(trace, copy_key, KEY_COPY | (serial - 1), err);
        if (rc != MS_OK) {
            return rc;
        }
        save->copies++;
    }
    if (save->needed || trace->phase != MS_TRACE_BACKWARD) {
        return MS_OK;
    }
    save->needed = true;
    return ms__trace_record(trace, (ms_event){.kind = MS_EVENT_NEED, .storage = save->life}, err);
}

int ms__trace_drop_save(ms_trace *trace, uint32_t index, ms_error *err)
{
    trace_save *save = &trace->saves.items[index];
    if (save->dropped || trace->phase > MS_TRACE_BACKWARD) {
        return MS_OK;
    }
    trace_node *node = &trace->nodes.items[save->node];
    save->drop_backward = trace->phase == MS_TRACE_BACKWARD || save->node != ms__trace_last_node(trace);
    trace_program *program = save->drop_backward ? &node->backward : &node->forward;
    int rc = ms__trace_push(program, (ms_event){.kind = MS_EVENT_DROP, .storage = save->life}, err);
    if (rc != MS_OK) {
        return rc;
    }
    save->dropped = true;
    save->drop_index = (uint32_t)program->count - 1;
    trace->lives.items[save->life].holds--;
    ms__trace_release_life(trace, save->life);
    return MS_OK;
}

int ms_trace_dropped(ms_trace *trace, uint32_t node, uint64_t serial, ms_error *err)
{
    trace_save *save = NULL;
    int rc = save_of_serial(trace, node, serial, &save, err);
    if (rc != MS_OK || save == NULL) {
        return rc;
    }
    save->tokens--;
    return save->tokens == 0 && save->copies == 0 ? ms__trace_drop_save(trace, (uint32_t)(serial - 1), err) : MS_OK;
}
