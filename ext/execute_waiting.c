/*
 * Handles that wait for their bytes. An operator may save a tensor first and fill it afterwards; the
 * handle holds the tensor until the operator is over, and is sent then.
 */
#include "execute_waiting.h"

static void send_one(ms_region *region, ms_saved *saved, bool is_final)
{
    ms_movable what;
    PyObject *sent = NULL;
    bool is_same = ms_ext_version_or_none(saved->tensor) == saved->version;
    if (is_same && ms_ext_is_movable(region->execution, saved->tensor, &what)) {
        what.is_final = is_final;
        sent = ms_ext_offload(region, saved->tensor, &what);
        PyErr_Clear();
    }
    if (sent != NULL) {
        ms_ext_become_extent(saved, (ms_saved *)sent);
    } else {
        ms_execute_kept(region->execution->execute);
    }
}

/* The storage of a tensor and its owners without this function; identity 0 if it isn't known. */
typedef struct owned {
    uintptr_t identity;
    uint64_t owners;
    bool is_piece;
} owned;

static owned look_at(PyObject *handle)
{
    PyObject *tensor = ((ms_saved *)handle)->tensor;
    ms_movable what = {.storage = NULL};
    owned seen = {.identity = 0};
    if (ms_ext_look_behind(tensor, &what) == 0) {
        seen.is_piece = ms_ext_is_piece(tensor, &what) == 1;
        seen.owners = seen.is_piece ? ms_ext_owners_of(what.storage) - 1 : 0;
        seen.identity = what.identity;
    }
    Py_XDECREF(what.storage);
    PyErr_Clear();
    return seen;
}

/*
 * Pieces of a storage that only waiting handles own, such as the query, key and value that a compiled layer saves: nobody
 * can write to the storage any more. So it can move as a whole, once for all of them, and need not be copied.
 */
static void find_final(PyObject *const *waiting, size_t count, bool *is_final)
{
    owned seen[MS_EXT_WAITING_MAX];
    for (size_t i = 0; i < count; i++) {
        seen[i] = look_at(waiting[i]);
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t handles = 0;
        for (size_t j = 0; j < count && seen[i].is_piece; j++) {
            handles += seen[j].identity == seen[i].identity;
        }
        is_final[i] = seen[i].is_piece && seen[i].owners == handles;
    }
}

void ms_ext_send_waiting(ms_region *region)
{
    PyObject *waiting[MS_EXT_WAITING_MAX];
    bool is_final[MS_EXT_WAITING_MAX];
    size_t count = region->waiting_count;
    memcpy(waiting, region->waiting, count * sizeof *waiting);
    region->waiting_count = 0;
    find_final(waiting, count, is_final);
    for (size_t i = 0; i < count; i++) {
        if (Py_REFCNT(waiting[i]) > 1 && ms_frame_is_open(region->frame)) {
            send_one(region, (ms_saved *)waiting[i], is_final[i]);
        }
        Py_DECREF(waiting[i]);
    }
}

static void send_settled(ms_region *region)
{
    if (region->waiting_count > 0 && ms_ext_operator_now() != region->waiting_since) {
        ms_ext_send_waiting(region);
    }
}

static bool must_wait(const ms_region *region, PyObject *tensor)
{
    return region->waiting_count < MS_EXT_WAITING_MAX && ms_ext_may_be_unwritten(tensor);
}

static PyObject *save_waiting(ms_region *region, PyObject *tensor)
{
    PyObject *saved = ms_ext_keep(region->execution, tensor);
    if (saved != NULL) {
        region->waiting_since = ms_ext_operator_now();
        region->waiting[region->waiting_count++] = saved;
        Py_INCREF(saved);
    }
    return saved;
}

/* Reports a storage to the library, because the plan may name the storages that become bits. `is_dropped` is ignored:
 * only selective frames drop storages, and ms_ext_save_selective() has asked for them. */
static int tell_choice(ms_region *region, const ms_movable *what)
{
    ms_error err;
    bool is_dropped;
    return ms_ext_check(
        ms_frame_choose(region->execution->execute, region->frame, what->identity, what->bytes, &is_dropped, &err),
        &err);
}

PyObject *ms_ext_save_extent(ms_region *region, PyObject *tensor)
{
    ms_movable what;
    PyObject *saved = NULL;
    send_settled(region);
    if (ms_ext_region_is_running(region) && ms_ext_is_movable(region->execution, tensor, &what)) {
        if (tell_choice(region, &what) != 0) {
            Py_DECREF(what.storage);
            return NULL;
        }
        if (must_wait(region, tensor)) {
            Py_DECREF(what.storage);
            return save_waiting(region, tensor);
        }
        saved = ms_ext_offload(region, tensor, &what);
        if (saved == NULL && PyErr_Occurred() != NULL) {
            return NULL;
        }
    }
    if (saved != NULL) {
        return saved;
    }
    ms_execute_kept(region->execution->execute);
    return ms_ext_keep(region->execution, tensor);
}
