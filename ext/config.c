/*
 * The configuration for Python: `Config` sends its JSON here and gets it back checked and complete.
 * Used by memscale.config.
 */
#include "memscale/config.h"
#include "common.h"
#include "rooms.h"

static PyObject *config_text(const ms_config *config)
{
    return ms_ext_take_text(ms_config_to_json(config));
}

static PyObject *config_validate(PyObject *module, PyObject *text)
{
    (void)module;
    ms_config config;
    ms_error err;
    const char *json = ms_ext_utf8(text, "config", NULL);
    if (json == NULL || ms_ext_check(ms_config_parse(json, &config, &err), &err) != 0) {
        return NULL;
    }
    return config_text(&config);
}

static PyObject *config_defaults(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_config config;
    ms_config_default(&config);
    return config_text(&config);
}

/* The arguments' texts, NULL after the last; NULL with an exception. Borrowed from the tuple. */
static const char **texts_of(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    const char **texts = PyMem_Calloc((size_t)count + 1, sizeof *texts);
    if (texts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        texts[i] = ms_ext_utf8(PyTuple_GetItem(tuple, i), "arguments", NULL);
        if (texts[i] == NULL) {
            PyMem_Free(texts);
            return NULL;
        }
    }
    return texts;
}

static PyObject *config_no_argument(PyObject *module, PyObject *args)
{
    (void)module;
    const char *function, *name;
    PyObject *arguments;
    if (!PyArg_ParseTuple(args, "ssO!", &function, &name, &PyTuple_Type, &arguments)) {
        return NULL;
    }
    const char **texts = texts_of(arguments);
    if (texts == NULL) {
        return NULL;
    }
    PyObject *text = ms_ext_take_text(ms_config_no_argument(function, name, texts));
    PyMem_Free(texts);
    return text;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("config_validate", config_validate, METH_O, "json, /", "(str) -> str",
                    "The config with every field written out. Raises ConfigError."),
    MS_EXT_FUNCTION("config_defaults", config_defaults, METH_NOARGS, "/", "() -> str", "JSON of the default config."),
    MS_EXT_FUNCTION("config_no_argument", config_no_argument, METH_VARARGS, "function, name, arguments, /",
                    "(str, str, tuple[str, ...]) -> str",
                    "The message for an argument that a function does not have; `arguments` are its own."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_config(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
