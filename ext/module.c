/*
 * Entry of the extension `memscale._core`. One file per room (rooms.h) adds functions and types;
 * an import does nothing else.
 */
#include "common.h"
#include "rooms.h"

static int add_rooms(PyObject *module)
{
    static int (*const adders[])(PyObject *) = {
#define ADDER(room) ms_ext_add_##room,
        MS_EXT_ROOMS(ADDER)
#undef ADDER
    };
    for (size_t i = 0; i < sizeof adders / sizeof adders[0]; i++) {
        if (adders[i](module) != 0) {
            return -1;
        }
    }
    return 0;
}

/* PyInit__core() copies the function's pointer into the slot: ISO C has no conversion to an object pointer. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, NULL},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "memscale._core",
    .m_doc = "The C side of memscale. Its users are the other modules of this package.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    int (*exec)(PyObject *) = add_rooms;
    memcpy(&slots[0].value, &exec, sizeof exec);
    return PyModuleDef_Init(&definition);
}
