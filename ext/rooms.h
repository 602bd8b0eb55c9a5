/*
 * The rooms that add functions and types to memscale._core. Each has a file ext/<room>.c with
 * `int ms_ext_add_<room>(PyObject *module)`: 0, or -1 with a Python exception set. Only module.c
 * calls these functions; each room includes this header for its own.
 */
#ifndef MS_EXT_ROOMS_H
#define MS_EXT_ROOMS_H

#include <Python.h>

#define MS_EXT_ROOMS(X) \
    X(autotuning) \
    X(base) \
    X(checkpoint) \
    X(config) \
    X(environment) \
    X(execute) \
    X(fakes) \
    X(generators) \
    X(graph) \
    X(hardware) \
    X(hosted) \
    X(hostmem) \
    X(inventory) \
    X(loss) \
    X(measured) \
    X(modules) \
    X(observability) \
    X(observe) \
    X(optimizer) \
    X(optimizer_stream) \
    X(plan) \
    X(policy) \
    X(predict) \
    X(process) \
    X(outside) \
    X(ranks) \
    X(report) \
    X(session) \
    X(settings) \
    X(snapshot) \
    X(snapshot_put) \
    X(streamed) \
    X(technique) \
    X(trace) \
    X(trace_operators) \
    X(undo) \
    X(undo_content) \
    X(undo_modules) \
    X(undo_signals)

#define MS_EXT_DECLARE(room) int ms_ext_add_##room(PyObject *module);
MS_EXT_ROOMS(MS_EXT_DECLARE)
#undef MS_EXT_DECLARE

#endif
