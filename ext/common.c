/* Errors and conversions shared by the files of the extension; see common.h. */
#include "common.h"

/* ---- errors ------------------------------------------------------------- */

/* The exception class of an error code, a new reference. Looked up on each call, so that importing the extension
 * imports no Python module. */
static PyObject *exception_class(int code)
{
    PyObject *module = PyImport_ImportModule("memscale.errors");
    if (module == NULL) {
        return NULL;
    }
    PyObject *class = PyObject_GetAttrString(module, ms_error_exception(code));
    Py_DECREF(module);
    return class;
}

PyObject *ms_ext_raise(const ms_error *err)
{
    PyObject *args = NULL;
    PyObject *keywords = NULL;
    PyObject *exception = NULL;
    PyObject *class = exception_class(err->code);
    PyObject *text = PyUnicode_DecodeUTF8(err->text, (Py_ssize_t)strlen(err->text), "replace");
    if (class == NULL || text == NULL) {
        goto cleanup;
    }
    args = PyTuple_Pack(1, text);
    keywords = Py_BuildValue("{s:i,s:i,s:K}", "code", err->code, "system_errno", err->system_errno, "hint_bytes",
                             (unsigned long long)err->hint_bytes);
    if (args == NULL || keywords == NULL) {
        goto cleanup;
    }
    exception = PyObject_Call(class, args, keywords);
    if (exception != NULL) {
        PyErr_SetObject(class, exception);
    }
cleanup:
    Py_XDECREF(exception);
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    Py_XDECREF(text);
    Py_XDECREF(class);
    return NULL;
}

int ms_ext_check(int code, const ms_error *err)
{
    if (code == MS_OK) {
        return 0;
    }
    ms_ext_raise(err);
    return -1;
}

PyObject *ms_ext_none_or_raise(int code, const ms_error *err)
{
    if (ms_ext_check(code, err) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- text --------------------------------------------------------------- */

PyObject *ms_ext_take_text(char *text)
{
    if (text == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    ms_free(text);
    return result;
}

PyObject *ms_ext_text_or_none(const char *text)
{
    if (text == NULL) {
        Py_RETURN_NONE;
    }
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Raises "<what> must be <expected>, not <type>". */
static void raise_type(PyObject *object, const char *what, const char *expected)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    if (type != NULL) {
        PyErr_Format(PyExc_TypeError, "%s must be %s, not %S", what, expected, type);
        Py_DECREF(type);
    }
}

const char *ms_ext_utf8(PyObject *object, const char *what, Py_ssize_t *length)
{
    if (!PyUnicode_Check(object)) {
        raise_type(object, what, "a str");
        return NULL;
    }
    Py_ssize_t bytes;
    const char *text = PyUnicode_AsUTF8AndSize(object, &bytes);
    if (text == NULL) {
        return NULL;
    }
    if (length != NULL) {
        *length = bytes;
    } else if (strlen(text) != (size_t)bytes) {
        PyErr_Format(PyExc_ValueError, "%s must not hold a null character", what);
        return NULL;
    }
    return text;
}

int ms_ext_utf8_or_none(PyObject *object, const char *what, const char **out)
{
    if (object == Py_None) {
        *out = NULL;
        return 0;
    }
    const char *text = ms_ext_utf8(object, what, NULL);
    if (text == NULL) {
        return -1;
    }
    *out = text;
    return 0;
}

/* ---- numbers ------------------------------------------------------------ */

int ms_ext_u64(PyObject *object, const char *what, uint64_t *out)
{
    if (!PyLong_Check(object)) {
        raise_type(object, what, "an int");
        return -1;
    }
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_OverflowError, "%s must lie between 0 and 2**64 - 1, not %S", what, object);
        return -1;
    }
    *out = value;
    return 0;
}

int ms_ext_u32(PyObject *object, const char *what, uint32_t *out)
{
    uint64_t wide;
    if (ms_ext_u64(object, what, &wide) != 0) {
        return -1;
    }
    if (wide > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s must lie between 0 and 2**32 - 1, not %S", what, object);
        return -1;
    }
    *out = (uint32_t)wide;
    return 0;
}

int ms_ext_arity(const char *function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most)
{
    if (count >= least && count <= most) {
        return 0;
    }
    if (least == most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, least, count);
    } else {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments, not %zd", function, least, most, count);
    }
    return -1;
}

int ms_ext_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    PyObject *made = PyType_FromSpec(spec);
    if (made == NULL || PyModule_AddObjectRef(module, strrchr(spec->name, '.') + 1, made) != 0) {
        Py_XDECREF(made);
        return -1;
    }
    if (type != NULL) {
        *type = (PyTypeObject *)made;
    } else {
        Py_DECREF(made);
    }
    return 0;
}
