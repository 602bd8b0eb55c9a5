/*
 * The ring of log lines between worker threads and a host that drains it. The process's log sink writes it,
 * the extension reads it. The capacity bounds its memory.
 */
#include "base/thread.h"
#include "memscale/observability.h"

enum { DEFAULT_CAPACITY = 256 };

typedef struct ring_entry {
    char *line;
    ms_log_level level;
} ring_entry;

struct ms_log_ring {
    ms__mutex lock;
    ring_entry *entries;
    size_t capacity;
    size_t first;
    size_t count;
    uint64_t lost;
};

int ms_log_ring_new(size_t capacity, ms_log_ring **ring, ms_error *err)
{
    ms_log_ring *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "log ring: out of memory");
    }
    made->capacity = capacity != 0 ? capacity : DEFAULT_CAPACITY;
    made->entries = ms_calloc(made->capacity, sizeof *made->entries);
    if (made->entries == NULL) {
        ms_free(made);
        return ms_fail(err, MS_ENOMEM, "log ring: out of memory for %zu lines", capacity);
    }
    ms__mutex_init(&made->lock);
    *ring = made;
    return MS_OK;
}

void ms_log_ring_free(ms_log_ring *ring)
{
    if (ring == NULL) {
        return;
    }
    for (size_t i = 0; i < ring->count; i++) {
        ms_free(ring->entries[(ring->first + i) % ring->capacity].line);
    }
    ms__mutex_destroy(&ring->lock);
    ms_free(ring->entries);
    ms_free(ring);
}

static void drop_oldest(ms_log_ring *ring)
{
    ms_free(ring->entries[ring->first].line);
    ring->first = (ring->first + 1) % ring->capacity;
    ring->count--;
    ring->lost++;
}

void ms_log_ring_write(void *context, ms_log_level level, const char *line)
{
    ms_log_ring *ring = context;
    char *copy = ms_strdup(line);
    ms__mutex_lock(&ring->lock);
    if (copy == NULL) {
        ring->lost++;
    } else {
        if (ring->count == ring->capacity) {
            drop_oldest(ring);
        }
        ring->entries[(ring->first + ring->count) % ring->capacity] = (ring_entry){copy, level};
        ring->count++;
    }
    ms__mutex_unlock(&ring->lock);
}

char *ms_log_ring_take(ms_log_ring *ring, ms_log_level *level)
{
    char *line = NULL;
    ms__mutex_lock(&ring->lock);
    if (ring->count > 0) {
        line = ring->entries[ring->first].line;
        *level = ring->entries[ring->first].level;
        ring->first = (ring->first + 1) % ring->capacity;
        ring->count--;
    }
    ms__mutex_unlock(&ring->lock);
    return line;
}

uint64_t ms_log_ring_lost(const ms_log_ring *ring)
{
    ms_log_ring *unlocked = (ms_log_ring *)(uintptr_t)ring; /* the lock is not part of its value */
    ms__mutex_lock(&unlocked->lock);
    uint64_t lost = ring->lost;
    ms__mutex_unlock(&unlocked->lock);
    return lost;
}
