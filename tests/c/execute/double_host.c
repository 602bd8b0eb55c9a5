#include "test_common.h"

#include "double_host.h"

typedef struct memory {
    storage *item;
    bool is_strong;
} memory;

static void drop(host *self, storage *item)
{
    if (--item->holders == 0) {
        free(item->data);
        item->data = NULL;
        self->live_storages--;
    }
}

/* The last reference frees the struct. */
static void forget(storage *item)
{
    if (--item->known_by == 0) {
        free(item);
    }
}

storage *storage_new(host *self, uint64_t bytes, unsigned seed)
{
    storage *item = calloc(1, sizeof *item);
    assert_non_null(item);
    assert_int_equal(posix_memalign((void **)&item->data, 4096, (bytes + 4095) / 4096 * 4096), 0);
    for (uint64_t i = 0; i < bytes; i++) {
        item->data[i] = (unsigned char)(seed + i * 7);
    }
    item->bytes = bytes;
    item->holders = 1;
    item->known_by = 1;
    self->live_storages++;
    return item;
}

void storage_let_go(host *self, storage *item)
{
    drop(self, item);
    forget(item);
}

bool storage_holds(const storage *item, uint64_t bytes, unsigned seed)
{
    if (item->data == NULL || item->bytes != bytes) {
        return false;
    }
    for (uint64_t i = 0; i < bytes; i++) {
        if (item->data[i] != (unsigned char)(seed + i * 7)) {
            return false;
        }
    }
    return true;
}

void *memory_of(host *self, storage *item)
{
    memory *made = calloc(1, sizeof *made);
    assert_non_null(made);
    made->item = item;
    made->is_strong = true;
    item->holders++;
    item->known_by++;
    self->live_memories++;
    return made;
}

storage *memory_storage(void *reference)
{
    return ((memory *)reference)->item;
}

bool memory_is_strong(const void *reference)
{
    return ((const memory *)reference)->is_strong;
}

static void weaken(void *context, void *reference)
{
    memory *made = reference;
    if (made->is_strong) {
        made->is_strong = false;
        drop(context, made->item);
    }
}

static bool strengthen(void *context, void *reference)
{
    memory *made = reference;
    (void)context;
    if (!made->is_strong && made->item->holders > 0) {
        made->is_strong = true;
        made->item->holders++;
    }
    return made->is_strong;
}

static void release(void *context, void *reference)
{
    weaken(context, reference);
    forget(((memory *)reference)->item);
    ((host *)context)->live_memories--;
    free(reference);
}

static int obtain(void *context, uint64_t bytes, void **reference, void **address, uint64_t *capacity, ms_error *err)
{
    host *self = context;
    if (self->refuse) {
        return ms_fail(err, MS_ENOMEM, "the host has no memory");
    }
    void (*meanwhile)(void *) = self->meanwhile;
    self->meanwhile = NULL;
    if (meanwhile != NULL) {
        meanwhile(self->meanwhile_context);
    }
    storage *item = storage_new(self, bytes, 0);
    memset(item->data, 0, bytes);
    *reference = memory_of(self, item);
    storage_let_go(self, item);
    *address = item->data;
    *capacity = bytes;
    self->obtained++;
    return MS_OK;
}

static void count_unlock(void *context)
{
    ((host *)context)->unlocks++;
}

static void count_lock(void *context)
{
    ((host *)context)->locks++;
}

void host_table(host *self, ms_execute_host *table)
{
    memset(self, 0, sizeof *self);
    *table = (ms_execute_host){.context = self,
                               .weaken = weaken,
                               .strengthen = strengthen,
                               .release = release,
                               .obtain = obtain,
                               .unlock = count_unlock,
                               .lock = count_lock};
}

ms_offload_options memory_tier(void)
{
    return (ms_offload_options){.tier = MS_TIER_HOST, .cap_bytes = UINT64_MAX};
}
