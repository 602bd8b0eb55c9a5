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

int cmd_dashboard(int argc, char **argv)
{
    char path[CLI_PATH_BYTES];
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return cli_print(help);
    }
    if (cli_neighbour("memscale-server", path)) {
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
