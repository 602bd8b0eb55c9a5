#include "api/plan_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "memscale/pipeline.h"
#include "pipeline/frontier_watch.h"
#include "process/filter.h"
#include "process/process.h"

enum { BODY_MOST = 32 * 1024 * 1024, MEMORY_GIB = 4 };

/* ---- in the worker --------------------------------------------------------------- */

#ifdef __SANITIZE_ADDRESS__
/* The search for leaks opens files; the library's own tests look for them. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void); /* NOLINT: its name */
static bool is_worker;
int __lsan_is_turned_off(void) /* NOLINT */
{
    return is_worker;
}
#endif

static int limit_self(rlim_t most_seconds, ms_error *err)
{
    bool is_filtered;
    struct rlimit seconds = {most_seconds, most_seconds}, nothing = {0, 0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left to read what it makes */
    (void)setrlimit(RLIMIT_CPU, &seconds);
    (void)setrlimit(RLIMIT_CORE, &nothing);
    (void)setrlimit(RLIMIT_FSIZE, &nothing);
    mss_process_cut_off(); /* from the database, which the server itself may reach */
#ifndef __SANITIZE_ADDRESS__ /* which maps terabytes for itself */
    struct rlimit memory = {(rlim_t)MEMORY_GIB << 30, (rlim_t)MEMORY_GIB << 30};
    (void)setrlimit(RLIMIT_AS, &memory);
#else
    is_worker = true;
#endif
    return mss_filter_enter(MSS_STAGE_WORK, &is_filtered,
                            err); /* a machine without filters: Landlock and limits remain */
}

static char *read_all(int file, size_t most, size_t *bytes)
{
    size_t room = 65536, length = 0;
    char *text = ms_malloc(room);
    while (text != NULL) {
        ssize_t got = read(file, text + length, room - length - 1);
        if (got <= 0) {
            break;
        }
        length += (size_t)got;
        if (length + 1 == room) {
            char *larger = room < most ? ms_realloc_array(text, 2 * room, 1) : NULL;
            if (larger == NULL) {
                ms_free(text);
                return NULL;
            }
            text = larger;
            room *= 2;
        }
    }
    if (text != NULL) {
        text[length] = '\0';
        *bytes = length;
    }
    return text;
}

typedef struct work {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_plan *plan;
    ms_frontier *frontier;
    uint64_t points; /* of a frontier */
} work;

static int member_text(const ms__json_at *root, const char *name, char **text, ms_error *err)
{
    ms__json_at object;
    int rc = ms__json_object(root, name, &object);
    if (rc == MS_OK && (*text = ms__json_text(object.value, true)) == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "plan: out of memory");
    }
    return rc;
}

static int read_documents(const ms__json_at *root, bool is_frontier, work *w, ms_error *err)
{
    static const char *const members[] = {"graph", "hardware", "config", "points"};
    char *graph = NULL, *hardware = NULL, *config = NULL;
    ms_config_default(&w->config);
    int rc = ms__json_only(root, members, is_frontier ? 4 : 3);
    if (rc == MS_OK && is_frontier) {
        rc = ms__json_u64(root, "points", 1, MSS_FRONTIER_POINTS_MOST, &w->points);
    }
    if (rc == MS_OK) {
        rc = member_text(root, "graph", &graph, err);
    }
    if (rc == MS_OK) {
        rc = member_text(root, "hardware", &hardware, err);
    }
    if (rc == MS_OK && ms__json_has(root, "config")) {
        rc = member_text(root, "config", &config, err);
    }
    if (rc == MS_OK) {
        rc = ms_graph_parse(graph, &w->graph, err);
    }
    if (rc == MS_OK && (w->hardware = ms_calloc(1, sizeof *w->hardware)) == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "plan: out of memory");
    }
    if (rc == MS_OK) {
        rc = ms_hardware_parse(hardware, w->hardware, err);
    }
    if (rc == MS_OK && config != NULL) {
        rc = ms_config_parse(config, &w->config, err);
    }
    ms_free(graph);
    ms_free(hardware);
    ms_free(config);
    return rc;
}

static void tell_point(void *argument)
{
    (void)argument;
    (void)putchar('.');
    (void)fflush(stdout);
}

static int make_document(work *w, bool is_frontier, char **output, ms_error *err)
{
    int rc = is_frontier ? ms__frontier_make(w->graph, w->hardware, &w->config, (uint32_t)w->points, tell_point, NULL,
                                             &w->frontier, err)
                         : ms_pipeline_plan(w->graph, w->hardware, &w->config, &w->plan, err);
    if (rc == MS_OK) {
        *output = is_frontier ? ms_frontier_json(w->frontier) : ms_plan_to_json(w->plan);
        rc = *output != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "plan: out of memory");
    }
    return rc;
}

static int work_on(const char *text, size_t bytes, bool is_frontier, char **output, ms_error *err)
{
    json_t *tree = NULL;
    ms__json_at root;
    work w = {0};
    int rc = ms__json_parse(text, bytes, "body", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = read_documents(&root, is_frontier, &w, err);
    if (rc == MS_OK) {
        rc = make_document(&w, is_frontier, output, err);
    }
    ms_plan_free(w.plan);
    ms_frontier_free(w.frontier);
    ms_graph_free(w.graph);
    ms_free(w.hardware);
    json_decref(tree);
    return rc;
}

int mss_plan_worker(bool is_frontier)
{
    ms_error err = {0};
    size_t bytes = 0;
    char *output = NULL;
    if (limit_self(is_frontier ? MSS_FRONTIER_SECONDS : MSS_PLAN_SECONDS, &err) != MS_OK) {
        return MSS_PLAN_FAILED;
    }
    char *text = read_all(STDIN_FILENO, BODY_MOST, &bytes);
    int rc = text == NULL ? MS_ENOMEM : work_on(text, bytes, is_frontier, &output, &err);
    ms_free(text);
    (void)fputs(rc == MS_OK ? output : err.text, stdout);
    ms_free(output);
    bool is_written = fflush(stdout) == 0;
    return !is_written            ? MSS_PLAN_FAILED
           : rc == MS_OK          ? MSS_PLAN_MADE
           : rc == MS_EINFEASIBLE ? MSS_PLAN_INFEASIBLE
           : rc == MS_ENOMEM      ? MSS_PLAN_FAILED
                                  : MSS_PLAN_REFUSED;
}

/* ---- in the server --------------------------------------------------------------- */

typedef struct pipes {
    int to_child[2], from_child[2];
} pipes;

static void close_one(int *file)
{
    if (*file >= 0) {
        close(*file);
        *file = -1;
    }
}

static void close_all(pipes *p)
{
    close_one(&p->to_child[0]);
    close_one(&p->to_child[1]);
    close_one(&p->from_child[0]);
    close_one(&p->from_child[1]);
}

static int spawn(pipes *p, bool is_frontier, pid_t *child, ms_error *err)
{
    static char name[] = "memscale-server", plan[] = "plan-worker", frontier[] = "frontier-worker";
    char *arguments[] = {name, is_frontier ? frontier : plan, NULL}, *environment[] = {NULL};
    posix_spawn_file_actions_t actions;
    if (pipe2(p->to_child, O_CLOEXEC) != 0 || pipe2(p->from_child, O_CLOEXEC) != 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "plan: pipe");
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, p->to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, p->from_child[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1); /* the database above all */
    int rc = posix_spawn(child, "/proc/self/exe", &actions, NULL, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    close_one(&p->to_child[0]);
    close_one(&p->from_child[1]);
    return rc == 0 ? MS_OK : ms_fail_errno(err, MS_ESYSTEM, rc, "plan: a worker process");
}

static bool goes_on(const mss_plan_watch *watch, const char *output)
{
    return watch == NULL || watch->look(watch->argument, (uint32_t)strspn(output, "."));
}

/* Sends and receives until the worker closes its end: false at the deadline, where it prints too much or the watcher
 * has seen enough. */
static bool talk(pipes *p, const char *body, size_t bytes, const mss_plan_watch *watch, char **output)
{
    uint64_t seconds = watch != NULL ? MSS_FRONTIER_SECONDS : MSS_PLAN_SECONDS;
    uint64_t deadline_ns = ms_now_ns() + (seconds + 1) * 1000000000;
    size_t sent = 0, length = 0, room = 65536;
    *output = ms_calloc(1, room);
    (void)fcntl(p->to_child[1], F_SETFL, O_NONBLOCK);
    while (*output != NULL && ms_now_ns() < deadline_ns && goes_on(watch, *output)) {
        struct pollfd waits[2] = {{p->from_child[0], POLLIN, 0}, {p->to_child[1], POLLOUT, 0}};
        if (poll(waits, p->to_child[1] >= 0 ? 2 : 1, 1000) < 0 && errno != EINTR) {
            return false;
        }
        if (p->to_child[1] >= 0 && waits[1].revents != 0) {
            ssize_t wrote = write(p->to_child[1], body + sent, bytes - sent);
            sent += wrote > 0 ? (size_t)wrote : 0;
            if (sent == bytes || (wrote < 0 && errno != EAGAIN)) {
                close_one(&p->to_child[1]);
            }
        }
        if (waits[0].revents == 0) {
            continue;
        }
        ssize_t got = read(p->from_child[0], *output + length, room - length - 1);
        if (got <= 0) {
            return got == 0;
        }
        length += (size_t)got;
        (*output)[length] = '\0';
        if (length + 1 == room) {
            char *larger = room < MSS_PLAN_OUTPUT_MOST ? ms_realloc_array(*output, 2 * room, 1) : NULL;
            if (larger == NULL) {
                return false;
            }
            *output = larger;
            room *= 2;
        }
    }
    return false;
}

int mss_plan_run(const char *body, size_t bytes, const mss_plan_watch *watch, int *ending, char **output, ms_error *err)
{
    pipes p = {{-1, -1}, {-1, -1}};
    pid_t child;
    int state = 0;
    int rc = spawn(&p, watch != NULL, &child, err);
    if (rc != MS_OK) {
        close_all(&p);
        return rc;
    }
    bool is_whole = talk(&p, body, bytes, watch, output);
    if (!is_whole) {
        kill(child, SIGKILL);
    }
    close_all(&p);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    *ending = is_whole && WIFEXITED(state) ? WEXITSTATUS(state) : MSS_PLAN_FAILED;
    return MS_OK;
}
