/*
 * The loader of library.h: dlopen, and dlsym for each function of a table.
 */
#include "base/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"

static int resolve_all(const ms__library *library, void *handle, const char *path, ms_error *err)
{
    for (size_t i = 0; i < library->count; i++) {
        const ms__library_function *wanted = &library->functions[i];
        void *address = ms__fault(MS_FAULT_DRIVER, NULL) ? NULL : dlsym(handle, wanted->symbol);
        if (address == NULL) {
            return ms_fail(err, MS_ENOTSUP, "%s has no %s", path, wanted->symbol);
        }
        memcpy((char *)library->table + wanted->offset, &address, sizeof address);
    }
    return MS_OK;
}

/* Under the lock. */
static int library_load_locked(ms__library *library, const char *path, ms_error *err)
{
    if (ms__fault(MS_FAULT_DRIVER, NULL)) {
        return ms_fail(err, MS_ENOTSUP, "loading %s failed as a test asked", path);
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        return ms_fail(err, MS_ENOTSUP, "no %s: %s", library->what, dlerror());
    }
    int rc = resolve_all(library, handle, path, err);
    if (rc == MS_OK) {
        library->is_loaded = true;
    } else {
        dlclose(handle);
    }
    return rc;
}

int ms__library_load(ms__library *library, const char *path, ms_error *err)
{
    ms__mutex_lock(&library->lock);
    int rc = library->is_loaded ? MS_OK : library_load_locked(library, path, err);
    ms__mutex_unlock(&library->lock);
    return rc;
}

typedef struct wanted_library {
    const char *begin;
    char *path;
    size_t size;
} wanted_library;

static int stop_at_wanted(struct dl_phdr_info *info, size_t size, void *argument)
{
    const wanted_library *wanted = argument;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash != NULL ? slash + 1 : info->dlpi_name;
    (void)size;
    if (strncmp(name, wanted->begin, strlen(wanted->begin)) != 0) {
        return 0;
    }
    snprintf(wanted->path, wanted->size, "%s", info->dlpi_name);
    return 1;
}

bool ms__library_is_in_process(const char *begin, char *path, size_t size)
{
    return dl_iterate_phdr(stop_at_wanted, &(wanted_library){.begin = begin, .path = path, .size = size}) != 0;
}
