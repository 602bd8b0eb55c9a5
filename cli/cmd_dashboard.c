/*
 * `memscale dashboard`: the runs whose logs are below a folder, as pages. The pages are
 * memscale-server's, which is built on its own (server/README.md): this only finds and becomes it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"

static const char help[] =
    "Usage: memscale dashboard [FOLDER] [--port N]\n"
    "\n"
    "Shows the runs whose logs (Config(log_file=...)) are below the folder, old and running, on\n"
    "this machine only. Steps are in a log if the logger \"memscale\" is at level DEBUG.\n"
    "Needs memscale-server beside this program or on the PATH.\n";

enum { PATH_BYTES = 4096 };

/* The server beside this program; false where that can't be told. */
static bool name_neighbour(char path[PATH_BYTES])
{
    static const char name[] = "memscale-server";
    ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 1);
    if (length <= 0) {
        return false;
    }
    path[length] = '\0';
    char *end = strrchr(path, '/') + 1;
    if ((size_t)(end - path) + sizeof name > PATH_BYTES) {
        return false;
    }
    memcpy(end, name, sizeof name);
    return access(path, X_OK) == 0;
}

int cmd_dashboard(int argc, char **argv)
{
    char path[PATH_BYTES];
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return cli_print(help);
    }
    if (name_neighbour(path)) {
        execv(path, (char *const *)(argv - 1)); /* argv[-1] is the program's own name */
    }
    execvp("memscale-server", (char *const *)(argv - 1));
    ms_error err;
    if (errno == ENOENT) {
        (void)ms_fail(&err, MS_ENOTSUP,
                      "dashboard: memscale-server is not installed; it is built with -Dserver=enabled");
    } else {
        (void)ms_fail_errno(&err, MS_ESYSTEM, errno, "dashboard: memscale-server");
    }
    return cli_fail(&err);
}
