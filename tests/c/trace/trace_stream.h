/*
 * Streams of events for the tracer's tests: one short call per event, each checked, over a trace that every test
 * creates and frees.
 */
#ifndef MS_TEST_TRACE_STREAM_H
#define MS_TEST_TRACE_STREAM_H

#include "memscale/trace.h"
#include "test_common.h"

static ms_error err; /* of the last call */
static ms_trace *trace; /* of the running test */

static inline int setup(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    return ms_trace_new("Toy", "float32[2]", "static", &trace, &err);
}

static inline int teardown(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    ms_trace_free(trace);
    trace = NULL;
    return 0;
}

/* ---- the stream, one short call per event ----------------------------------- */

static inline void born(uint64_t key, uint64_t bytes)
{
    assert_ms_ok(ms_trace_born(trace, key, bytes, &err), err);
}

static inline void died(uint64_t key)
{
    assert_ms_ok(ms_trace_died(trace, key, &err), err);
}

static inline uint32_t enter(const char *name, uint32_t call)
{
    uint32_t node;
    assert_ms_ok(ms_trace_enter(trace, name, call, &node, &err), err);
    return node;
}

static inline void leave(void)
{
    assert_ms_ok(ms_trace_leave(trace, &err), err);
}

static inline void input(uint64_t key)
{
    assert_ms_ok(ms_trace_input(trace, key, NULL, &err), err);
}

static inline void phase(ms_trace_phase next)
{
    assert_ms_ok(ms_trace_set_phase(trace, next, &err), err);
}

static inline void work(uint64_t bytes)
{
    ms_operand operand = {.rank = 1, .size = {bytes / 4}, .bytes = bytes};
    assert_ms_ok(ms_trace_op(trace, "aten.relu.default", &operand, 1, NULL, 0, &err), err);
}

typedef struct token {
    uint32_t node;
    uint64_t serial;
} token;

static inline token saved(uint64_t key)
{
    token made;
    assert_ms_ok(ms_trace_saved(trace, key, &made.node, &made.serial, &err), err);
    return made;
}

static inline void unpacked(token which, uint64_t copy_key)
{
    assert_ms_ok(ms_trace_unpacked(trace, which.node, which.serial, copy_key, &err), err);
}

static inline void dropped(token which)
{
    assert_ms_ok(ms_trace_dropped(trace, which.node, which.serial, &err), err);
}

static inline void resident(uint64_t key, uint64_t bytes, ms_resident_role role, bool trainable)
{
    assert_ms_ok(ms_trace_resident(trace, key, bytes, 4, role, trainable, &err), err);
}

static inline void role(uint64_t key, uint64_t bytes, ms_storage_role what)
{
    assert_ms_ok(ms_trace_role(trace, key, bytes, what, &err), err);
}

/* ---- the graph -------------------------------------------------------------- */

static inline char *finish(void)
{
    ms_graph *graph;
    assert_ms_ok(ms_trace_finish(trace, &graph, &err), err);
    char *text = ms_graph_to_json(graph);
    ms_graph_free(graph);
    assert_non_null(text);
    return text;
}

static inline void assert_contains(const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL) {
        fail_msg("%s\nis not in\n%s", part, text != NULL ? text : "nothing");
    }
}

/* Asserts that the graph's document contains `part`. */
static inline void assert_finishes_with(const char *part)
{
    char *text = finish();
    assert_contains(text, part);
    ms_free(text);
}

#define NO_RESIDENTS \
    "\"residents\":{\"parameter_bytes\":0,\"trainable_bytes\":0,\"buffer_bytes\":0," \
    "\"batch_bytes\":0,\"largest_parameter_bytes\":0}"
#define NO_LOOP \
    "\"loop\":{\"outputs_held\":true,\"gradients_live_in_forward\":true,\"observed\":false," \
    "\"optimizer_state_bytes\":0,\"optimizer_transient_bytes\":0,\"external_loss_bytes\":0}"

#endif
