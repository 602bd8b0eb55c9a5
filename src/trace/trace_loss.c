/*
 * The tracer's marks around the model's own cross entropy and the linear layer that makes its logits: begin and end
 * of their operators in both passes, so that the planner can substitute a loss head. Called by the extension.
 */
#include "trace/trace_internal.h"

/* True if logits of this key can be marked now: outside of layers, and of the step. */
static bool can_mark(const ms_trace *trace, uint64_t key, uint32_t *life)
{
    return ms__trace_find_life(trace, key, life) && trace->lives.items[*life].role != MS_STORAGE_BATCH &&
           ms__trace_in_forward(trace) && !trace->layer_open;
}

int ms_trace_loss(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    uint32_t value;
    if (rc != MS_OK) {
        return rc;
    }
    if (!can_mark(trace, key, &value)) {
        *head = 0;
        return MS_OK;
    }
    uint32_t node = 0;
    rc = ms__trace_forward_node(trace, MS_EVENT_LOSS, &node, err);
    trace_loss *loss = rc == MS_OK ? MS__ARRAY_PUSH(&trace->losses) : NULL;
    if (loss == NULL) {
        return rc != MS_OK ? rc : ms__trace_no_memory(err);
    }
    *loss = (trace_loss){.node = node, .life = value};
    rc = ms__trace_push(&trace->nodes.items[node].forward, (ms_event){.kind = MS_EVENT_LOSS, .storage = loss->life},
                        err);
    if (rc == MS_OK) {
        *head = trace->losses.count;
    }
    return rc;
}

/* The loss with this number; *loss is NULL for 0. */
static int find_loss(const ms_trace *trace, uint64_t head, const trace_loss **loss, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK && head > trace->losses.count) {
        rc = ms_fail(err, MS_EINVAL, "trace: there is no cross entropy %llu", (unsigned long long)head);
    }
    *loss = rc == MS_OK && head > 0 ? &trace->losses.items[head - 1] : NULL;
    return rc;
}

int ms_trace_loss_end(ms_trace *trace, uint64_t head, ms_error *err)
{
    const trace_loss *loss = NULL;
    int rc = find_loss(trace, head, &loss, err);
    if (loss == NULL || !ms__trace_in_forward(trace) || loss->node != ms__trace_last_node(trace)) {
        return rc;
    }
    ms_event event = {.kind = MS_EVENT_LOSS_END, .storage = loss->life};
    return ms__trace_push(&trace->nodes.items[loss->node].forward, event, err);
}

int ms_trace_loss_backward(ms_trace *trace, uint64_t head, ms_error *err)
{
    const trace_loss *loss = NULL;
    int rc = find_loss(trace, head, &loss, err);
    if (loss == NULL || trace->phase != MS_TRACE_BACKWARD) {
        return rc;
    }
    trace->backward_node = loss->node;
    return ms__trace_record(trace, (ms_event){.kind = MS_EVENT_LOSS, .storage = loss->life}, err);
}

int ms_trace_loss_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err)
{
    const trace_loss *loss = NULL;
    int rc = find_loss(trace, head, &loss, err);
    uint64_t value;
    if (loss == NULL || trace->phase != MS_TRACE_BACKWARD || trace->backward_node != loss->node ||
        !ms__keymap_get(&trace->keys, gradient_key, &value) || (value & KEY_KIND) != KEY_LIFE) {
        return rc;
    }
    return ms__trace_record(trace, (ms_event){.kind = MS_EVENT_LOSS_END, .storage = (uint32_t)value}, err);
}

/* ---- the layer that makes the logits -------------------------------------------------- */

int ms_trace_head(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    uint32_t life, node = 0;
    if (rc != MS_OK) {
        return rc;
    }
    if (!can_mark(trace, key, &life)) {
        *head = 0;
        return MS_OK;
    }
    rc = ms__trace_forward_node(trace, MS_EVENT_HEAD, &node, err);
    trace_head *made = rc == MS_OK ? MS__ARRAY_PUSH(&trace->heads) : NULL;
    if (made == NULL) {
        return rc != MS_OK ? rc : ms__trace_no_memory(err);
    }
    trace_program *program = &trace->nodes.items[node].forward;
    *made = (trace_head){.node = node, .life = life, .index = program->count};
    rc = ms__trace_push(program, (ms_event){.kind = TRACE_VOID_EVENT, .storage = life}, err);
    if (rc == MS_OK) {
        *head = trace->heads.count;
    }
    return rc;
}

/* The head with this number; *found is NULL for 0. */
static int find_head(ms_trace *trace, uint64_t head, trace_head **found, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK && head > trace->heads.count) {
        rc = ms_fail(err, MS_EINVAL, "trace: there is no head %llu", (unsigned long long)head);
    }
    *found = rc == MS_OK && head > 0 ? &trace->heads.items[head - 1] : NULL;
    return rc;
}

int ms_trace_head_used(ms_trace *trace, uint64_t head, uint64_t loss, ms_error *err)
{
    trace_head *found = NULL;
    const trace_loss *user = NULL;
    int rc = find_head(trace, head, &found, err);
    if (rc == MS_OK) {
        rc = find_loss(trace, loss, &user, err);
    }
    if (rc == MS_OK && found != NULL && user != NULL && found->node == user->node) {
        found->used = true;
        trace->nodes.items[found->node].forward.items[found->index].kind = MS_EVENT_HEAD;
    }
    return rc;
}

int ms_trace_head_backward(ms_trace *trace, uint64_t head, ms_error *err)
{
    trace_head *found = NULL;
    int rc = find_head(trace, head, &found, err);
    if (found == NULL || !found->used || trace->phase != MS_TRACE_BACKWARD || trace->backward_node != found->node) {
        return rc;
    }
    return ms__trace_record(trace, (ms_event){.kind = MS_EVENT_HEAD, .storage = found->life}, err);
}

int ms_trace_head_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err)
{
    trace_head *found = NULL;
    uint32_t life;
    int rc = find_head(trace, head, &found, err);
    if (found == NULL || !found->used || trace->phase != MS_TRACE_BACKWARD || trace->backward_node != found->node ||
        !ms__trace_find_life(trace, gradient_key, &life)) {
        return rc;
    }
    return ms__trace_record(trace, (ms_event){.kind = MS_EVENT_HEAD_END, .storage = life}, err);
}
