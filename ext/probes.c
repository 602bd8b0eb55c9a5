/* Probes of torch's settings; see probes.h. */
#include "probes.h"

#include "environment.h"

#include <dlfcn.h>

enum { ARRAY_MAX = 64 };

void *ms_ext_torch_function(const char *name)
{
    static void *library;
    if (strcmp(name, "ms_ext_float_control") == 0) {
        return (__extension__(void *) ms_ext_float_control);
    }
    if (library == NULL) {
        library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    }
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL) {
        (void)dlerror();
    }
    return found;
}

/* An array that torch returns. Of more than 16 bytes, so that the caller passes its address; torch may fill less. */
typedef struct array {
    unsigned char bytes[ARRAY_MAX];
} array;

/* A number for each content of an array of up to 16 values below 16, such as kinds of kernels. */
static uint64_t call_for_array(const ms_ext_probe *self)
{
    const array found = ((array (*)(uint64_t))self->function)(self->args[0]);
    uint64_t number = 0;
    for (int i = 0; i < self->bytes; i += 4) {
        number = (number << 4) | (found.bytes[i] & 0xf);
    }
    return number;
}

uint64_t ms_ext_call_probe(const ms_ext_probe *self)
{
    if (self->bytes > 4) {
        return call_for_array(self);
    }
    const uint64_t *a = self->args;
    uint64_t number = 0;
    switch (self->arg_count) {
    case -1:
        memcpy(&number, self->function, (size_t)self->bytes);
        break;
    case 0:
        number = ((uint64_t (*)(void))self->function)();
        break;
    case 1:
        number = ((uint64_t (*)(uint64_t))self->function)(a[0]);
        break;
    case 3:
        number = ((uint64_t (*)(uint64_t, uint64_t, uint64_t))self->function)(a[0], a[1], a[2]);
        break;
    default:
        break;
    }
    return number & ((UINT64_C(1) << (8 * self->bytes)) - 1); /* the rest of the register means nothing */
}

bool ms_ext_is_same_probe(const ms_ext_probe *a, const ms_ext_probe *b)
{
    bool is_same = a->function == b->function && a->arg_count == b->arg_count && a->bytes == b->bytes;
    for (int i = 0; is_same && i < a->arg_count; i++) {
        is_same = a->args[i] == b->args[i];
    }
    return is_same;
}

/* Python's name of one of torch's enumerators, as a number: torch's own function `parser` knows it. */
static int number_of(const char *parser, PyObject *text, uint64_t *number)
{
    struct { /* a short std::string of the C++11 ABI, which the names of the parsers demand */
        char *start;
        size_t length;
        char content[16];
    } string = {.start = string.content};
    Py_ssize_t length;
    const char *utf8 = ms_ext_utf8(text, "name", &length);
    void *found = ms_ext_torch_function(parser);
    if (utf8 == NULL) {
        return -1;
    }
    if (found == NULL || (size_t)length >= sizeof string.content) {
        return 1;
    }
    memcpy(string.content, utf8, (size_t)length);
    string.length = (size_t)length;
    *number = ((uint32_t (*)(void *))found)(&string);
    return 0;
}

/* One argument of a probe: torch's global context for None, a number, or an enumerator as (parser, text). 1 if this
 * torch lacks it. */
static int read_argument(PyObject *given, uint64_t *number)
{
    if (given == Py_None) {
        void *function = ms_ext_torch_function("_ZN2at13globalContextEv");
        *number = function != NULL ? (uint64_t)(uintptr_t)((void *(*)(void))function)() : 0;
        return function == NULL;
    }
    if (PyTuple_Check(given)) {
        const char *parser;
        PyObject *text;
        return PyArg_ParseTuple(given, "sO:enumerator", &parser, &text) ? number_of(parser, text, number) : -1;
    }
    return ms_ext_u64(given, "argument", number);
}

int ms_ext_read_probe(PyObject *given, ms_ext_probe *out)
{
    const char *symbol;
    PyObject *args;
    if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "siO:probe", &symbol, &out->bytes, &args)) {
        return -1;
    }
    out->arg_count = PyTuple_Check(args) ? (int)PyTuple_Size(args) : -1;
    bool is_array = out->bytes > 16 && out->bytes <= ARRAY_MAX && out->arg_count == 1;
    bool is_number = out->bytes >= 1 && out->bytes <= 4 && out->arg_count <= 3 && out->arg_count != 2;
    if (!is_array && !is_number) {
        PyErr_SetString(PyExc_ValueError, "a probe returns 1 to 4 bytes, or an array of 17 to 64, and takes 0, 1 or 3 "
                                          "arguments");
        return -1;
    }
    out->function = ms_ext_torch_function(symbol);
    int rc = out->function == NULL;
    for (int i = 0; rc == 0 && i < out->arg_count; i++) {
        rc = read_argument(PyTuple_GetItem(args, i), &out->args[i]);
    }
    return rc;
}
