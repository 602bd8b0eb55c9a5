/*
 * Commands whose work is Python's, whole or in part: the program finds the Python that has memscale, and becomes it or
 * reads what it prints.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "plan/text.h"

extern char **environ;

enum { WORDS_BEFORE = 4, READ_BYTES = 1 << 16 };

/* `python3 -P -m module`, then `count` words. NULL without memory. Only the array is the caller's. */
static char **make_line(const char *module, const char *const *words, size_t count)
{
    /* -P: a folder that happens to hold a memscale or an http.py is not where modules come from. */
    const char *const before[WORDS_BEFORE] = {"python3", "-P", "-m", module};
    char **line = ms_calloc(WORDS_BEFORE + count + 1, sizeof *line);
    if (line != NULL) {
        memcpy(line, before, sizeof before);
        if (count > 0) {
            memcpy(line + WORDS_BEFORE, words, count * sizeof *line);
        }
    }
    return line;
}

/* The Python beside this program if there is one. Python finds its packages by the name that it was started with. */
static void choose_python(char **line, char path[CLI_PATH_BYTES])
{
    if (cli_neighbour(line[0], path)) {
        line[0] = path;
    }
}

int cli_become_python(const char *module, int argc, char **argv)
{
    char path[CLI_PATH_BYTES];
    ms_error err;
    char **line = make_line(module, (const char *const *)argv + 1, (size_t)argc - 1);
    if (line == NULL) {
        (void)ms_fail(&err, MS_ENOMEM, "%s: out of memory", argv[0]);
        return cli_fail(&err);
    }
    choose_python(line, path);
    execvp(line[0], line);
    (void)ms_fail_errno(&err, MS_ESYSTEM, errno, "%s: python3", argv[0]);
    ms_free(line);
    return cli_fail(&err);
}

/* ---- a question ----------------------------------------------------------------------------- */

/* Starts the line with its stdout in *out. 0 or an errno. */
static int start(char **line, pid_t *child, FILE **out)
{
    char path[CLI_PATH_BYTES];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return errno;
    }
    posix_spawn_file_actions_t actions;
    int failure = posix_spawn_file_actions_init(&actions);
    if (failure == 0) {
        failure = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        choose_python(line, path);
        failure = failure != 0 ? failure : posix_spawnp(child, line[0], &actions, NULL, line, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    *out = failure == 0 ? fdopen(ends[0], "r") : NULL;
    if (*out == NULL) {
        close(ends[0]);
    }
    return failure;
}

static int read_all(FILE *out, char **text)
{
    ms__text made = {0};
    char part[READ_BYTES];
    size_t bytes;
    while ((bytes = fread(part, 1, sizeof part - 1, out)) > 0) {
        part[bytes] = '\0';
        ms__text_add(&made, "%s", part);
    }
    *text = ms__text_take(&made);
    return *text != NULL ? MS_OK : MS_ENOMEM;
}

static int wait_for(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return CLI_FAILED;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
}

int cli_ask_python(const char *command, const char *module, const char *const *words, char **text)
{
    ms_error err;
    pid_t child = -1;
    FILE *out = NULL;
    size_t count = 0;
    while (words[count] != NULL) {
        count++;
    }
    *text = NULL;
    char **line = make_line(module, words, count);
    int failure = line != NULL ? start(line, &child, &out) : ENOMEM;
    ms_free(line);
    if (failure != 0) {
        (void)ms_fail_errno(&err, MS_ESYSTEM, failure,
                            "%s: a trace answers this; it needs a Python that has memscale and torch: python3",
                            command);
        return cli_fail(&err);
    }
    int rc = out != NULL ? read_all(out, text) : MS_ENOMEM;
    if (out != NULL) {
        fclose(out);
    }
    int status = wait_for(child);
    if (status == CLI_OK && rc != MS_OK) {
        (void)ms_fail(&err, rc, "python3: out of memory");
        return cli_fail(&err);
    }
    return status;
}
