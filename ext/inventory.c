/*
 * The inventory: what a replay sets beside its layer's modules, taken before the layer's forward, set for its replay, and
 * put back afterwards. It has the settings of the process (settings.c), the states of the random generators (generators.c),
 * grad mode, context variables, and whether any mode of torch is on.
 *
 * Each is one call into C, because all recomputed layers pay for them. base/environment.py is the only user. Leaving is
 * part of an undo (undo.h), so it runs no bytecode. Tests: tests/python/test_environment.py, test_undo.py.
 */
#include "environment.h"
#include "probes.h"
#include "rooms.h"
#include "undo.h"

typedef struct inventory {
    PyObject_HEAD PyObject *table; /* the settings */
    PyObject *generators;          /* has `sources` and `guards`, and look(), which finds both again */
    PyObject *end_modes;           /* a builtin that takes all modes off */
    PyObject *copy_context;        /* contextvars' */
} inventory;

/* The places in the tuple of one moment. */
typedef enum part { VALUES, SOURCES, STATES, ARE_MODES_ON, PARTS } part;

static PyTypeObject *inventory_type;
static PyObject *leave_function; /* leave_inventory() of the module */
static PyObject *n_guards, *n_sources, *n_look;

/* ---- questions to torch ------------------------------------------------------------------------ */

/* A function of torch without arguments, in Python, and in C++ if it is a question that C asks by a probe: a few
 * nanoseconds for forty. */
typedef struct torch_call {
    const char *module, *name, *symbol;
    ms_ext_probe probe; /* its function is NULL if this torch lacks the symbol */
    PyObject *function;
} torch_call;

static torch_call is_grad_enabled = {
    "torch._C", "is_grad_enabled", "_ZN3c108GradMode10is_enabledEv", {.bytes = 1}, NULL};
static torch_call set_grad_enabled = {"torch._C", "_set_grad_enabled", NULL, {0}, NULL};
static torch_call function_modes = {
    "torch._C", "_len_torch_function_stack", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", {.bytes = 4}, NULL};
static torch_call dispatch_modes = {
    "torch._C", "_len_torch_dispatch_stack", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", {.bytes = 4}, NULL};
static torch_call is_autocast = {"torch._C", "_is_any_autocast_enabled", NULL, {0}, NULL};
static torch_call nest_autocast = {"torch._C", "autocast_increment_nesting", NULL, {0}, NULL};
static torch_call leave_autocast = {"torch._C", "autocast_decrement_nesting", NULL, {0}, NULL};
static torch_call clear_casts = {"torch._C", "clear_autocast_cache", NULL, {0}, NULL};
static torch_call are_hooks_allowed = {"torch._C._autograd",
                                       "_saved_tensors_hooks_is_enabled",
                                       "_ZN2at23SavedTensorDefaultHooks10is_enabledEv",
                                       {.bytes = 1},
                                       NULL};

/* Looks torch's functions up once. */
static int find_functions(void)
{
    torch_call *calls[] = {&is_grad_enabled, &set_grad_enabled, &function_modes, &dispatch_modes,   &is_autocast,
                           &nest_autocast,   &leave_autocast,   &clear_casts,    &are_hooks_allowed};
    static bool are_found;
    for (size_t i = 0; !are_found && i < sizeof calls / sizeof calls[0]; i++) {
        torch_call *call = calls[i];
        PyObject *module = PyImport_ImportModule(call->module);
        PyObject *function = module != NULL ? PyObject_GetAttrString(module, call->name) : NULL;
        Py_XDECREF(module);
        if (function == NULL) {
            return -1;
        }
        Py_XDECREF(call->function);
        call->function = function;
        call->probe.function = call->symbol != NULL ? ms_ext_torch_function(call->symbol) : NULL;
    }
    are_found = true;
    return 0;
}

static PyObject *call_torch(const torch_call *call)
{
    return PyObject_CallNoArgs(call->function);
}

/* The truth of what torch answers; -1 with an exception. */
static int is_true(const torch_call *question)
{
    if (question->probe.function != NULL) {
        return ms_ext_call_probe(&question->probe) != 0;
    }
    PyObject *value = call_torch(question);
    int truth = value != NULL ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return truth;
}

/* Whether any mode is on; -1 with an exception. */
static int are_any_modes_on(void)
{
    int functions = is_true(&function_modes);
    return functions != 0 ? functions : is_true(&dispatch_modes);
}

static PyObject *are_modes_on(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    int are_on = find_functions() == 0 ? are_any_modes_on() : -1;
    return are_on >= 0 ? PyBool_FromLong(are_on) : NULL;
}

/* Sets grad mode unless it is so already. */
static int put_grad_mode(bool wanted)
{
    int now = is_true(&is_grad_enabled);
    PyObject *done = NULL;
    if (now >= 0 && (now != 0) != wanted) {
        done = PyObject_CallFunctionObjArgs(set_grad_enabled.function, wanted ? Py_True : Py_False, NULL);
        now = done != NULL ? now : -1;
    }
    Py_XDECREF(done);
    return now < 0 ? -1 : 0;
}

/* If the layer has switched autocast on by hand, outside of all of its contexts, nothing would clear the casts of its
 * weights, and the next step would find those of old weights. */
static int drop_casts(void)
{
    PyObject *done = NULL;
    int rc = is_true(&is_autocast);
    if (rc > 0) {
        PyObject *nesting = call_torch(&nest_autocast);
        done = nesting != NULL ? call_torch(&leave_autocast) : NULL;
        bool is_outermost = done != NULL && PyLong_AsLong(nesting) == 1;
        Py_XDECREF(nesting);
        if (is_outermost) {
            Py_DECREF(done);
            done = call_torch(&clear_casts);
        }
        rc = done != NULL ? 0 : -1;
    }
    Py_XDECREF(done);
    return rc;
}

/* ---- taking ------------------------------------------------------------------------------------ */

/* The sources of now, a new reference: others than at an earlier call if somebody has replaced a generator. */
static PyObject *sources_now(const inventory *self)
{
    PyObject *guards = PyObject_GetAttr(self->generators, n_guards);
    int hold = guards != NULL ? ms_ext_guards_hold(guards) : -1;
    Py_XDECREF(guards);
    PyObject *looked = hold == 0 ? PyObject_CallMethodObjArgs(self->generators, n_look, NULL) : NULL;
    Py_XDECREF(looked);
    return hold > 0 || looked != NULL ? PyObject_GetAttr(self->generators, n_sources) : NULL;
}

static PyObject *take(PyObject *object, PyObject *none)
{
    (void)none;
    const inventory *self = (const inventory *)object;
    int are_on = find_functions() == 0 ? are_any_modes_on() : -1;
    PyObject *sources = are_on >= 0 ? sources_now(self) : NULL;
    PyObject *states = sources != NULL ? ms_ext_read_states(sources) : NULL;
    PyObject *values = states != NULL ? ms_ext_read_settings(self->table) : NULL;
    PyObject *context = values != NULL ? PyObject_CallNoArgs(self->copy_context) : NULL;
    PyObject *moment = NULL, *both = NULL;
    if (context != NULL) {
        moment = PyTuple_Pack(PARTS, values, sources, states, are_on != 0 ? Py_True : Py_False);
        both = moment != NULL ? PyTuple_Pack(2, moment, context) : NULL;
    }
    Py_XDECREF(moment);
    Py_XDECREF(context);
    Py_XDECREF(values);
    Py_XDECREF(states);
    Py_XDECREF(sources);
    return both;
}

/* ---- setting ----------------------------------------------------------------------------------- */

static bool is_moment(const inventory *self, PyObject *moment)
{
    if (!PyTuple_Check(moment) || PyTuple_Size(moment) != PARTS) {
        PyErr_SetString(PyExc_TypeError, "enter() takes what take() returned");
        return false;
    }
    return ms_ext_are_settings(self->table, PyTuple_GetItem(moment, VALUES)) &&
           ms_ext_are_states(PyTuple_GetItem(moment, SOURCES), PyTuple_GetItem(moment, STATES));
}

/* The present state, which leave_inventory() puts back. */
typedef struct present {
    PyObject *sources, *values, *states;
} present;

static int read_present(const inventory *self, present *now)
{
    now->sources = sources_now(self);
    now->values = now->sources != NULL ? ms_ext_read_settings(self->table) : NULL;
    now->states = now->values != NULL ? ms_ext_read_states(now->sources) : NULL;
    return now->states != NULL ? 0 : -1;
}

static int note_present(PyObject *self, PyObject *undo, const present *now, bool ends_modes)
{
    int grad = is_true(&is_grad_enabled);
    PyObject *is_grad = grad > 0 ? Py_True : Py_False, *ends = ends_modes ? Py_True : Py_False;
    PyObject *back = grad >= 0 ? PyTuple_Pack(6, self, now->values, now->sources, now->states, is_grad, ends) : NULL;
    int rc = back != NULL ? ms_ext_later(undo, leave_function, back) : -1;
    Py_XDECREF(back);
    return rc;
}

static int put_moment(const inventory *self, PyObject *moment, const present *now)
{
    PyObject *values = PyTuple_GetItem(moment, VALUES), *sources = PyTuple_GetItem(moment, SOURCES);
    if (values != now->values && ms_ext_put_settings(self->table, values) != 0) {
        return -1;
    }
    PyObject *states_now = sources == now->sources ? now->states : NULL;
    int rc = ms_ext_write_states(sources, PyTuple_GetItem(moment, STATES), states_now);
    return rc == 0 ? put_grad_mode(true) : -1;
}

static PyObject *enter(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const inventory *self = (const inventory *)object;
    if (ms_ext_arity("enter", count, 2, 2) != 0 || !is_moment(self, args[1]) || find_functions() != 0) {
        return NULL;
    }
    PyObject *undo = args[0], *moment = args[1];
    int are_on = are_any_modes_on();
    bool has_modes = are_on != 0 || PyTuple_GetItem(moment, ARE_MODES_ON) == Py_True;
    present now = {NULL, NULL, NULL};
    int rc = are_on >= 0 ? read_present(self, &now) : -1;
    if (rc == 0) {
        rc = note_present(object, undo, &now, !has_modes);
    }
    if (rc == 0) {
        rc = put_moment(self, moment, &now);
    }
    Py_XDECREF(now.states);
    Py_XDECREF(now.values);
    Py_XDECREF(now.sources);
    int casts = rc == 0 ? is_true(&is_autocast) : -1, hooks = casts >= 0 ? is_true(&are_hooks_allowed) : -1;
    return hooks < 0 ? NULL : PyBool_FromLong(!has_modes && casts == 0 && hooks > 0);
}

/* ---- putting back ------------------------------------------------------------------------------ */

/* Takes all modes off, if any is on. */
static int end_modes(const inventory *self)
{
    int are_on = are_any_modes_on();
    PyObject *done = are_on > 0 ? PyObject_CallNoArgs(self->end_modes) : NULL;
    Py_XDECREF(done);
    return are_on == 0 || done != NULL ? 0 : -1;
}

/* Ends one step of leaving. The first error is raised once all is back. */
static void after_step(bool failed, PyObject *error[3])
{
    if (failed && error[0] == NULL) {
        PyErr_Fetch(&error[0], &error[1], &error[2]);
    }
    PyErr_Clear();
}

static PyObject *leave_inventory(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (ms_ext_arity("leave_inventory", count, 6, 6) != 0) {
        return NULL;
    }
    const inventory *self = (const inventory *)args[0];
    if (Py_TYPE(args[0]) != inventory_type) {
        return PyErr_Format(PyExc_TypeError, "leave_inventory() takes an Inventory");
    }
    if (!ms_ext_are_settings(self->table, args[1]) || !ms_ext_are_states(args[2], args[3]) || find_functions() != 0) {
        return NULL;
    }
    PyObject *error[3] = {NULL};
    after_step(args[5] == Py_True && end_modes(self) != 0, error);
    after_step(drop_casts() != 0, error);
    after_step(ms_ext_put_settings(self->table, args[1]) != 0, error);
    after_step(ms_ext_write_states(args[2], args[3], NULL) != 0, error);
    after_step(put_grad_mode(args[4] == Py_True) != 0, error);
    if (error[0] != NULL) {
        PyErr_Restore(error[0], error[1], error[2]);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- type -------------------------------------------------------------------------------------- */

static PyObject *new_inventory(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *table, *generators, *end, *copy_context;
    if (!PyArg_ParseTuple(args, "OOOO:inventory", &table, &generators, &end, &copy_context) ||
        !ms_ext_is_settings(table)) {
        return NULL;
    }
    inventory *self = PyObject_New(inventory, inventory_type);
    if (self != NULL) {
        self->table = Py_NewRef(table);
        self->generators = Py_NewRef(generators);
        self->end_modes = Py_NewRef(end);
        self->copy_context = Py_NewRef(copy_context);
    }
    return (PyObject *)self;
}

static void inventory_dealloc(PyObject *object)
{
    inventory *self = (inventory *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(self->table);
    Py_CLEAR(self->generators);
    Py_CLEAR(self->end_modes);
    Py_CLEAR(self->copy_context);
    PyObject_Free(object);
    Py_DECREF(type);
}

#define MOMENT "tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool]"

static PyMethodDef inventory_methods[] = {
    MS_EXT_METHOD("take", take, METH_NOARGS, "/", "() -> tuple[" MOMENT ", Any]",
                  "A moment, for enter(), and a copy of the context variables. The moment has settings, sources of "
                  "random numbers, their states, and whether any mode of torch is on."),
    MS_EXT_METHOD(
        "enter", MS_EXT_FAST(enter), METH_FASTCALL, "undo, moment, /", "(Undo, " MOMENT ") -> bool",
        "Sets the settings and random states of a moment, each unless it is set already, and enables grad mode. "
        "The undo puts the present ones back, even if the layer changes them meanwhile; if no modes are on now, "
        "nor were then, it takes off those that are on by then. Returns whether that was all: the caller puts "
        "modes on or off, counts a level of autocast, and allows saved-tensor hooks."),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("inventory", new_inventory, METH_VARARGS, "settings, generators, end_modes, copy_context, /",
                    "(Settings, Any, Callable[[], object], Callable[[], Any]) -> Inventory",
                    "The inventory of a table of settings and of `generators`, which has `sources` for read_states(), "
                    "`guards` for guards_hold(), and a method look() that finds both again once the guards don't hold. "
                    "`end_modes` is a builtin that takes all modes of torch off."),
    MS_EXT_FUNCTION("leave_inventory", MS_EXT_FAST(leave_inventory), METH_FASTCALL,
                    "inventory, values, sources, states, is_grad_enabled, ends_modes, /",
                    "(Inventory, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool, bool) -> None",
                    "Puts settings, random states and grad mode back and ends modes; for Inventory.enter()."),
    MS_EXT_FUNCTION("are_modes_on", are_modes_on, METH_NOARGS, "/", "() -> bool",
                    "Whether this thread has any mode of torch on."),
    {NULL, NULL, 0, NULL},
};

static int intern(PyObject **place, const char *name)
{
    *place = PyUnicode_InternFromString(name);
    return *place != NULL ? 0 : -1;
}

int ms_ext_add_inventory(PyObject *module)
{
    static char doc[] = "Takes the state that a replay needs, and sets it.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(inventory_dealloc)},
        {Py_tp_methods, inventory_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Inventory",
        .basicsize = sizeof(inventory),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    if (intern(&n_guards, "guards") != 0 || intern(&n_sources, "sources") != 0 || intern(&n_look, "look") != 0 ||
        ms_ext_add_type(module, &spec, &inventory_type) != 0 || PyModule_AddFunctions(module, methods) != 0) {
        return -1;
    }
    leave_function = PyObject_GetAttrString(module, "leave_inventory");
    return leave_function != NULL ? 0 : -1;
}
