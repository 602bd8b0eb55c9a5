/*
 * execute_ext.h - declarations that the files of the execute room share. Bottom up:
 *
 *   execute_torch.c   torch objects, looked up once; properties of a tensor
 *   execute_top.c     the saved-tensor hooks on top of a thread's stack
 *   execute_memory.c  references to storages: the callbacks of ms_execute_host
 *   execute_device.c  a GPU's memory and streams
 *   execute_bits.c    a GPU's masks as bits
 *   execute_identity.c sets of storages
 *   execute_movable.c whether a tensor's bytes can go to the lower tier, and how
 *   execute_handle.c  handles of saved tensors, and the kind that keeps its tensor
 *   execute_values.c  compares values of saved tensors when a layer is replayed
 *   execute_slot.c    handles that a replay of the layer fills
 *   execute_extent.c  handles whose storages go to the lower tier
 *   execute_waiting.c handles that wait until an operator has written their bytes
 *   execute_selective.c handles whose tensors single operators recompute
 *   execute_pack.c    the pack and unpack callables
 *   execute_region.c  one hooked call of a layer
 *   execute_hooks.c   entering and leaving the root and layers
 *   execute.c         the Execution type: plan, steps, queries
 *
 * These files hold all references to torch objects; the library makes every choice.
 * Everything runs under the interpreter lock.
 */
#ifndef MS_EXT_EXECUTE_H
#define MS_EXT_EXECUTE_H

#include "common.h"

#include "device/device.h"
#include "memscale/execute.h"

/* ---- torch --------------------------------------------------------------- */

/* Names and objects of torch, looked up when the first Execution is made. */
typedef struct ms_torch {
    PyObject *tensor_type, *parameter_type;
    PyObject *use_count; /* of storages, with owners in C++; NULL: this torch doesn't tell */
    PyObject *detach, *untyped_storage, *stride, *storage_offset, *is_conj, *is_neg, *set_, *copy_, *new_empty_strided,
        *tensor_data_ptr; /* methods */
    PyObject *weak_ref, *nbytes, *data_ptr;                                   /* of storages */
    PyObject *expired, *new_with_weak_ptr, *free_weak_ref;                    /* static */
    PyObject *push_hooks, *pop_hooks, *hooks_enabled, *sequence_number;
    PyObject *empty, *uint8, *int64, *truth, *empty_tensor;
    PyObject *zero_args, *empty_bytes_kwargs;
    /* attribute names */
    PyObject *n_version, *n_shape, *n_dtype, *n_device, *n_is_leaf, *n_requires_grad, *n_is_cpu, *n_cdata, *n_data,
        *n_is_quantized, *n_is_nested, *n_f_back, *n_base, *n_nbytes;
} ms_torch;

/* NULL with an exception if torch lacks one of them. */
const ms_torch *ms_ext_torch(void);

/* Finds how this torch tells the top of a stack of saved-tensor hooks; `autograd` is torch._C._autograd, and `torch` has
 * all of its objects. -1 with an exception if it does not tell. */
int ms_ext_find_top(const ms_torch *torch, PyObject *autograd);

/* The pack callable on top of this thread's stack of saved-tensor hooks, a new reference; None if the stack is empty;
 * NULL with an exception. */
PyObject *ms_ext_top_pack(void);

/* The value of a bool attribute, or of a method without arguments: 1, 0, or -1 with an exception. */
int ms_ext_flag(PyObject *object, PyObject *name);
int ms_ext_ask(PyObject *method, PyObject *object);
int ms_ext_version_of(PyObject *tensor, uint64_t *version);

/* The storage of a tensor, a new reference, and its identity. -1 without an exception if the tensor has none. */
int ms_ext_storage_of(PyObject *tensor, PyObject **storage, uintptr_t *identity);

/* A name of a dtype or device that lives as long as the process; NULL on failure. */
const char *ms_ext_intern_name(PyObject *object);

/* Fills `record` and `sizes`, which has room for MS_RECORD_RANK_MAX. -1 with an exception. */
int ms_ext_record_of(PyObject *tensor, int64_t *sizes, ms_record *record);

/* The number of the operator that autograd is recording. No exception is left set. */
uint64_t ms_ext_operator_now(void);

/* Whether the Python frame `caller`, or that at the address in the list `caller`, is on this thread's stack; true if
 * `caller` is NULL or no Python code runs. */
bool ms_ext_is_under_way(PyObject *caller);

/* Raises autograd's error for a saved tensor that was changed in place. The name is of the form
 * "torch.FloatTensor". Always NULL. */
PyObject *ms_ext_raise_version(PyObject *tensor_type_name, PyObject *shape, uint64_t now, uint64_t saved);

/* ---- references to storages ------------------------------------------------ */

/* A reference of execute.h. In a slot, `strong` is the saved tensor and `weak` is NULL. */
typedef struct ms_memory {
    PyObject *strong;  /* the storage, or NULL */
    PyObject *weak;    /* int of torch's weak reference: keeps the identity unique */
    uint64_t bytes;
    void *stream;      /* of fetched GPU memory: the stream that it was allocated on */
    PyObject *probe;   /* an empty tensor that shares the saved tensor's version counter */
    uint64_t version;
    bool holds_truths; /* of a GPU: it is saved as truth values */
} ms_memory;

ms_memory *ms_ext_memory_of_storage(PyObject *storage, uint64_t bytes);
/* Where a storage's bytes begin; NULL, with an exception set, if it has no memory of its own. */
void *ms_ext_address_of(PyObject *storage);
ms_memory *ms_ext_memory_of_tensor(PyObject *tensor, uint64_t version);
void ms_ext_memory_free(ms_memory *memory);
/* Bytes that may be read or written from `address` on: whole pages if hostmem mapped the memory. */
uint64_t ms_ext_capacity_behind(const void *address, uint64_t bytes);
/* MS_ENOMEM with `what` and the text of the exception that is set, which is cleared. */
int ms_ext_fail_with_exception(const char *what, ms_error *err);
/* The callbacks; each context is an Execution. */
extern const ms_execute_host ms_ext_host;
/* Fills in those of execute_bits.c. */
void ms_ext_bits_callbacks(ms_execute_host *host);
/* Whether a tensor has truth values. */
bool ms_ext_holds_truths(PyObject *tensor);

/* ---- Execution --------------------------------------------------------------- */

/* Storages that are never moved: parameters, buffers, the caller's batch. */
typedef struct ms_identity_set {
    uintptr_t *items; /* 0: free */
    size_t capacity;  /* a power of two, or 0 */
    size_t count;
} ms_identity_set;

/* The GPU that the model is on; all NULL if that is the CPU. */
typedef struct ms_ext_device {
    const ms__device_kind *kind;
    PyObject *number, *name; /* index and torch's name of the device */
    PyObject *bytes_kwargs;  /* of torch.empty() */
    PyObject *empty_tensor;
    PyObject *raw_stream;    /* torch's handle of the current stream */
    PyObject *bits;          /* makes bits of a storage */
} ms_ext_device;

typedef struct ms_execution {
    PyObject_HEAD ms_execute *execute;
    ms_ext_device device;
    PyObject *replay;       /* replay(undo, region) */
    PyObject *began;        /* called at the first unpack of a backward, or NULL */
    PyObject *observer;     /* observer(tensor) -> token for each saved tensor, or NULL */
    bool backward_told;
    uint64_t model; /* executions with the same number work on one model that lies on several devices; 0: alone */
    ms_identity_set residents;
} ms_execution;

static inline ms_execution *ms_ext_execution_of(PyObject *self)
{
    return (ms_execution *)self;
}

/* Methods of Execution in execute_hooks.c and execute_device.c; execute.c has their docstrings. */
PyObject *ms_ext_set_device(PyObject *self, PyObject *args);
PyObject *ms_ext_hooks_in_the_way(PyObject *self, PyObject *args);
PyObject *ms_ext_forward_begins(PyObject *self, PyObject *args);
PyObject *ms_ext_enter_root(PyObject *self, PyObject *caller);
PyObject *ms_ext_leave_root(PyObject *self, PyObject *failed);
PyObject *ms_ext_in_root(PyObject *self, PyObject *args);
PyObject *ms_ext_peek(PyObject *self, PyObject *number);
PyObject *ms_ext_enter(PyObject *self, PyObject *args);
PyObject *ms_ext_leave(PyObject *self, PyObject *caller);

bool ms_ext_identity_has(const ms_identity_set *set, uintptr_t identity);
/* Whether the storage of a tensor is a member; false if the tensor has none. */
bool ms_ext_identity_has_tensor(const ms_identity_set *set, PyObject *tensor);
/* Empties the set and makes room for `count` members. -1 with an exception. */
int ms_ext_identity_reset(ms_identity_set *set, size_t count);
/* Makes room for that many more members. -1 with an exception; the set is unchanged then. */
int ms_ext_identity_reserve(ms_identity_set *set, size_t more);
/* Adds the storage of a tensor. There must be room for it. Ignores None and tensors without a storage. */
void ms_ext_identity_add(ms_identity_set *set, PyObject *tensor);
/* Methods of Execution; execute.c has their docstrings. */
PyObject *ms_ext_set_residents(PyObject *self, PyObject *tensors);
PyObject *ms_ext_add_residents(PyObject *self, PyObject *tensors);
PyObject *ms_ext_is_resident(PyObject *self, PyObject *tensor);
/* storage_bytes(list): bytes of the tensors' distinct storages. */
PyObject *ms_ext_storage_bytes(PyObject *module, PyObject *tensors);
/* map_bytes(list): those of them in hostmem's maps. */
PyObject *ms_ext_map_bytes(PyObject *module, PyObject *tensors);

/* ---- GPUs: execute_device.c ------------------------------------------------------ */

/* Takes the place of an earlier one. -1 with an exception. */
int ms_ext_device_open(ms_execution *execution, ms_device_kind kind, int index, PyObject *bits);
void ms_ext_device_close(ms_execution *execution);
/* Call ms_ext_device_stream(), _has() and _lend() only on a GPU, that is, if ms_execute_host_is_device() is false. */
void *ms_ext_device_stream(const ms_execution *execution);
bool ms_ext_device_has(const ms_execution *execution, PyObject *tensor);
/* As ms_ext_check(), but raises torch.OutOfMemoryError, which loops catch, if a GPU's memory ran out. */
int ms_ext_check_fetch(const ms_execution *execution, int code, const ms_error *err);

/* Lets the calling thread's stream use `view`, a view of fetched memory. -1 with an exception. */
int ms_ext_device_lend(const ms_execution *execution, const ms_memory *memory, PyObject *view);

/* ---- Region --------------------------------------------------------------------- */

/* A compiled layer saves all of its tensors at once. */
enum { MS_EXT_WAITING_MAX = 64, MS_EXT_UNREAD_MAX = 4 };

/* One hooked call of a layer. Holds its frame; handles and hooks hold the region. */
typedef struct ms_region {
    PyObject_HEAD ms_execution *execution;
    ms_frame *frame;
    PyObject *payload; /* Python's object for the replay */
    PyObject *caller;  /* the Python frame that makes the call, or its address in a list; may be NULL */
    PyObject *waiting[MS_EXT_WAITING_MAX]; /* handles; an operator has yet to write their tensors */
    size_t waiting_count;
    uint64_t waiting_since; /* the operator that saved them */
    PyObject *unread[MS_EXT_UNREAD_MAX]; /* saved tensors; an operator has yet to write them */
    uint32_t unread_slots[MS_EXT_UNREAD_MAX];
    size_t unread_count;
    uint64_t unread_since; /* the operator that saved them */
    uint64_t last_operator; /* 1 + the operator after which a replay stops; 0: not known yet */
    bool is_capturing;      /* between begin_replay() and end_replay() */
    bool is_stopped;        /* ReplayStop was raised: the last operator has not run */
    PyObject *weak_references;
} ms_region;

extern PyTypeObject *ms_ext_region_type;
int ms_ext_region_init_type(PyObject *module);
ms_region *ms_ext_region_new(ms_execution *execution, ms_frame *frame);
/* The region, of any execution, that a pack callable belongs to, borrowed. NULL for a callable of others. */
ms_region *ms_ext_region_of_hook(PyObject *pack);
/* Whether the call still runs on this thread. A forward that a KeyboardInterrupt ends leaves its hooks behind;
 * tensors that autograd saves after that do not belong to the call. */
static inline bool ms_ext_region_is_running(const ms_region *region)
{
    return ms_frame_is_open(region->frame) && ms_ext_is_under_way(region->caller);
}

#endif
