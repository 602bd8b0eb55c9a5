/*
 * The table of techniques for Python: `_core.TECHNIQUES`, the rows by name. The import makes the
 * rows; the executor returns the same objects (see technique_ext.h).
 */
#include "technique_ext.h"

#include "rooms.h"

static PyObject *rows[MS_TECHNIQUE_COUNT]; /* never freed, like types */

PyObject *ms_ext_technique(ms_technique technique)
{
    return Py_NewRef(rows[(unsigned)technique < MS_TECHNIQUE_COUNT ? technique : MS_TECHNIQUE_KEEP]);
}

static PyObject *row_new(PyTypeObject *type, ms_technique technique)
{
    const ms_technique_row *row = ms_technique_of(technique);
    PyObject *values[] = {PyUnicode_FromString(row->name),
                          PyBool_FromLong(row->replays),
                          PyLong_FromLong(row->set),
                          PyLong_FromLong(row->nesting),
                          PyBool_FromLong(ms_technique_is_chained(technique)),
                          PyBool_FromLong(row->moves_input)};
    PyObject *made = PyStructSequence_New(type);
    bool complete = made != NULL;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        complete = complete && values[i] != NULL;
        if (made != NULL && values[i] != NULL) {
            PyStructSequence_SetItem(made, (Py_ssize_t)i, values[i]);
        } else {
            Py_XDECREF(values[i]);
        }
    }
    if (!complete) {
        Py_CLEAR(made);
    }
    return made;
}

static PyTypeObject *row_type(void)
{
    static PyStructSequence_Field fields[] = {
        {"name", "The technique's name in documents."},
        {"replays", "The whole layer runs again in backward."},
        {"set", "The set of saved tensors that single operators recompute; 0: none."},
        {"nesting", "The depth of nested runs at which its first argument is recomputed; 0: not recomputed."},
        {"is_chained", "The previous layers recompute its first argument."},
        {"moves_input", "The layer's arguments go to a lower tier until backward."},
        {NULL, NULL},
    };
    static PyStructSequence_Desc description = {
        .name = "memscale._core.Technique",
        .doc = "A row of the table in memscale/technique.h.",
        .fields = fields,
        .n_in_sequence = 6,
    };
    return PyStructSequence_NewType(&description);
}

int ms_ext_add_technique(PyObject *module)
{
    PyTypeObject *type = row_type();
    PyObject *names = type != NULL ? PyDict_New() : NULL;
    int rc = names != NULL ? PyModule_AddObjectRef(module, "Technique", (PyObject *)type) : -1;
    for (int i = 0; rc == 0 && i < MS_TECHNIQUE_COUNT; i++) {
        rows[i] = row_new(type, (ms_technique)i);
        rc = rows[i] != NULL ? PyDict_SetItemString(names, ms_technique_name((ms_technique)i), rows[i]) : -1;
    }
    rc = rc == 0 ? PyModule_AddObjectRef(module, "TECHNIQUES", names) : -1;
    Py_XDECREF(names);
    Py_XDECREF((PyObject *)type);
    return rc;
}
