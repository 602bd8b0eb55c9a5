/*
 * Handles of tensors that a replay of their layer recomputes. Each handle names a slot of the layer's frame, and a
 * replay fills the slots.
 */
#include "execute_slot.h"

#include "execute_values.h"
#include "undo.h"

PyObject *ms_ext_replay_stop;

/* The memory in the slot; replays the layer if the slot is empty. */
static ms_memory *take_slot(ms_saved *saved)
{
    ms_execution *execution = saved->execution;
    ms_frame *frame = saved->region->frame;
    ms_memory *memory = ms_frame_take(execution->execute, frame, saved->slot);
    if (memory != NULL) {
        return memory;
    }
    PyObject *done = ms_ext_guarded_one(execution->replay, (PyObject *)saved->region);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    memory = ms_frame_take(execution->execute, frame, saved->slot);
    if (memory == NULL) {
        ms_error err;
        ms_fail(&err, MS_EREPLAY, "layer %s: its replay did not give a saved tensor back",
                ms_execute_layer_name(execution->execute, ms_frame_layer(frame)));
        ms_ext_raise(&err);
    }
    return memory;
}

static PyObject *unpack_slot(ms_saved *saved)
{
    ms_frame *frame = saved->region->frame;
    PyObject *tensor = NULL;
    ms_frame_pin(frame);
    ms_memory *memory = take_slot(saved);
    if (memory != NULL) {
        tensor = memory->strong;
        Py_INCREF(tensor);
        if (ms_ext_check_version(tensor, memory->version) != 0) {
            Py_CLEAR(tensor);
        }
    }
    ms_frame_unpin(saved->execution->execute, frame);
    return tensor;
}

static void end_slot(ms_saved *saved)
{
    if (saved->region != NULL) {
        ms_frame_drop(saved->execution->execute, saved->region->frame, saved->slot);
    }
}

static const ms_saved_kind slot_kind = {.unpack = unpack_slot, .end = end_slot};

PyObject *ms_ext_save_slot(ms_region *region, PyObject *tensor)
{
    ms_execution *execution = region->execution;
    int64_t sizes[MS_RECORD_RANK_MAX];
    ms_record record;
    ms_error err;
    uint32_t slot;
    if (!ms_ext_region_is_running(region)) {
        ms_execute_kept(execution->execute);
        return ms_ext_keep(execution, tensor);
    }
    ms_ext_values_settle(region, false);
    bool is_kept = ms_ext_stays(execution, tensor);
    if (ms_ext_record_of(tensor, sizes, &record) != 0 ||
        ms_ext_check(ms_frame_save(execution->execute, region->frame, &record, is_kept, &slot, &err), &err)) {
        return NULL;
    }
    if (is_kept) {
        return ms_ext_keep(execution, tensor);
    }
    ms_saved *saved = ms_ext_saved_new(&slot_kind, execution);
    if (saved == NULL) {
        ms_frame_drop(execution->execute, region->frame, slot);
        return NULL;
    }
    saved->slot = slot;
    Py_INCREF((PyObject *)region);
    saved->region = region;
    if (ms_ext_values_saved(region, slot, tensor) != 0) {
        Py_CLEAR(saved);
    }
    return (PyObject *)saved;
}

/* ---- the replay ------------------------------------------------------------------ */

/* Puts the tensor of a replay into its slot; -1 with an exception. */
static int slot_put(ms_region *region, uint32_t slot, PyObject *tensor, uint64_t version)
{
    ms_memory *memory = ms_ext_memory_of_tensor(tensor, version);
    if (memory == NULL) {
        return -1;
    }
    ms_frame_put(region->execution->execute, region->frame, slot, memory);
    return 0;
}

static PyObject *stop_replay(ms_region *region)
{
    region->is_stopped = true;
    PyErr_SetString(ms_ext_replay_stop, "everything that backward needs has been recomputed");
    return NULL;
}

PyObject *ms_ext_capture_slot(ms_region *region, PyObject *tensor)
{
    int64_t sizes[MS_RECORD_RANK_MAX];
    ms_record record;
    ms_error err;
    ms_capture what;
    uint32_t slot;
    if (ms_ext_values_settle(region, false) != 0) {
        return NULL;
    }
    if (region->last_operator != 0 && region->last_operator != ms_ext_operator_now() + 1) {
        return stop_replay(region);
    }
    if (ms_ext_record_of(tensor, sizes, &record) != 0 ||
        ms_ext_check(ms_frame_replay_save(region->execution->execute, region->frame, &record, &slot, &what, &err),
                     &err) ||
        ms_ext_values_saved(region, slot, tensor) != 0) {
        return NULL;
    }
    /* The replay's own graph must work too: the layer's code may differentiate inside its forward. */
    PyObject *kept = ms_ext_keep(region->execution, tensor);
    if (kept == NULL || what == MS_CAPTURE_IGNORE) {
        return kept;
    }
    ms_saved *saved = (ms_saved *)kept;
    if (what == MS_CAPTURE_LAST && ms_ext_may_be_unwritten(saved->tensor)) {
        region->last_operator = ms_ext_operator_now() + 1; /* this operator must still run: it may fill the tensor */
        what = MS_CAPTURE_PUT;
    }
    if (slot_put(region, slot, saved->tensor, saved->version) != 0) {
        Py_DECREF(kept);
        return NULL;
    }
    if (what == MS_CAPTURE_LAST) {
        Py_DECREF(kept);
        return stop_replay(region);
    }
    return kept;
}

int ms_ext_slot_init(PyObject *module)
{
    /* Not an Exception, so that `except Exception` in the layer's code lets it pass. */
    ms_ext_replay_stop = PyErr_NewExceptionWithDoc("memscale._core.ReplayStop",
                                                   "Ends a replay early: everything that backward needs exists.",
                                                   PyExc_BaseException, NULL);
    return ms_ext_replay_stop != NULL ? PyModule_AddObjectRef(module, "ReplayStop", ms_ext_replay_stop) : -1;
}
