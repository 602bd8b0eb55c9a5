/*
 * Logs on their way to a server, for Python's sender (observability/sender.py), which does the HTTP: addresses,
 * requests and what answers mean are C's (src/observability/push.h, spool.h). Files are read and written without the
 * interpreter lock; one thread uses a push, and one a spool.
 */
#include "common.h"
#include "observability/push.h"
#include "observability/server_url.h"
#include "observability/spool.h"
#include "rooms.h"

#define NS_PER_S 1e9

static PyObject *server_url(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text;
    int allow_http;
    ms_error err;
    ms__server_url url;
    if (!PyArg_ParseTuple(args, "sp:server_url", &text, &allow_http)) {
        return NULL;
    }
    if (ms_ext_check(ms__server_url_read(text, allow_http != 0, &url, &err), &err) != 0) {
        return NULL;
    }
    return Py_BuildValue("(Nsis)", PyBool_FromLong(url.is_https), url.host, (int)url.port, url.path);
}

static PyObject *server_token(PyObject *module, PyObject *token)
{
    (void)module;
    ms_error err;
    const char *text = ms_ext_utf8(token, "token", NULL);
    return text != NULL ? ms_ext_none_or_raise(ms__token_check(text, &err), &err) : NULL;
}

/* ---- pushes ------------------------------------------------------------------- */

static const char PUSH[] = "memscale.push";

static void push_gone(PyObject *capsule)
{
    ms__push_free(PyCapsule_GetPointer(capsule, PUSH));
}

static ms__push *push_in(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, PUSH);
}

static PyObject *push_new(PyObject *module, PyObject *args)
{
    (void)module;
    int is_ended;
    double patience_s;
    ms_error err;
    ms__push_options options = {0};
    ms__push *push = NULL;
    if (!PyArg_ParseTuple(args, "zzpd:push_new", &options.project, &options.name, &is_ended, &patience_s)) {
        return NULL;
    }
    options.is_ended = is_ended != 0;
    options.patience_ns = patience_s > 0 && patience_s < 1e9 ? (uint64_t)(patience_s * NS_PER_S) : 0;
    if (ms_ext_check(ms__push_new(&options, &push, &err), &err) != 0) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(push, PUSH, push_gone);
    if (capsule == NULL) {
        ms__push_free(push);
    }
    return capsule;
}

static PyObject *push_add(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    const char *path;
    int is_found;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Osp:push_add", &capsule, &path, &is_found)) {
        return NULL;
    }
    ms__push *push = push_in(capsule);
    return push != NULL ? ms_ext_none_or_raise(ms__push_add(push, path, is_found != 0, &err), &err) : NULL;
}

static PyObject *push_add_spool(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    const char *folder, *own;
    int rc;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Osz:push_add_spool", &capsule, &folder, &own)) {
        return NULL;
    }
    ms__push *push = push_in(capsule);
    if (push == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms__push_add_spool(push, folder, own, &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *push_next(PyObject *module, PyObject *capsule)
{
    (void)module;
    static const char *const states[] = {"send", "wait", "idle", "stopped"};
    int rc;
    ms_error err;
    ms__push_turn turn;
    ms__push *push = push_in(capsule);
    if (push == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms__push_next(push, ms_now_ns(), &turn, &err));
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    bool has_request = turn.state == MS__PUSH_SEND;
    const char *text = has_request ? turn.request.target : turn.reason != NULL ? turn.reason : "";
    return Py_BuildValue("(sdszy)", states[turn.state], (double)turn.wait_ns / NS_PER_S, text,
                         has_request ? turn.request.key : NULL, has_request ? turn.request.body : "");
}

static PyObject *push_answered(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *retry_after, *body;
    char *bytes;
    Py_ssize_t length;
    ms__push_answer answer = {0};
    if (!PyArg_ParseTuple(args, "OiOO:push_answered", &capsule, &answer.status, &retry_after, &body) ||
        ms_ext_u64(retry_after, "retry_after", &answer.retry_after_s) != 0 ||
        PyBytes_AsStringAndSize(body, &bytes, &length) != 0) {
        return NULL;
    }
    ms__push *push = push_in(capsule);
    if (push == NULL) {
        return NULL;
    }
    answer.body = bytes;
    answer.length = (size_t)length;
    ms__push_answered(push, ms_now_ns(), &answer);
    Py_RETURN_NONE;
}

static PyObject *push_news(PyObject *module, PyObject *capsule)
{
    (void)module;
    ms__push *push = push_in(capsule);
    PyObject *lines = push != NULL ? PyList_New(0) : NULL;
    for (char *line; lines != NULL && (line = ms__push_news(push)) != NULL;) {
        PyObject *text = ms_ext_text_or_none(line);
        ms_free(line);
        if (text == NULL || PyList_Append(lines, text) != 0) {
            Py_CLEAR(lines);
        }
        Py_XDECREF(text);
    }
    return lines;
}

static PyObject *push_counts(PyObject *module, PyObject *capsule)
{
    (void)module;
    ms__push *push = push_in(capsule);
    if (push == NULL) {
        return NULL;
    }
    ms__push_counts counts = ms__push_count(push);
    return Py_BuildValue("{s:K,s:K,s:K,s:K}", "runs", (unsigned long long)counts.runs, "steps",
                         (unsigned long long)counts.steps, "refused_runs", (unsigned long long)counts.refused_runs,
                         "requests", (unsigned long long)counts.requests);
}

/* ---- spools ------------------------------------------------------------------- */

static const char SPOOL[] = "memscale.spool";

static void spool_gone(PyObject *capsule)
{
    ms__spool_close(PyCapsule_GetPointer(capsule, SPOOL));
}

static PyObject *spool_open(PyObject *module, PyObject *args)
{
    (void)module;
    const char *folder, *own;
    PyObject *most;
    uint64_t most_bytes;
    ms_error err;
    ms__spool *spool = NULL;
    if (!PyArg_ParseTuple(args, "sOs:spool_open", &folder, &most, &own) ||
        ms_ext_u64(most, "most_bytes", &most_bytes) != 0 ||
        ms_ext_check(ms__spool_open(folder, most_bytes, own, &spool, &err), &err) != 0) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(spool, SPOOL, spool_gone);
    if (capsule == NULL) {
        ms__spool_close(spool);
    }
    return capsule;
}

static PyObject *spool_begin(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    const char *line;
    size_t run = 0;
    int rc;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Os:spool_begin", &capsule, &line)) {
        return NULL;
    }
    ms__spool *spool = PyCapsule_GetPointer(capsule, SPOOL);
    if (spool == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms__spool_begin(spool, line, &run, &err));
    return ms_ext_check(rc, &err) == 0 ? PyLong_FromSize_t(run) : NULL;
}

static PyObject *spool_write(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    const char *line;
    Py_ssize_t run;
    int is_last, rc;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Onsp:spool_write", &capsule, &run, &line, &is_last)) {
        return NULL;
    }
    ms__spool *spool = PyCapsule_GetPointer(capsule, SPOOL);
    if (spool == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = is_last ? ms__spool_end(spool, (size_t)run, line, &err)
                                 : ms__spool_write(spool, (size_t)run, line, &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *spool_has_dropped(PyObject *module, PyObject *capsule)
{
    (void)module;
    ms__spool *spool = PyCapsule_GetPointer(capsule, SPOOL);
    return spool != NULL ? PyBool_FromLong(ms__spool_has_dropped(spool)) : NULL;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("server_url", server_url, METH_VARARGS, "text, allow_http, /",
                    "(str, bool) -> tuple[bool, str, int, str]",
                    "Whether a server's address is https, its host, port and path. Raises ConfigError for an address "
                    "that a token must not be sent to."),
    MS_EXT_FUNCTION("server_token", server_token, METH_O, "token, /", "(str) -> None",
                    "Raises ConfigError for a text that can't be a token."),
    MS_EXT_FUNCTION("push_new", push_new, METH_VARARGS, "project, name, is_ended, patience_s, /",
                    "(str | None, str | None, bool, float) -> object",
                    "What sends logs: under a project and name (None: the log's own). `is_ended`: the logs grow no "
                    "more. It stops if nothing was taken for `patience_s` (0: never)."),
    MS_EXT_FUNCTION("push_add", push_add, METH_VARARGS, "push, path, is_found, /", "(object, str, bool) -> None",
                    "Adds a log. Nobody is told of a file that is no log if it `is_found` and not named by the user."),
    MS_EXT_FUNCTION("push_add_spool", push_add_spool, METH_VARARGS, "push, folder, own, /",
                    "(object, str, str | None) -> None",
                    "Adds the files of a spool that begin with `own`, and those whose writers have gone."),
    MS_EXT_FUNCTION("push_next", push_next, METH_O, "push, /", "(object) -> tuple[str, float, str, str | None, bytes]",
                    "The state (send, wait, idle, stopped), seconds to wait, the request's path or the reason of a "
                    "stop, the request's key, its body."),
    MS_EXT_FUNCTION("push_answered", push_answered, METH_VARARGS, "push, status, retry_after, body, /",
                    "(object, int, int, bytes) -> None",
                    "The answer to the request: status 0 if none came, seconds of Retry-After or 0, body."),
    MS_EXT_FUNCTION("push_news", push_news, METH_O, "push, /", "(object) -> list[str]",
                    "Lines since the last call that the user should read."),
    MS_EXT_FUNCTION("push_counts", push_counts, METH_O, "push, /", "(object) -> dict[str, int]",
                    "Runs, steps, refused runs and requests so far."),
    MS_EXT_FUNCTION(
        "spool_open", spool_open, METH_VARARGS, "folder, most_bytes, own, /", "(str, int, str) -> object",
        "A bounded folder of runs' lines; names of its files begin with `own`. Closed when it is collected."),
    MS_EXT_FUNCTION("spool_begin", spool_begin, METH_VARARGS, "spool, line, /", "(object, str) -> int",
                    "Begins a run with its first line, and gives its number."),
    MS_EXT_FUNCTION("spool_write", spool_write, METH_VARARGS, "spool, run, line, is_last, /",
                    "(object, int, str, bool) -> None", "Adds a line to a run, which ends with its last one."),
    MS_EXT_FUNCTION("spool_has_dropped", spool_has_dropped, METH_O, "spool, /", "(object) -> bool",
                    "Whether lines that had not been sent were removed to make room."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_hosted(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
