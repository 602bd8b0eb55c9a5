/*
 * Engines, fork() and exit(). Before the process forks, every engine is paused: no piece is
 * in a lane, so no direct read can land in a page that the child shares, and every lock is
 * held, so that the child finds them free. The parent continues. The child has none of the
 * threads, so its engines are dead: each call fails, and closing frees the inherited parts.
 *
 * exit() runs destructors that free memory of transfers in flight, so the engines are paused
 * before it, for good.
 *
 * The list of open engines is this room's only global state: fork handlers have no argument.
 */
#include <stdlib.h>

#include "base/fault.h"
#include "base/forks.h"
#include "base/units.h"
#include "offload/engine.h"

static ms__mutex registry_lock = MS__MUTEX_INIT;
static ms__link registry = {&registry, &registry};

#define ENGINE_OF(link) MS__LIST_MEMBER(link, ms_offload, registry_link)

/* A process ends even if a disk hangs. */
#define EXIT_TIMEOUT_NS (UINT64_C(2) * 1000 * 1000 * 1000)

/* Bounded like every wait: a disk that hangs must not hang the fork. The copy of an engine in a
 * child, which may fork again, has no pieces in lanes. */
static void pause_engine(ms_offload *engine, uint64_t timeout_ns)
{
    ms__mutex_lock(&engine->lock);
    uint64_t deadline_ns = ms__add_sat(ms_now_ns(), timeout_ns);
    engine->is_paused = true;
    while (!engine->is_forked && engine->running_count > 0 &&
           ms__cond_wait_until(&engine->changed, &engine->lock, deadline_ns)) {
    }
}

static void before_fork(void)
{
    ms__mutex_lock(&registry_lock);
    for (ms__link *link = registry.next; link != &registry; link = link->next) {
        ms_offload *engine = ENGINE_OF(link);
        pause_engine(engine, engine->timeout_ns);
    }
}

static void before_exit(void)
{
    ms__mutex_lock(&registry_lock);
    for (ms__link *link = registry.next; link != &registry; link = link->next) {
        ms_offload *engine = ENGINE_OF(link);
        if (!engine->is_forked) { /* a child's copy runs nothing */
            pause_engine(engine, ms__min_u64(engine->timeout_ns, EXIT_TIMEOUT_NS));
            ms__mutex_unlock(&engine->lock);
        }
    }
    ms__mutex_unlock(&registry_lock);
}

static void after_fork(bool is_child)
{
    for (ms__link *link = registry.next; link != &registry; link = link->next) {
        ms_offload *engine = ENGINE_OF(link);
        if (is_child) { /* stays set in the child's own children; written nowhere else */
            engine->is_forked = true;
        }
        engine->is_paused = false;
        if (!engine->is_forked) {
            ms__cond_broadcast(&engine->work_ready);
        }
        ms__mutex_unlock(&engine->lock);
    }
    ms__mutex_unlock(&registry_lock);
}

static void in_parent(void)
{
    after_fork(false);
}

static void in_child(void)
{
    after_fork(true);
}

/* Installs each handler once; the next engine tries again if memory was short. */
static bool install_handlers(void)
{
    static bool hears_of_forks, hears_of_exit;
    hears_of_forks = hears_of_forks || ms__hear_of_forks(before_fork, in_parent, in_child);
    hears_of_exit = hears_of_exit || (hears_of_forks && !ms__fault(MS_FAULT_SYSTEM, NULL) && atexit(before_exit) == 0);
    return hears_of_exit;
}

int ms__fork_prepare(ms_error *err)
{
    /* Not registry_lock: a fork takes that while the system holds its list of handlers. */
    static ms__mutex lock = MS__MUTEX_INIT;
    ms__mutex_lock(&lock);
    bool is_told = install_handlers();
    ms__mutex_unlock(&lock);
    return is_told ? MS_OK : ms_fail(err, MS_ENOMEM, "no memory for the handlers of fork and exit");
}

void ms__fork_register(ms_offload *engine)
{
    ms__mutex_lock(&registry_lock);
    ms__list_append(&registry, &engine->registry_link);
    ms__mutex_unlock(&registry_lock);
}

void ms__fork_unregister(ms_offload *engine)
{
    ms__mutex_lock(&registry_lock);
    ms__list_remove(&engine->registry_link);
    ms__mutex_unlock(&registry_lock);
}
