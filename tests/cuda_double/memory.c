/*
 * Ranges: device memory and registered host memory. Device memory is mapped twice: without access at its
 * own address, with access at its shadow's.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

range *range_find(range *list, const unsigned char *begin, size_t bytes)
{
    for (range *one = list; one != NULL; one = one->next) {
        if (begin >= one->begin && begin < one->begin + one->bytes &&
            bytes <= (size_t)(one->begin + one->bytes - begin)) {
            return one;
        }
    }
    return NULL;
}

bool range_touches(const range *list, const unsigned char *begin, size_t bytes)
{
    for (const range *one = list; one != NULL; one = one->next) {
        if (begin < one->begin + one->bytes && one->begin < begin + bytes) {
            return true;
        }
    }
    return false;
}

range *range_remove(range **list, const unsigned char *begin)
{
    for (range **link = list; *link != NULL; link = &(*link)->next) {
        if ((*link)->begin == begin) {
            range *found = *link;
            *link = found->next;
            return found;
        }
    }
    return NULL;
}

bool range_add(range **list, unsigned char *begin, size_t bytes, unsigned char *shadow)
{
    range *made = malloc(sizeof *made);
    if (made == NULL) {
        return false;
    }
    *made = (range){.begin = begin, .bytes = bytes, .shadow = shadow, .next = *list};
    *list = made;
    return true;
}

/* Free bytes of the device. */
size_t device_memory_left(int device)
{
    size_t total = the.memory[device].total;
    size_t used = the.memory[device].taken + the.memory[device].allocated;
    return used < total ? total - used : 0;
}

static void unmap_both(void *shadow, void *outside, size_t bytes)
{
    if (shadow != MAP_FAILED) {
        munmap(shadow, bytes);
    }
    if (outside != MAP_FAILED) {
        munmap(outside, bytes);
    }
}

/* Maps new memory twice; false if that fails. */
static bool map_both(size_t bytes, void **shadow, void **outside)
{
    int file = memfd_create("device", MFD_CLOEXEC);
    if (file < 0) {
        return false;
    }
    bool has_bytes = ftruncate(file, (off_t)bytes) == 0;
    *shadow = has_bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    *outside = has_bytes ? mmap(NULL, bytes, PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (*shadow == MAP_FAILED || *outside == MAP_FAILED) {
        unmap_both(*shadow, *outside, bytes);
        return false;
    }
    return true;
}

int device_memory_new(size_t bytes, unsigned char **address)
{
    int device = current_device();
    void *shadow, *outside;
    if (bytes > device_memory_left(device) || !map_both(bytes, &shadow, &outside)) {
        return OUT_OF_MEMORY;
    }
    if (!range_add(&the.allocations, outside, bytes, shadow)) {
        unmap_both(shadow, outside, bytes);
        return OUT_OF_MEMORY;
    }
    the.allocations->device = device;
    the.memory[device].allocated += bytes;
    memset(shadow, POISON, bytes); /* hides earlier contents */
    the.counts.allocations++;
    *address = outside;
    return OK;
}

bool device_memory_free(unsigned char *address)
{
    range *found = range_remove(&the.allocations, address);
    if (found == NULL) {
        return false;
    }
    order_check_idle(found->begin, found->bytes, "device memory freed");
    the.memory[found->device].allocated -= found->bytes;
    unmap_both(found->shadow, found->begin, found->bytes);
    free(found);
    the.counts.allocations--;
    return true;
}

unsigned char *device_view(unsigned long long pointer, size_t bytes)
{
    const unsigned char *address = (const unsigned char *)(uintptr_t)pointer;
    const range *found = range_find(the.allocations, address, bytes);
    if (found == NULL) {
        violate("the %zu bytes at %p are not in one piece of device memory", bytes, (const void *)address);
        return NULL;
    }
    return found->shadow + (address - found->begin);
}
