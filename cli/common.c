/* Messages and output of the commands; see common.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

static void show_warning(void *context, ms_log_level level, const char *line)
{
    (void)context;
    if (level >= MS_LOG_WARNING) {
        fprintf(stderr, "memscale: warning: %s\n", line);
    }
}

int cli_fail(const ms_error *err)
{
    fprintf(stderr, "memscale: %s\n", err->text);
    return CLI_FAILED;
}

int cli_usage_error(const char *command, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "memscale: %s%s", command != NULL ? command : "", command != NULL ? ": " : "");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\nTry \"memscale %s%s--help\".\n", command != NULL ? command : "", command != NULL ? " " : "");
    va_end(args);
    return CLI_USAGE;
}

int cli_file_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("memscale: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    return CLI_USAGE;
}

int cli_infeasible(const ms_error *err, bool as_json)
{
    if (as_json) {
        printf("{\n  \"version\": 1,\n  \"feasible\": false,\n  \"smallest_budget_bytes\": %" PRIu64 "\n}\n",
               err->hint_bytes);
    }
    return cli_fail(err);
}

/* The errno of the first failed write of the output; 0: none. A later write may succeed, but the lost output stays
 * lost. */
static int output_errno;

int cli_print(const char *text)
{
    if (fputs(text, stdout) >= 0) {
        return CLI_OK;
    }
    output_errno = output_errno != 0 ? output_errno : errno;
    return CLI_FAILED;
}

int cli_print_made(char *text)
{
    if (text == NULL) {
        ms_error err;
        ms_fail(&err, MS_ENOMEM, "out of memory");
        return cli_fail(&err);
    }
    int status = cli_print(text);
    ms_free(text);
    return status;
}

int cli_finish(int status)
{
    bool had_failed = ferror(stdout) != 0;
    if (fclose(stdout) == 0 && !had_failed) {
        return status;
    }
    output_errno = output_errno != 0 ? output_errno : errno;
    fprintf(stderr, "memscale: writing the output: %s\n", strerror(output_errno));
    return CLI_FAILED;
}

bool cli_neighbour(const char *name, char path[CLI_PATH_BYTES])
{
    char self[CLI_PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length <= 0) {
        return false;
    }
    self[length] = '\0';
    int folder_bytes = (int)(strrchr(self, '/') + 1 - self);
    int path_bytes = snprintf(path, CLI_PATH_BYTES, "%.*s%s", folder_bytes, self, name);
    return path_bytes > 0 && path_bytes < CLI_PATH_BYTES && access(path, X_OK) == 0;
}

/* Without this the next opened file would get the number of a standard descriptor that the caller closed, and
 * messages would be written into that file. Opened in the wrong direction, the descriptor still fails. */
void cli_begin(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) {
            _exit(CLI_FAILED); /* no stream for a message */
        }
    }
    ms_log_set_sink(show_warning, NULL);
}

int cli_check_directory(const char *path, ms_error *err)
{
    struct stat found;
    if (stat(path, &found) != 0) {
        return ms_fail(err, MS_ECONFIG, "disk_offload_dir: %s: %s; this command does not make it", path,
                       strerror(errno));
    }
    if (!S_ISDIR(found.st_mode)) {
        return ms_fail(err, MS_ECONFIG, "disk_offload_dir: %s is not a directory", path);
    }
    return MS_OK;
}
