/*
 * A host for the executor without torch: storages are counted buffers, so that a test sees which
 * references hold bytes and when the bytes are freed.
 */
#ifndef MS_TEST_DOUBLE_HOST_H
#define MS_TEST_DOUBLE_HOST_H

#include "memscale/execute.h"

typedef struct storage {
    unsigned char *data;
    uint64_t bytes;
    uint32_t holders;  /* strong references */
    uint32_t known_by; /* all references */
} storage;

typedef struct host {
    uint64_t live_storages; /* with bytes */
    uint64_t live_memories; /* references of the executor's */
    uint64_t obtained;
    uint64_t locks, unlocks;
    bool refuse;            /* obtain() fails */
    void (*meanwhile)(void *context); /* runs in the next obtain(), as other threads may */
    void *meanwhile_context;
} host;

void host_table(host *self, ms_execute_host *table);

/* A storage filled from `seed`, held by the test. */
storage *storage_new(host *self, uint64_t bytes, unsigned seed);
void storage_let_go(host *self, storage *item);
bool storage_holds(const storage *item, uint64_t bytes, unsigned seed);

/* A strong reference for the executor. */
void *memory_of(host *self, storage *item);
storage *memory_storage(void *memory);
bool memory_is_strong(const void *memory);

/* The memory tier. */
ms_offload_options memory_tier(void);

#endif
