/*
 * Memory of CPU tensors for Python: takes and restores the allocator's slots, sets the ceiling,
 * reports exact live and peak bytes. Used by the session of a wrap and at the executor's step
 * boundaries. Decides nothing.
 */
#include "memscale/hostmem.h"
#include "common.h"
#include "rooms.h"

static PyObject *hostmem_install(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    static char *names[] = {(char *)"library", NULL};
    PyObject *given = Py_None;
    const char *library;
    ms_hostmem_means means = MS_HOSTMEM_NONE;
    ms_error err;
    int rc;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:hostmem_install", names, &given) ||
        ms_ext_utf8_or_none(given, "library", &library) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_hostmem_install(library, &means, &err));
    return ms_ext_check(rc, &err) == 0 ? PyUnicode_FromString(ms_hostmem_means_name(means)) : NULL;
}

static PyObject *hostmem_uninstall(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    MS_EXT_UNLOCKED(ms_hostmem_uninstall());
    Py_RETURN_NONE;
}

static PyObject *hostmem_stats(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_hostmem_stats stats;
    ms_hostmem_get_stats(&stats);
    return Py_BuildValue(
        "{s:s,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "means", ms_hostmem_means_name(stats.means), "live_bytes",
        (unsigned long long)stats.live_bytes, "peak_live_bytes", (unsigned long long)stats.peak_live_bytes,
        "cached_bytes", (unsigned long long)stats.cached_bytes, "peak_held_bytes",
        (unsigned long long)stats.peak_held_bytes, "live_blocks", (unsigned long long)stats.live_blocks, "mapped_count",
        (unsigned long long)stats.mapped_count, "reused_count", (unsigned long long)stats.reused_count);
}

static PyObject *hostmem_set_ceiling(PyObject *module, PyObject *given)
{
    (void)module;
    uint64_t ceiling_bytes;
    if (ms_ext_u64(given, "ceiling_bytes", &ceiling_bytes) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_hostmem_set_ceiling(ceiling_bytes));
    Py_RETURN_NONE;
}

static PyObject *hostmem_ceiling(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long plan, budget, last[2], before[2];
    int smaller_inputs;
    if (!PyArg_ParseTuple(args, "KK(KK)(KK)p:hostmem_ceiling", &plan, &budget, &last[0], &last[1], &before[0],
                          &before[1], &smaller_inputs)) {
        return NULL;
    }
    ms_hostmem_beside beside = {.budget_bytes = budget,
                                .last = {.peak_bytes = last[0], .held_bytes = last[1]},
                                .before = {.peak_bytes = before[0], .held_bytes = before[1]},
                                .smaller_inputs = smaller_inputs != 0};
    return PyLong_FromUnsignedLongLong(ms_hostmem_ceiling(plan, &beside));
}

static PyObject *hostmem_trim(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    static char *names[] = {(char *)"keep", (char *)"libc", NULL};
    PyObject *given = NULL;
    uint64_t keep_bytes = 0;
    int trim_libc = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|Op:hostmem_trim", names, &given, &trim_libc) ||
        (given != NULL && ms_ext_u64(given, "keep", &keep_bytes) != 0)) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_hostmem_trim(keep_bytes, trim_libc != 0));
    Py_RETURN_NONE;
}

static PyObject *hostmem_reset_peak(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_hostmem_reset_peak();
    Py_RETURN_NONE;
}

static PyObject *hostmem_find(PyObject *module, PyObject *given)
{
    (void)module;
    uint64_t address;
    ms_hostmem_block block;
    if (ms_ext_u64(given, "address", &address) != 0) {
        return NULL;
    }
    if (address > UINTPTR_MAX || !ms_hostmem_find((const void *)(uintptr_t)address, &block)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KKK)", (unsigned long long)block.address, (unsigned long long)block.bytes,
                         (unsigned long long)block.serial);
}

static PyObject *hostmem_untouched(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long address, bytes;
    if (!PyArg_ParseTuple(args, "KK:hostmem_untouched", &address, &bytes)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(ms_hostmem_untouched((const void *)(uintptr_t)address, (size_t)bytes));
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "hostmem_install", MS_EXT_FAST(hostmem_install), METH_VARARGS | METH_KEYWORDS, "library=None",
        "(str | None) -> str",
        "Takes the allocator's slots of the loaded library (None: torch's libc10.so) for one more user. Returns the "
        "means: \"slots\", \"mallopt\" or \"none\"."),
    MS_EXT_FUNCTION("hostmem_uninstall", hostmem_uninstall, METH_NOARGS, "/", "() -> None",
                    "Removes one user; the last one restores the slots. Live blocks stay valid."),
    MS_EXT_FUNCTION(
        "hostmem_stats", hostmem_stats, METH_NOARGS, "/", "() -> dict[str, Any]",
        "Keys: means, live_bytes, peak_live_bytes, cached_bytes, peak_held_bytes, live_blocks, mapped_count, "
        "reused_count."),
    MS_EXT_FUNCTION("hostmem_set_ceiling", hostmem_set_ceiling, METH_O, "ceiling_bytes, /", "(int) -> None",
                    "Bounds live plus cached bytes; trims at once."),
    MS_EXT_FUNCTION("hostmem_ceiling", hostmem_ceiling, METH_VARARGS,
                    "plan_bytes, budget_bytes, last, before, smaller_inputs, /",
                    "(int, int, tuple[int, int], tuple[int, int], bool) -> int",
                    "The next step's ceiling, by the plan's and by what the last two steps needed beside maps. A step "
                    "is (peak bytes, peak of held bytes)."),
    MS_EXT_FUNCTION("hostmem_trim", MS_EXT_FAST(hostmem_trim), METH_VARARGS | METH_KEYWORDS, "keep=0, libc=True",
                    "(int, bool) -> None",
                    "Releases cached maps down to `keep` bytes, and glibc's free memory if `libc`."),
    MS_EXT_FUNCTION("hostmem_reset_peak", hostmem_reset_peak, METH_NOARGS, "/", "() -> None",
                    "Restarts both peaks at the current values."),
    MS_EXT_FUNCTION("hostmem_untouched", hostmem_untouched, METH_VARARGS, "address, bytes, /", "(int, int) -> int",
                    "Bytes of the range's whole pages that are not resident."),
    MS_EXT_FUNCTION("hostmem_find", hostmem_find, METH_O, "address, /", "(int) -> tuple[int, int, int] | None",
                    "Start, bytes in whole pages and serial of the live block that holds the address."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_hostmem(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
