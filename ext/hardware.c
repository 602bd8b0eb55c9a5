/*
 * The machine for Python: the hardware description as JSON, the check of a directory for the disk
 * tier, and this process's resident memory. Used by the profiler and by wrap().
 */
#include "memscale/hardware.h"
#include "base/json.h"
#include "base/os/procfs.h"
#include "common.h"
#include "device/device.h"
#include "rooms.h"

static PyObject *hardware_probe(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    static char *names[] = {(char *)"disk_dir",   (char *)"cache_dir", (char *)"no_cache",
                            (char *)"no_measure", (char *)"no_gpus",   NULL};
    PyObject *disk_dir = Py_None;
    PyObject *cache_dir = Py_None;
    int no_cache = 0;
    int no_measure = 0;
    int no_gpus = 0;
    ms_hardware_options options = {0};
    ms_error err;
    int rc;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OOppp:hardware_probe", names, &disk_dir, &cache_dir, &no_cache,
                                     &no_measure, &no_gpus) ||
        ms_ext_utf8_or_none(disk_dir, "disk_dir", &options.disk_dir) != 0 ||
        ms_ext_utf8_or_none(cache_dir, "cache_dir", &options.cache_dir) != 0) {
        return NULL;
    }
    options.no_cache = no_cache != 0;
    options.no_measure = no_measure != 0;
    options.no_gpus = no_gpus != 0;
    ms_hardware *hardware = ms_calloc(1, sizeof *hardware);
    if (hardware == NULL) {
        return PyErr_NoMemory();
    }
    MS_EXT_UNLOCKED(rc = ms_hardware_probe(&options, hardware, &err));
    PyObject *text = NULL;
    if (ms_ext_check(rc, &err) == 0) {
        text = ms_ext_take_text(ms_hardware_to_json(hardware));
    }
    ms_free(hardware);
    return text;
}

static PyObject *hardware_check(PyObject *module, PyObject *given)
{
    (void)module;
    ms_error err;
    PyObject *text = NULL;
    const char *json = ms_ext_utf8(given, "hardware", NULL);
    if (json == NULL) {
        return NULL;
    }
    ms_hardware *hardware = ms_calloc(1, sizeof *hardware);
    if (hardware == NULL) {
        return PyErr_NoMemory();
    }
    if (ms_ext_check(ms_hardware_parse(json, hardware, &err), &err) == 0) {
        text = ms_ext_take_text(ms_hardware_to_json(hardware));
    }
    ms_free(hardware);
    return text;
}

static PyObject *disk_text(const ms_disk *disk)
{
    ms__json_writer writer = {0};
    ms_error err;
    char *text = NULL;
    json_t *root = ms__json_new(&writer);
    ms__json_put_string(&writer, root, "dir", disk->dir);
    ms__json_put_string(&writer, root, "filesystem", disk->filesystem);
    ms__json_put_bool(&writer, root, "is_memory", disk->is_memory);
    ms__json_put_bool(&writer, root, "direct_io", disk->direct_io);
    ms__json_put_u64(&writer, root, "free_bytes", disk->free_bytes);
    ms__json_put_string(&writer, root, "refusal", disk->refusal);
    if (ms_ext_check(ms__json_finish(&writer, root, "disk", &text, &err), &err) != 0) {
        return NULL;
    }
    return ms_ext_take_text(text);
}

static PyObject *disk_probe(PyObject *module, PyObject *given)
{
    (void)module;
    ms_disk disk;
    ms_error err;
    int rc;
    const char *dir = ms_ext_utf8(given, "dir", NULL);
    if (dir == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_disk_probe(dir, &disk, &err));
    return ms_ext_check(rc, &err) == 0 ? disk_text(&disk) : NULL;
}

static PyObject *process_memory(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms__resident resident;
    ms_error err;
    if (ms_ext_check(ms__resident_read(&resident, &err), &err) != 0) {
        return NULL;
    }
    return Py_BuildValue("{s:K,s:K}", "rss_bytes", (unsigned long long)resident.now_bytes, "peak_rss_bytes",
                         (unsigned long long)resident.peak_bytes);
}

static PyObject *reset_peak_rss(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_error err;
    return ms_ext_none_or_raise(ms__resident_reset_peak(&err), &err);
}

/* One row of device_kinds(). */
static PyObject *kind_row(const ms__device_kind *kind)
{
    return Py_BuildValue("{s:s,s:s,s:s,s:O,s:s}", "name", kind->name, "label", kind->label, "api", kind->api,
                         "host_is_device", kind->host_is_device ? Py_True : Py_False, "torch_module",
                         kind->torch_module);
}

static PyObject *device_kinds(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PyObject *rows = PyTuple_New(MS_DEVICE_KIND_COUNT);
    for (Py_ssize_t i = 0; rows != NULL && i < MS_DEVICE_KIND_COUNT; i++) {
        PyObject *row = kind_row(ms__device_kinds[i]);
        if (row == NULL || PyTuple_SetItem(rows, i, row) != 0) { /* takes the reference, always */
            Py_CLEAR(rows);
        }
    }
    return rows;
}

static PyObject *device_check(PyObject *module, PyObject *given)
{
    (void)module;
    ms_device_kind kind;
    ms_error err;
    const char *name = ms_ext_utf8(given, "name", NULL);
    return name == NULL ? NULL : ms_ext_none_or_raise(ms_device_kind_named(name, &kind, &err), &err);
}

/* ---- rates of GPUs ---------------------------------------------------------- */

static PyObject *gpu_trials(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PyObject *list = PyList_New(0);
    const ms_gpu_trial *trial;
    for (size_t i = 0; list != NULL && (trial = ms_gpu_trial_at(i)) != NULL; i++) {
        PyObject *row = Py_BuildValue("(ssO)", trial->work, trial->dtype, trial->is_pinned ? Py_True : Py_False);
        if (row == NULL || PyList_Append(list, row) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *gpu_trial_next(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long trial, room_bytes, size, ns;
    unsigned repeats;
    uint64_t rate;
    if (!PyArg_ParseTuple(args, "KKKIK:gpu_trial_next", &trial, &room_bytes, &size, &repeats, &ns)) {
        return NULL;
    }
    if (ms_gpu_trial_at(trial) == NULL) {
        PyErr_SetString(PyExc_ValueError, "gpu_trial_next: there is no such trial");
        return NULL;
    }
    ms_gpu_try next = {.size = size, .repeats = repeats, .ns = ns};
    bool goes_on = ms_gpu_trial_next(trial, room_bytes, &next, &rate);
    return Py_BuildValue("(KIK)", (unsigned long long)next.size, goes_on ? next.repeats : 0, (unsigned long long)rate);
}

static ms_hardware *parsed_hardware(const char *json)
{
    ms_error err;
    ms_hardware *hardware = ms_malloc(sizeof *hardware);
    if (hardware == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (ms_ext_check(ms_hardware_parse(json, hardware, &err), &err) != 0) {
        ms_free(hardware);
        return NULL;
    }
    return hardware;
}

static PyObject *hardware_load_gpu_rates(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json, *key;
    unsigned device;
    if (!PyArg_ParseTuple(args, "sIs:hardware_load_gpu_rates", &json, &device, &key)) {
        return NULL;
    }
    ms_hardware *hardware = parsed_hardware(json);
    if (hardware == NULL) {
        return NULL;
    }
    bool is_known = ms_hardware_load_gpu_rates(hardware, device, NULL, key);
    PyObject *text = is_known ? ms_ext_take_text(ms_hardware_to_json(hardware)) : Py_NewRef(Py_None);
    ms_free(hardware);
    return text;
}

static int read_rates(PyObject *list, uint64_t *rates, size_t most)
{
    size_t count = 0;
    while (count < most && ms_gpu_trial_at(count) != NULL) {
        PyObject *item = PySequence_GetItem(list, (Py_ssize_t)count);
        int rc = item != NULL ? ms_ext_u64(item, "rates", &rates[count]) : -1;
        Py_XDECREF(item);
        if (rc != 0) {
            return -1;
        }
        count++;
    }
    return 0;
}

static PyObject *hardware_set_gpu_rates(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json, *key;
    unsigned device;
    PyObject *list;
    uint64_t rates[16] = {0};
    if (!PyArg_ParseTuple(args, "sIsO:hardware_set_gpu_rates", &json, &device, &key, &list) ||
        read_rates(list, rates, sizeof rates / sizeof rates[0]) != 0) {
        return NULL;
    }
    ms_hardware *hardware = parsed_hardware(json);
    if (hardware == NULL) {
        return NULL;
    }
    ms_hardware_set_gpu_rates(hardware, device, NULL, key, rates);
    PyObject *text = ms_ext_take_text(ms_hardware_to_json(hardware));
    ms_free(hardware);
    return text;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("hardware_probe", MS_EXT_FAST(hardware_probe), METH_VARARGS | METH_KEYWORDS,
                    "disk_dir=None, cache_dir=None, no_cache=False, no_measure=False, no_gpus=False",
                    "(str | None, str | None, bool, bool, bool) -> str",
                    "JSON of this machine; with no_gpus no driver is asked. Raises ConfigError if disk_dir is unfit "
                    "for the disk tier."),
    MS_EXT_FUNCTION("hardware_check", hardware_check, METH_O, "json, /", "(str) -> str",
                    "The description as the library writes it. Raises MemScaleError if it is invalid."),
    MS_EXT_FUNCTION(
        "disk_probe", disk_probe, METH_O, "dir, /", "(str) -> str",
        "JSON of a directory for the disk tier, which is created if missing. Raises ConfigError if it is unfit."),
    MS_EXT_FUNCTION("device_kinds", device_kinds, METH_NOARGS, "/", "() -> tuple[dict[str, Any], ...]",
                    "The name, label, api, host_is_device and torch_module of each kind of device, the host's first."),
    MS_EXT_FUNCTION("device_check", device_check, METH_O, "name, /", "(str) -> None",
                    "Raises MemScaleError if the kind of device is unknown."),
    MS_EXT_FUNCTION("process_memory", process_memory, METH_NOARGS, "/", "() -> dict[str, int]",
                    "Keys: rss_bytes and peak_rss_bytes, of this process."),
    MS_EXT_FUNCTION("reset_peak_rss", reset_peak_rss, METH_NOARGS, "/", "() -> None",
                    "Resets peak_rss_bytes to rss_bytes. Raises MemScaleError if the kernel does not allow it."),
    MS_EXT_FUNCTION("gpu_trials", gpu_trials, METH_NOARGS, "/", "() -> list[tuple[str, str, bool]]",
                    "Work, dtype and whether host memory is pinned, of each trial that finds a rate of a GPU."),
    MS_EXT_FUNCTION("gpu_trial_next", gpu_trial_next, METH_VARARGS, "trial, room_bytes, size, repeats, ns, /",
                    "(int, int, int, int, int) -> tuple[int, int, int]",
                    "Size and repeats of the next try after one that took `ns`; all three are 0 at first. No repeats: "
                    "the trial has ended, and the third number is its rate, or 0."),
    MS_EXT_FUNCTION("hardware_load_gpu_rates", MS_EXT_FAST(hardware_load_gpu_rates), METH_VARARGS,
                    "hardware, gpu, key, /", "(str, int, str) -> str | None",
                    "The description with the cached rates of a GPU; None if the cache has none."),
    MS_EXT_FUNCTION("hardware_set_gpu_rates", MS_EXT_FAST(hardware_set_gpu_rates), METH_VARARGS,
                    "hardware, gpu, key, rates, /", "(str, int, str, list[int]) -> str",
                    "The description with measured rates, one for each trial, which the cache keeps if none is 0."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_hardware(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
