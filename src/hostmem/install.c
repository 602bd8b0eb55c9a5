/*
 * The hooks in the allocator's slots: installing and removing them. `free` is replaced first and
 * restored last, so that a block of hostmem never reaches libc. The hooks must not log: a sink
 * may wait for a lock that the caller of free() holds.
 */
#include "hostmem/install.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/forks.h"
#include "base/os/map.h"
#include "base/thread.h"
#include "hostmem/heap.h"
#include "hostmem/slots.h"
#include "hostmem/streamed.h"

typedef int memalign_function(void **out, size_t alignment, size_t bytes);
typedef void free_function(void *block);

static const char DEFAULT_LIBRARY[] = "libc10.so";

typedef struct installation {
    ms__mutex mutex; /* over install and uninstall; taken before the heap's */
    unsigned users;
    const void *library;
    /* Written while the heap accepts tensors, read and used to restore while it does not. */
    ms__got_slot memalign_slot;
    ms__got_slot free_slot;
    _Atomic(ms_hostmem_means) means;
    atomic_bool is_retiring; /* a slot still holds the hook although the last user is gone */
} installation;

/* A log line, sent when no lock is held: the sink may wait for a lock that a caller of free()
 * holds. */
typedef struct notice {
    ms_log_level level;
    char text[2 * MS__GOT_SLOT_REASON_MAX];
} notice;

static installation the_installation = {.mutex = MS__MUTEX_INIT};

/* The functions that the hooks call, set before a hook is installed and never unset: a thread may
 * be inside a hook when the slot is restored. */
static _Atomic(memalign_function *) real_memalign;
static _Atomic(free_function *) real_free;
static _Atomic(ms__got_slot_cell *) free_cell;

/* ---- the hooks ---------------------------------------------------------- */

static void hook_free(void *block)
{
    /* Blocks of hostmem begin on a page: the low bits rule out nearly every other address. */
    if (((uintptr_t)block & 4095) == 0 && block != NULL) {
        int saved_errno = errno;
        bool is_ours = ms__heap_free(block);
        if (is_ours) {
            ms__install_settle();
        }
        errno = saved_errno;
        if (is_ours) {
            return;
        }
    }
    atomic_load_explicit(&real_free, memory_order_relaxed)(block);
}

static bool is_alignment_ours(size_t alignment, size_t bytes)
{
    bool is_valid = alignment >= sizeof(void *) && (alignment & (alignment - 1)) == 0;
    return is_valid && alignment <= (bytes >= MS__HUGE_PAGE_BYTES ? MS__HUGE_PAGE_BYTES : 4096);
}

/* Another tool may have replaced the slot of `free`: then a block of hostmem might never be freed
 * here. */
static bool is_free_ours(void)
{
    ms__got_slot_cell *cell = atomic_load_explicit(&free_cell, memory_order_relaxed);
    return atomic_load_explicit(cell, memory_order_relaxed) == (uintptr_t)hook_free;
}

static int hook_memalign(void **out, size_t alignment, size_t bytes)
{
    if (bytes >= MS_HOSTMEM_MIN_BYTES && is_alignment_ours(alignment, bytes) && is_free_ours()) {
        int saved_errno = errno;
        bool streams = ms__streams();
        void *block = streams ? ms__streamed_alloc(bytes) : ms__heap_alloc(bytes, MS__HEAP_TENSOR);
        errno = saved_errno;
        if (block != NULL) {
            *out = block;
            return 0;
        }
        if (streams) {
            return ENOMEM; /* libc's memory is what must not be used; ms_streamed_failure() has the reason */
        }
    }
    return atomic_load_explicit(&real_memalign, memory_order_relaxed)(out, alignment, bytes);
}

/* ---- restoring the slots ------------------------------------------------ */

/* True once the slot does not hold the hook: restored, or taken by another tool. */
static bool slot_restore(const ms__got_slot *slot, uintptr_t hook)
{
    if (slot->cell != NULL && ms__got_slot_holds(slot, hook)) {
        (void)ms__got_slot_exchange(slot, hook, slot->real);
        return !ms__got_slot_holds(slot, hook);
    }
    return true;
}

static void slots_restore(bool none_left)
{
    installation *self = &the_installation;
    if (slot_restore(&self->memalign_slot, (uintptr_t)hook_memalign) && none_left &&
        slot_restore(&self->free_slot, (uintptr_t)hook_free)) {
        atomic_store_explicit(&self->is_retiring, false, memory_order_relaxed);
    }
}

void ms__install_settle(void)
{
    if (atomic_load_explicit(&the_installation.is_retiring, memory_order_relaxed)) {
        ms__heap_retire(slots_restore);
    }
}

static void slots_retire(void)
{
    ms__heap_accept_tensors(false);
    atomic_store_explicit(&the_installation.is_retiring, true, memory_order_relaxed);
    ms__install_settle();
}

/* ---- taking the slots --------------------------------------------------- */

/* The addresses in the slots must stay valid, whatever closes this library. */
static void stay_loaded(void)
{
    Dl_info self;
    if (dladdr((void *)(uintptr_t)hook_free, &self) != 0 && self.dli_fname != NULL &&
        dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) == NULL) {
        (void)dlerror(); /* the program itself, not a library: it stays anyway */
    }
}

static bool slots_find(const void *library, char reason[MS__GOT_SLOT_REASON_MAX])
{
    installation *self = &the_installation;
    return ms__got_slot_find(library, "posix_memalign", (uintptr_t)hook_memalign, &self->memalign_slot, reason) &&
           ms__got_slot_find(library, "free", (uintptr_t)hook_free, &self->free_slot, reason);
}

static bool slot_take(const ms__got_slot *slot, uintptr_t hook)
{
    return slot->found == hook || ms__got_slot_exchange(slot, slot->found, hook);
}

static bool slots_take(const char *name, char reason[MS__GOT_SLOT_REASON_MAX])
{
    installation *self = &the_installation;
    const void *library = ms__got_slot_library(name);
    if (library == NULL) {
        snprintf(reason, MS__GOT_SLOT_REASON_MAX, "%s is not loaded", name);
        return false;
    }
    if (atomic_load(&self->is_retiring) && library != self->library) {
        snprintf(reason, MS__GOT_SLOT_REASON_MAX, "blocks of the library served before %s still live", name);
        return false;
    }
    /* First of all: from here on no freeing thread restores the slots that are found below. */
    ms__heap_accept_tensors(true);
    self->library = library;
    if (slots_find(library, reason)) {
        atomic_store(&real_memalign, (memalign_function *)self->memalign_slot.real);
        atomic_store(&real_free, (free_function *)self->free_slot.real);
        atomic_store(&free_cell, self->free_slot.cell);
        if (slot_take(&self->free_slot, (uintptr_t)hook_free) &&
            slot_take(&self->memalign_slot, (uintptr_t)hook_memalign)) {
            atomic_store(&self->is_retiring, false);
            return true;
        }
        snprintf(reason, MS__GOT_SLOT_REASON_MAX, "the slots of %s cannot be written", name);
    }
    slots_retire();
    return false;
}

/* ---- without the slots -------------------------------------------------- */

/* Maps of glibc are not cached, so smaller blocks would fault too often. The other keeps the heap's top from
 * shrinking and growing at every free. */
enum { FALL_BACK_MMAP_BYTES = 1 << 20, TRIM_THRESHOLD_BYTES = 8 << 20 };

#if defined(__GLIBC__)
/* Whether `malloc` is glibc's own. Looks at the target of this library's calls: in a program at
 * fixed addresses dlsym() may return the program's stub. */
static bool is_malloc_glibcs(void)
{
    Dl_info info;
    struct link_map *here = NULL;
    ms__got_slot slot;
    char reason[MS__GOT_SLOT_REASON_MAX];
    uintptr_t used = (uintptr_t)dlsym(RTLD_DEFAULT, "malloc");
    if (dladdr1(&the_installation, &info, (void **)&here, RTLD_DL_LINKMAP) != 0 && here != NULL &&
        ms__got_slot_find(here, "malloc", 0, &slot, reason)) {
        used = slot.real;
    }
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc == NULL) {
        (void)dlerror();
        return false;
    }
    bool is_glibcs = used == (uintptr_t)dlsym(libc, "malloc");
    (void)dlclose(libc);
    return is_glibcs;
}
#endif

static bool glibc_set_thresholds(void)
{
#if defined(__GLIBC__)
    return is_malloc_glibcs() && mallopt(M_MMAP_THRESHOLD, FALL_BACK_MMAP_BYTES) == 1 &&
           mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES) == 1;
#else
    return false;
#endif
}

/* glibc's adjusted thresholds cannot be queried, and its adjustment cannot be switched on again; with
 * big blocks allocated and freed, it ends at these. */
enum { ADJUSTED_MMAP_THRESHOLD_BYTES = 32 << 20, ADJUSTED_TRIM_THRESHOLD_BYTES = 64 << 20 };

static void glibc_reset_thresholds(void)
{
#if defined(__GLIBC__)
    (void)mallopt(M_MMAP_THRESHOLD, ADJUSTED_MMAP_THRESHOLD_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, ADJUSTED_TRIM_THRESHOLD_BYTES);
#endif
}

static ms_hostmem_means glibc_fall_back(notice *note)
{
    char reason[MS__GOT_SLOT_REASON_MAX];
    memcpy(reason, note->text, sizeof reason);
    note->level = MS_LOG_WARNING;
    if (glibc_set_thresholds()) {
        snprintf(note->text, sizeof note->text,
                 "%s; instead glibc maps every block of 1 MiB and more, which costs "
                 "page faults and has no byte counters",
                 reason);
        return MS_HOSTMEM_MALLOPT;
    }
    snprintf(note->text, sizeof note->text,
             "%s, and glibc's allocator is not in use: resident memory may stay above live bytes", reason);
    return MS_HOSTMEM_NONE;
}

/* ---- install and uninstall ---------------------------------------------- */

static int check_same_library(const char *name, ms_error *err)
{
    if (ms__got_slot_library(name) == the_installation.library) {
        return MS_OK;
    }
    return ms_fail(err, MS_ESTATE, "hostmem: cannot serve %s, because another library is served already", name);
}

static int install_locked(const char *name, notice *note, ms_error *err)
{
    installation *self = &the_installation;
    if (atomic_load(&self->means) == MS_HOSTMEM_SLOTS) {
        int rc = check_same_library(name, err);
        self->users += rc == MS_OK;
        return rc;
    }
    /* Also after a fall-back: the library may have been loaded since then. */
    stay_loaded();
    if (slots_take(name, note->text)) {
        atomic_store(&self->means, MS_HOSTMEM_SLOTS);
        note->level = MS_LOG_INFO;
        snprintf(note->text, sizeof note->text,
                 "CPU tensors of 128 KiB and more get memory maps of their own (through %s)", name);
    } else {
        atomic_store(&self->means, glibc_fall_back(note));
    }
    self->users++;
    return MS_OK;
}

int ms__install(const char *library, ms_hostmem_means *means, ms_error *err)
{
    if (!ms__install_cover_fork()) {
        return ms_fail(err, MS_ENOMEM, "hostmem: no memory for the fork handlers");
    }
    notice note = {.text = ""};
    ms__mutex_lock(&the_installation.mutex);
    int rc = install_locked(library != NULL ? library : DEFAULT_LIBRARY, &note, err);
    if (rc == MS_OK && means != NULL) {
        *means = atomic_load(&the_installation.means);
    }
    ms__mutex_unlock(&the_installation.mutex);
    if (note.text[0] != '\0') {
        ms_log(note.level, "hostmem: %s", note.text);
    }
    return rc;
}

void ms__uninstall(void)
{
    installation *self = &the_installation;
    ms__mutex_lock(&self->mutex);
    if (self->users > 0 && --self->users == 0) {
        if (atomic_load(&self->means) == MS_HOSTMEM_SLOTS) {
            slots_retire();
        } else if (atomic_load(&self->means) == MS_HOSTMEM_MALLOPT) {
            glibc_reset_thresholds();
        }
        ms__heap_set_ceiling(0);
        atomic_store(&self->means, MS_HOSTMEM_NONE);
    }
    ms__mutex_unlock(&self->mutex);
}

ms_hostmem_means ms__install_means(void)
{
    return atomic_load(&the_installation.means);
}

/* ---- fork --------------------------------------------------------------- */

static bool is_fork_covered;

static void before_fork(void)
{
    ms__mutex_lock(&the_installation.mutex);
    ms__heap_before_fork();
}

static void after_fork_in_parent(void)
{
    ms__heap_after_fork(false);
    ms__mutex_unlock(&the_installation.mutex);
}

static void after_fork_in_child(void)
{
    ms__heap_after_fork(true);
    ms__mutex_unlock(&the_installation.mutex);
}

static void cover_fork(void)
{
    is_fork_covered = ms__hear_of_forks(before_fork, after_fork_in_parent, after_fork_in_child);
}

bool ms__install_cover_fork(void)
{
    static ms__once once = MS__ONCE_INIT;
    ms__once_run(&once, cover_fork);
    return is_fork_covered;
}
