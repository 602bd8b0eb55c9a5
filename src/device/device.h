/*
 * device.h - one row per kind of device. Only this room distinguishes kinds.
 *
 * Callers: hardware (probe), sim (rounding, bytes beside tensors), offload (copies, streams, events,
 * pinning), the doctor (texts), the extension (torch's names), and any code that asks whether the
 * device uses host memory. The room owns the rows, which are constants, and the drivers' libraries,
 * loaded at most once and never unloaded. The caller owns an opened ms__device.
 *
 * Promises: every row has every column, so callers never check for a kind; a probe succeeds without
 * driver or device; nothing here retries, logs above debug, or waits unless stated. Any thread may
 * read rows and call their functions.
 *
 * To add a kind: its number in memscale/device.h, its row in its own file here, the row's address in
 * device.c. tests/c/device/test_device_kinds.c fails for an empty column.
 */
#ifndef MS_DEVICE_DEVICE_H
#define MS_DEVICE_DEVICE_H

#include "base/fault.h"
#include "memscale/device.h"

/* ---- drivers -------------------------------------------------------------- */

typedef struct ms__device_kind ms__device_kind;

/* One opened device; its row owns driver and context. */
typedef struct ms__device {
    const ms__device_kind *kind;
    uint32_t number; /* in the driver's order */
    const void *functions; /* the driver's */
    void *context;         /* torch uses the same one */
    int handle;
} ms__device;

/* The result of a call that a test caused to fail. Drivers return 0 for success. */
enum { MS__DEVICE_UNKNOWN = 999 };

/*
 * Moves bytes between a device's memory and the host's. Functions return 0 or the driver's error
 * number. Streams are the caller's or from stream_open(); NULL is the default stream, which is
 * ordered with every other blocking stream. Call the functions from stream_open() down between
 * enter() and leave(), in any thread.
 */
typedef struct ms__device_driver {
    /* Opens device `device->number`; kind and number are set. MS_ENOTSUP: no driver, no such device. */
    int (*open)(ms__device *device, ms_error *err);
    void (*close)(ms__device *device);
    /* Around calls, because the calling thread may have a context of its own. */
    int (*enter)(const ms__device *device);
    void (*leave)(const ms__device *device);
    /* The number of concurrent copies. */
    int (*copy_engines)(const ms__device *device, int *count);
    /* Opens a stream that is not ordered with the default stream. */
    int (*stream_open)(const ms__device *device, void **stream);
    int (*stream_close)(const ms__device *device, void *stream);
    int (*stream_synchronize)(const ms__device *device, void *stream);
    int (*stream_wait)(const ms__device *device, void *stream, void *event);
    /* Opens an event that records no time; waiting for it sleeps. */
    int (*event_open)(const ms__device *device, void **event);
    int (*event_close)(const ms__device *device, void *event);
    int (*event_record)(const ms__device *device, void *event, void *stream);
    int (*event_synchronize)(const ms__device *device, void *event);
    /* Never waits. */
    int (*event_query)(const ms__device *device, void *event, bool *has_ended);
    /* Queued on the stream; pageable memory works too. */
    int (*copy_to_host)(const ms__device *device, void *to, uintptr_t from, uint64_t bytes, void *stream);
    int (*copy_to_device)(const ms__device *device, uintptr_t to, const void *from, uint64_t bytes, void *stream);
    /* Locks host memory for copies at the link's full rate, for every device of the kind. */
    int (*pin)(const ms__device *device, void *memory, uint64_t bytes);
    int (*unpin)(const ms__device *device, void *memory);
} ms__device_driver;

/* ---- rows ------------------------------------------------------------------- */

/* Bytes beside tensors that a step may use: workspaces of operators, paged-in library code, the
 * interpreter's growth. Measured; 0 if the allocator counts them all. */
typedef struct ms__device_scratch {
    uint64_t prior_bytes;            /* assumed before a step has been measured */
    uint64_t prior_per_cpu_bytes;    /* added for each usable CPU */
    uint64_t expected_bytes;         /* part of the prior; the rest is reserve */
    uint64_t without_products_bytes; /* part of expected_bytes that steps without large products use */
    uint64_t convolutions_bytes;     /* more reserve for steps with convolutions */
} ms__device_scratch;

/* An environment setting that makes memory or time differ from the plan. */
typedef struct ms__device_conflict {
    const char *variable;
    const char *part; /* of its value; "" for any */
    const char *why;
} ms__device_conflict;

struct ms__device_kind {
    ms_device_kind id;
    const char *name;    /* torch's device type, also in documents */
    const char *label;   /* "GPU": texts append the number */
    const char *api;     /* "CUDA": the driver's name in texts */
    bool host_is_device; /* tensors are in host memory: no tier above it, no copies, no driver */

    /* The bytes that the allocator takes for a block of `bytes`. */
    uint64_t (*rounded)(uint64_t bytes);
    /* Rates of a device that no driver describes: those of a mid-range card. */
    uint64_t default_flops_per_s, default_memory_bytes_per_s, default_link_bytes_per_s;
    /* torch's bytes before a model exists: for plans made without a process. */
    uint64_t runtime_bytes;
    ms__device_scratch scratch;
    /* Added to the prior for this card (NULL: none is described); NULL: nothing. */
    uint64_t (*more_scratch)(const ms_gpu *gpu);

    /* Describes the devices of this kind, at most `most`; returns their number. 0 for the host,
     * without a driver, and after a driver error (logged at debug). Rates are estimates. */
    uint32_t (*probe)(ms_gpu *gpus, uint32_t most);
    /* Whether the driver's library is installed. */
    bool (*has_driver)(void);
    /* MS_ENOTSUP if probe() finds nothing: the error says why. May initialise the driver. */
    int (*usable)(ms_error *err);
    /* What a result of the driver means, after ": "; "" if nothing is known about it. */
    const char *(*means)(int failure);
    const char *no_driver, *no_device, *no_device_advice; /* the doctor's texts */
    const ms__device_conflict *conflicts;
    uint32_t conflict_count;

    const char *torch_module;     /* "torch.cuda" */
    const char *torch_raw_stream; /* function of torch._C: index -> current stream's handle; "" for the host */
    const ms__device_driver *driver; /* NULL only for the host */
};

/* All rows in the order of texts: the host's first. */
extern const ms__device_kind *const ms__device_kinds[MS_DEVICE_KIND_COUNT];

/* The row of a kind; the host's for an unknown number. */
const ms__device_kind *ms__device_kind_of(ms_device_kind id);

/* ---- blocks of host memory ----------------------------------------------------- */

/* Larger blocks, and blocks of this size, are hostmem's maps: whole pages, faulted in, cacheable.
 * Equals MS_HOSTMEM_MIN_BYTES, which belongs to another room. */
#define MS__MAP_MIN_BYTES ((uint64_t)128 << 10)
#define MS__PAGE_BYTES ((uint64_t)4096)

/* ---- calls that may fail ----------------------------------------------------------- */

/* A driver call after its fault point. Calls that free something have no fault point, and their result
 * is ignored: after a device error nothing else could be done. */
#define MS__DEVICE_CALL(device, function, ...) \
    (ms__fault(MS_FAULT_DRIVER, NULL) ? MS__DEVICE_UNKNOWN : (device)->kind->driver->function((device), __VA_ARGS__))

/* Call ms__device_leave() only after true. */
static inline bool ms__device_enter(const ms__device *device)
{
    return !ms__fault(MS_FAULT_DRIVER, NULL) && device->kind->driver->enter(device) == 0;
}

static inline void ms__device_leave(const ms__device *device)
{
    device->kind->driver->leave(device);
}

/* The error "GPU 0: `what` (driver error 2: out of memory)": MS_ESYSTEM for a test's failure, else MS_ENOTSUP. */
int ms__device_fail(const ms__device *device, int failure, const char *what, ms_error *err);

#endif
