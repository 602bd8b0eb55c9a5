/*
 * probes.h - calls C++ functions of torch that tell whether a setting has changed, in a few nanoseconds each.
 *
 * A probe's result must change whenever that of the setting's getter does. It must not throw, because C could not catch
 * it. The symbols come from base/settings.py; what this torch lacks is left out by the caller, settings.c.
 */
#ifndef MS_EXT_PROBES_H
#define MS_EXT_PROBES_H

#include "common.h"

/* A function or variable of libtorch_cpu.so; NULL if it has none of that name. */
void *ms_ext_torch_function(const char *symbol);

/* A function of torch that returns a number of 1 to 4 bytes, or an array of 17 to 64 bytes of 4-byte numbers below 16;
 * or a variable of torch, if `arg_count` is -1. */
typedef struct ms_ext_probe {
    void *function;
    uint64_t args[3];
    int arg_count, bytes;
} ms_ext_probe;

/* Reads (symbol, bytes of the result, arguments). The arguments are numbers, None for torch's context, or (symbol of
 * torch's parser, name) for an enumerator; None instead of arguments means a variable. Returns 0, 1 if this torch lacks
 * a symbol, or -1 with a Python exception. */
int ms_ext_read_probe(PyObject *given, ms_ext_probe *out);

/* Whether both ask the same function the same. */
bool ms_ext_is_same_probe(const ms_ext_probe *a, const ms_ext_probe *b);

/* The result, or a number for the array's content. */
uint64_t ms_ext_call_probe(const ms_ext_probe *probe);

#endif
