/*
 * internal.h - shared by the files of the double: streams.c runs work, order.c checks its order, memory.c
 * holds ranges of memory, driver.c has the driver's functions, control.c the tests' controls. One lock
 * guards all data. Work runs without it.
 */
#ifndef MS_CUDA_DOUBLE_INTERNAL_H
#define MS_CUDA_DOUBLE_INTERNAL_H

#include <stdbool.h>

#include "base/thread.h"
#include "cuda_double.h"

#define EXPORT __attribute__((visibility("default")))

enum { STREAMS_MAX = 64, DEVICES = 2, POISON = 0xDB };

/* The driver's numbers. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713
};

typedef struct clock_vector {
    uint64_t at[STREAMS_MAX]; /* [stream] pieces of its work that come before */
} clock_vector;

typedef struct event {
    const struct stream *on; /* stream of the latest record; NULL: never recorded */
    uint64_t at;             /* its place on that stream */
    clock_vector clock;
} event;

typedef struct range {
    unsigned char *begin;
    size_t bytes;
    unsigned char *shadow; /* of device memory: the same bytes at an address that work can reach */
    int device;            /* of device memory */
    struct range *next;
} range;

typedef enum work_kind { WORK_COPY, WORK_KERNEL, WORK_PROGRAM, WORK_RECORD, WORK_WAIT } work_kind;

typedef struct work {
    work_kind kind;
    unsigned char *to;         /* COPY */
    const unsigned char *from; /* COPY */
    size_t bytes;
    bool is_poisoned;     /* COPY to pinned memory */
    bool is_fingerprinted; /* COPY from pinned memory */
    uint64_t fingerprint;
    unsigned char *memory; /* KERNEL */
    cuda_double_kernel *kernel;
    unsigned char **memories; /* PROGRAM: owned; one per range */
    cuda_double_program *program;
    void *argument;
    const struct stream *after; /* WAIT: for this stream's work ... */
    uint64_t at;                /* ... up to here. Not the event, which may be recorded again meanwhile */
    uint64_t delay_ns;
    struct work *next;
} work;

typedef struct stream {
    bool is_used;
    bool is_ending;
    int device;
    uint64_t queued; /* pieces ever queued: the stream's time */
    uint64_t finished;
    clock_vector clock;
    work *first, *last;
    ms__thread thread;
} stream;

typedef struct touch {
    const unsigned char *begin;
    size_t bytes;
    bool is_write;
    uint32_t stream;
    uint64_t time;
    struct touch *next;
} touch;

typedef struct planned_failure {
    char function[48];
    uint64_t left;
    bool for_good;
    int result;
} planned_failure;

typedef struct cuda_double {
    ms__mutex lock;
    ms__cond changed;
    stream streams[STREAMS_MAX]; /* the first DEVICES of them are the legacy default streams */
    clock_vector host;           /* the work that the host has waited for */
    touch *accesses;             /* accesses that the host has not waited for */
    range *allocations, *registered;
    size_t registered_bytes, registered_limit;
    struct {
        size_t total, taken, allocated; /* bytes; taken: by other processes */
    } memory[DEVICES];
    int context_uses[DEVICES];
    uint64_t queue_limit; /* pieces that a stream holds before launches wait */
    int copy_engines;
    bool hangs;
    uint64_t random, most_delay_ns;
    int sticky;
    planned_failure failure;
    uint64_t violations;
    char violation[256];
    cuda_double_counts counts;
} cuda_double;

extern cuda_double the;

/* All are called under the lock, unless stated. */

/* streams.c */
stream *stream_of(void *handle);
int stream_new(int device, stream **made);
void stream_end(stream *which);
/* Whether a queued copy uses the memory, which then must not be poisoned yet. */
bool copies_use(const unsigned char *memory, size_t bytes);
/* Waits until the stream may hold one more piece; before order_access(). */
void stream_make_room(const stream *which);
/* Queues a copy of `what`. Advances the stream's time. */
int stream_queue(stream *which, const work *what);
void stream_wait_finished(stream *which, uint64_t until);
uint64_t fingerprint_of(const void *memory, size_t bytes);

/* order.c */
void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
void clock_join(clock_vector *into, const clock_vector *other);
/* The stream's next piece accesses the range: checks it against all earlier ones. */
void order_access(const stream *which, const unsigned char *begin, size_t bytes, bool is_write);
/* Reports a violation if unfinished work uses the range. */
void order_check_idle(const unsigned char *begin, size_t bytes, const char *what);

/* memory.c */
range *range_find(range *list, const unsigned char *begin, size_t bytes);
bool range_touches(const range *list, const unsigned char *begin, size_t bytes);
range *range_remove(range **list, const unsigned char *begin);
bool range_add(range **list, unsigned char *begin, size_t bytes, unsigned char *shadow);
size_t device_memory_left(int device);
int device_memory_new(size_t bytes, unsigned char **address);
bool device_memory_free(unsigned char *address);
/* The address at which work reaches this device memory. Outside of device memory: NULL, and a violation. */
unsigned char *device_view(unsigned long long pointer, size_t bytes);

/* driver.c */
int current_device(void);
int enter(const char *function);

#endif
