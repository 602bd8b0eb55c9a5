/*
 * This process in a hardware description, for session/: what it holds before training, and by how much that grows.
 */
#include "common.h"
#include "memscale/hardware.h"
#include "memscale/hostmem.h"
#include "rooms.h"

/* The description to change; NULL with an exception. */
static ms_hardware *open_description(const char *json)
{
    ms_error err;
    ms_hardware *hardware = ms_malloc(sizeof *hardware);
    if (hardware == NULL) {
        return (ms_hardware *)PyErr_NoMemory();
    }
    if (ms_ext_check(ms_hardware_parse(json, hardware, &err), &err) != 0) {
        ms_free(hardware);
        return NULL;
    }
    return hardware;
}

/* The description's text if `rc` is MS_OK, else NULL with the exception of `err`. Frees the description. */
static PyObject *close_description(ms_hardware *hardware, int rc, const ms_error *err)
{
    PyObject *text = rc == MS_OK ? ms_ext_take_text(ms_hardware_to_json(hardware)) : ms_ext_raise(err);
    ms_free(hardware);
    return text;
}

static PyObject *hardware_set_process(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json, *name, *label;
    int index;
    unsigned long long allocated_bytes, total_bytes, available_bytes, state_bytes;
    ms_error err;
    ms_device_kind kind;
    if (!PyArg_ParseTuple(args, "ssisKKKK:hardware_set_process", &json, &name, &index, &label, &total_bytes,
                          &available_bytes, &allocated_bytes, &state_bytes) ||
        ms_ext_check(ms_device_kind_named(name, &kind, &err), &err) != 0) {
        return NULL;
    }
    ms_hardware *hardware = open_description(json);
    if (hardware == NULL) {
        return NULL;
    }
    int rc = MS_OK;
    bool is_host = ms_device_host_is_device(kind);
    if (!is_host) {
        ms_gpu_sight sight = {
            .kind = kind, .name = label, .total_bytes = total_bytes, .available_bytes = available_bytes};
        rc = ms_hardware_see_gpu(hardware, (uint32_t)index, &sight, &err);
    }
    if (rc == MS_OK) {
        rc = ms_hardware_set_process(hardware, is_host ? -1 : index, allocated_bytes, &err);
    }
    ms_process *process = &hardware->process;
    process->state_bytes = state_bytes < process->baseline_bytes ? state_bytes : process->baseline_bytes;
    return close_description(hardware, rc, &err);
}

/* Bytes of torch's blocks in the host's memory, in use and cached. */
static uint64_t host_tensor_bytes(void)
{
    ms_hostmem_stats maps;
    ms_hostmem_get_stats(&maps);
    return maps.live_bytes + maps.cached_bytes;
}

static PyObject *hardware_grow_process(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    unsigned long long expected_bytes, allocated_bytes;
    if (!PyArg_ParseTuple(args, "sKK:hardware_grow_process", &json, &expected_bytes, &allocated_bytes)) {
        return NULL;
    }
    ms_hardware *hardware = open_description(json);
    if (hardware == NULL) {
        return NULL;
    }
    ms_error err;
    uint64_t tensor_bytes = ms_hardware_host_is_device(hardware) ? host_tensor_bytes() : allocated_bytes;
    int rc = ms_hardware_grow_process(hardware, tensor_bytes, expected_bytes, &err);
    return close_description(hardware, rc, &err);
}

static PyObject *hardware_traced(PyObject *module, PyObject *text)
{
    (void)module;
    const char *json = ms_ext_utf8(text, "hardware", NULL);
    ms_hardware *hardware = json != NULL ? open_description(json) : NULL;
    if (hardware == NULL) {
        return NULL;
    }
    ms_error err;
    int rc = ms_hardware_traced(hardware, host_tensor_bytes(), &err);
    return close_description(hardware, rc, &err);
}

static PyObject *hardware_begins(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    unsigned long long counted_bytes;
    if (!PyArg_ParseTuple(args, "sK:hardware_begins", &json, &counted_bytes)) {
        return NULL;
    }
    ms_hardware *hardware = open_description(json);
    if (hardware == NULL) {
        return NULL;
    }
    ms_error err;
    int rc = ms_hardware_begins(hardware, host_tensor_bytes(), counted_bytes, &err);
    return close_description(hardware, rc, &err);
}

static PyObject *hardware_grow_by(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    unsigned long long before_bytes, after_bytes;
    if (!PyArg_ParseTuple(args, "sKK:hardware_grow_by", &json, &before_bytes, &after_bytes)) {
        return NULL;
    }
    ms_hardware *hardware = open_description(json);
    if (hardware == NULL) {
        return NULL;
    }
    ms_hardware_grow_by(hardware, before_bytes, after_bytes);
    return close_description(hardware, MS_OK, NULL);
}

static PyObject *hardware_shrink_by(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    unsigned long long bytes;
    if (!PyArg_ParseTuple(args, "sK:hardware_shrink_by", &json, &bytes)) {
        return NULL;
    }
    ms_hardware *hardware = open_description(json);
    if (hardware == NULL) {
        return NULL;
    }
    ms_hardware_shrink_by(hardware, bytes);
    return close_description(hardware, MS_OK, NULL);
}

static PyObject *memory_beside_tensors(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    uint64_t bytes;
    ms_error err;
    if (ms_ext_check(ms_process_beside_tensors(host_tensor_bytes(), &bytes, &err), &err) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "hardware_set_process", hardware_set_process, METH_VARARGS,
        "hardware, kind, index, name, total_bytes, available_bytes, allocated_bytes, state_bytes, /",
        "(str, str, int, str, int, int, int, int) -> str",
        "Adds this process's baseline on the device to the description: allocated_bytes on a GPU, the measured "
        "resident memory on the CPU; state_bytes of it are the optimizers' state. The GPU's name and bytes are those "
        "that torch reports; they are ignored for the "
        "CPU. MemScaleError if the kind is unknown."),
    MS_EXT_FUNCTION("hardware_grow_process", hardware_grow_process, METH_VARARGS,
                    "hardware, expected_bytes, allocated_bytes, /", "(str, int, int) -> str",
                    "The description with this process's present baseline and `expected_bytes` that it will also hold. "
                    "On a GPU, where `allocated_bytes` are allocated now, the baseline grows by no more than these."),
    MS_EXT_FUNCTION("hardware_traced", hardware_traced, METH_O, "hardware, /", "(str) -> str",
                    "The description with the baseline after the first trace."),
    MS_EXT_FUNCTION("hardware_grow_by", hardware_grow_by, METH_VARARGS, "hardware, before, after, /",
                    "(str, int, int) -> str",
                    "The description with the baseline grown by what memory beside tensors has grown."),
    MS_EXT_FUNCTION("hardware_begins", hardware_begins, METH_VARARGS, "hardware, counted_bytes, /", "(str, int) -> str",
                    "The description at the first forward, less what was freed since the wrap. The baseline counts "
                    "`counted_bytes` of the maps."),
    MS_EXT_FUNCTION("hardware_shrink_by", hardware_shrink_by, METH_VARARGS, "hardware, bytes, /", "(str, int) -> str",
                    "The description without these bytes in the baseline, which counts them no longer."),
    MS_EXT_FUNCTION("memory_beside_tensors", memory_beside_tensors, METH_NOARGS, "/", "() -> int",
                    "Resident bytes of this process beside its tensors."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_process(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
