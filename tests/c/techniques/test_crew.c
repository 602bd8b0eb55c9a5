/*
 * A crew runs on the process's OpenMP team if there is one, once on each of its threads; in a forked
 * child, which has no team, it starts threads.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "techniques/crew.h"
#include "test_common.h"

enum { THREADS = 3, CHILD_SECONDS = 20 };

typedef struct roll {
    atomic_uint count;
    pthread_t members[THREADS];
} roll;

/* All must be here at once, so that none is counted twice. */
static void sign(void *argument)
{
    roll *present = argument;
    unsigned place = atomic_fetch_add(&present->count, 1);
    if (place < THREADS) {
        present->members[place] = pthread_self();
    }
    while (atomic_load(&present->count) < THREADS) {
        usleep(100);
    }
}

static bool is_in(const roll *present, pthread_t thread)
{
    for (unsigned i = 0; i < THREADS; i++) {
        if (pthread_equal(present->members[i], thread)) {
            return true;
        }
    }
    return false;
}

static void the_team_stays_from_call_to_call(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizer does not know that library's barriers */
#endif
    if (dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL) == NULL) {
        skip();
    }
    roll first = {0}, second = {0};
    ms__crew_run(THREADS, "crew", sign, &first);
    ms__crew_run(THREADS, "crew", sign, &second);
    assert_int_equal(first.count, THREADS);
    assert_int_equal(second.count, THREADS);
    assert_true(is_in(&first, pthread_self()));
    for (unsigned i = 0; i < THREADS; i++) {
        assert_true(is_in(&second, first.members[i]));
    }
}

static void a_forked_child_has_threads_of_its_own(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(CHILD_SECONDS);
        roll present = {0};
        ms__crew_run(THREADS, "crew", sign, &present);
        _exit(present.count == THREADS ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void one_thread_is_the_callers(void **state)
{
    (void)state;
    roll present = {.count = THREADS - 1};
    ms__crew_run(1, "crew", sign, &present);
    assert_true(pthread_equal(present.members[THREADS - 1], pthread_self()));
}

static void the_number_of_a_thread_is_read(void **state)
{
    (void)state;
    void *library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        skip();
    }
    void (*set)(int);
    void *found = dlsym(library, "omp_set_num_threads");
    memcpy(&set, &found, sizeof found);
    set(3);
    assert_int_equal(ms_team_threads(), 3);
    set(2);
    assert_int_equal(ms_team_threads(), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_a_thread_is_read),
        cmocka_unit_test(the_team_stays_from_call_to_call),
        cmocka_unit_test(a_forked_child_has_threads_of_its_own),
        cmocka_unit_test(one_thread_is_the_callers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
