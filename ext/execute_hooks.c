/*
 * Entering and leaving the root and layers: pushes and pops on the calling thread's stack of
 * saved-tensor hooks. Before a push, it pops our hooks that an exception left on the stack; it
 * never pops hooks of others. Python's module hooks call these functions, under the interpreter
 * lock. Each thread has its own stack.
 */
#include "execute_pack.h"
#include "technique_ext.h"

static uint64_t this_thread(void)
{
    return (uint64_t)PyThread_get_thread_ident();
}

/* TOP_OTHER: hooks of another execution, whose model contains this one's. Hooks for another device of the same model
 * count as ours: only those on top act, so the executions of a model take turns, and each pops what is left of the
 * others' root work. */
typedef enum top_hook { TOP_NONE, TOP_OURS, TOP_OTHER, TOP_FOREIGN, TOP_FAILED } top_hook;

static bool is_same_model(const ms_execution *one, const ms_execution *other)
{
    return one == other || (one->model != 0 && one->model == other->model);
}

/* Sets *region, borrowed, if the hooks on top belong to an execution; else NULL or unchanged. */
static top_hook look_at_top(const ms_execution *self, ms_region **region)
{
    PyObject *pack = ms_ext_top_pack();
    if (pack == NULL) {
        return TOP_FAILED;
    }
    top_hook found = TOP_NONE;
    if (pack != Py_None) {
        *region = ms_ext_region_of_hook(pack);
        found = *region == NULL ? TOP_FOREIGN : is_same_model((*region)->execution, self) ? TOP_OURS : TOP_OTHER;
    }
    Py_DECREF(pack);
    return found;
}

/* Pops our hooks from the top of this thread's stack; stops at the first that are not ours. */
static top_hook unwind(const ms_execution *self)
{
    top_hook top;
    ms_region *region = NULL;
    while ((top = look_at_top(self, &region)) == TOP_OURS) {
        ms_ext_send_waiting(region);
        ms_ext_values_settle(region, true);
        Py_CLEAR(region->caller);
        if (ms_ext_pop_hooks() != 0) {
            return TOP_FAILED;
        }
    }
    return top;
}

/* Opens the frame of a call and pushes its hooks. The region, a new reference; None if the call needs no hooks;
 * NULL with an exception. */
static PyObject *enter_frame(ms_execution *self, uint32_t layer, bool is_replayable, PyObject *caller)
{
    ms_call_facts facts = {.replayable = is_replayable};
    ms_frame *frame;
    ms_error err;
    int rc = ms_execute_enter(self->execute, this_thread(), layer, &facts, &frame, &err);
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    if (frame == NULL) {
        Py_RETURN_NONE;
    }
    ms_region *region = ms_ext_region_new(self, frame);
    if (region == NULL || ms_ext_push_hooks(region, false) != 0) {
        ms_execute_leave(self->execute, this_thread());
        Py_XDECREF((PyObject *)region);
        return NULL;
    }
    if (caller != Py_None) {
        Py_INCREF(caller);
        region->caller = caller;
    }
    return (PyObject *)region;
}

static int enter_root_work(ms_execution *self, PyObject *caller)
{
    PyObject *region = enter_frame(self, MS_ROOT_LAYER, false, caller);
    Py_XDECREF(region); /* the hooks hold the region */
    return region != NULL ? 0 : -1;
}

/* Why no hooks can be pushed on this thread; unwind() gave `top`. A new str; None if they can; NULL with an
 * exception. */
static PyObject *obstacle(top_hook top)
{
    int is_enabled = top == TOP_FAILED ? -1 : ms_ext_ask(ms_ext_torch()->hooks_enabled, NULL);
    if (is_enabled < 0) {
        return NULL;
    }
    if (is_enabled == 0) {
        return PyUnicode_FromString("disabled");
    }
    if (top == TOP_FOREIGN || top == TOP_OTHER) {
        return PyUnicode_FromString(top == TOP_FOREIGN ? "foreign" : "wrapped");
    }
    Py_RETURN_NONE;
}

PyObject *ms_ext_hooks_in_the_way(PyObject *self, PyObject *args)
{
    (void)args;
    return obstacle(unwind(ms_ext_execution_of(self)));
}

PyObject *ms_ext_enter_root(PyObject *object, PyObject *caller)
{
    ms_execution *self = ms_ext_execution_of(object);
    bool stale;
    ms_error err;
    if (ms_ext_check(ms_execute_enter_root(self->execute, this_thread(), &stale, &err), &err) != 0) {
        return NULL;
    }
    self->backward_told = false;
    if (enter_root_work(self, caller) != 0) {
        ms_execute_leave_root(self->execute, this_thread(), true);
        return NULL;
    }
    return PyBool_FromLong(stale);
}

PyObject *ms_ext_leave_root(PyObject *object, PyObject *failed)
{
    ms_execution *self = ms_ext_execution_of(object);
    int has_failed = PyObject_IsTrue(failed);
    top_hook top = unwind(self);
    ms_execute_leave_root(self->execute, this_thread(), has_failed != 0);
    if (has_failed < 0 || top == TOP_FAILED) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *ms_ext_in_root(PyObject *self, PyObject *args)
{
    (void)args;
    return PyBool_FromLong(ms_execute_in_root(ms_ext_execution_of(self)->execute, this_thread()));
}

static int layer_number(PyObject *number, uint32_t *layer)
{
    return ms_ext_u32(number, "layer", layer);
}

PyObject *ms_ext_peek(PyObject *self, PyObject *number)
{
    uint32_t layer;
    if (layer_number(number, &layer) != 0) {
        return NULL;
    }
    return ms_ext_technique(ms_execute_peek(ms_ext_execution_of(self)->execute, this_thread(), layer));
}

PyObject *ms_ext_enter(PyObject *object, PyObject *args)
{
    ms_execution *self = ms_ext_execution_of(object);
    unsigned int layer;
    int is_replayable;
    PyObject *caller;
    if (!PyArg_ParseTuple(args, "IpO:enter", &layer, &is_replayable, &caller)) {
        return NULL;
    }
    PyObject *why_not = obstacle(unwind(self));
    if (why_not != Py_None) {
        return why_not;
    }
    Py_DECREF(why_not);
    return enter_frame(self, layer, is_replayable, caller);
}

PyObject *ms_ext_leave(PyObject *object, PyObject *caller)
{
    ms_execution *self = ms_ext_execution_of(object);
    PyObject *why_not = obstacle(unwind(self));
    if (why_not == NULL) {
        return NULL;
    }
    bool can_push = why_not == Py_None;
    Py_DECREF(why_not);
    if (!can_push) {
        Py_RETURN_NONE; /* the layer has no frame; the open one belongs to a call around it */
    }
    ms_execute_leave(self->execute, this_thread());
    if (ms_execute_in_root(self->execute, this_thread()) && enter_root_work(self, caller) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
