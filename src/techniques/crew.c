/*
 * crew.h over the process's OpenMP team if there is one, else over threads of base.
 *
 * torch's operators run on such a team, whose threads stay awake for a while after each operator.
 * Threads beside the team would find the cores taken: with them, AdamW after a backward took 7%
 * longer than on the team.
 */
#include "techniques/crew.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "base/forks.h"

enum { HELPERS_MAX = 255 };

/* The entry point of `#pragma omp parallel`, which GNU's, LLVM's and Intel's libraries have. */
typedef void (*team_run)(ms__thread_body body, void *argument, unsigned threads, unsigned flags);

static team_run run_on_team;
static ms__once team_once = MS__ONCE_INIT;
/* A team does not survive a fork, and does not detect it. */
static atomic_bool is_forked;

static void after_fork_in_child(void)
{
    atomic_store_explicit(&is_forked, true, memory_order_relaxed);
}

static void find_team(void)
{
    void *found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (found != NULL && ms__hear_of_forks(NULL, NULL, after_fork_in_child)) {
        memcpy(&run_on_team, &found, sizeof found);
    }
}

static void run_on_threads(uint32_t threads, const char *name, ms__thread_body body, void *argument)
{
    ms__thread helpers[HELPERS_MAX];
    uint32_t started = 0;
    while (started + 1 < threads && started < HELPERS_MAX) {
        helpers[started] = (ms__thread){0};
        if (ms__thread_start(&helpers[started], name, body, argument, NULL) != MS_OK) {
            break;
        }
        started++;
    }
    body(argument);
    for (uint32_t i = 0; i < started; i++) {
        ms__thread_join(&helpers[i]);
    }
}

void ms__crew_run(uint32_t threads, const char *name, ms__thread_body body, void *argument)
{
    ms__once_run(&team_once, find_team);
    if (threads > 1 && run_on_team != NULL && !atomic_load_explicit(&is_forked, memory_order_relaxed)) {
        run_on_team(body, argument, threads, 0);
    } else {
        run_on_threads(threads, name, body, argument);
    }
}
