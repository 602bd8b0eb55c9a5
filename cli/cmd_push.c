/*
 * `memscale push`: sends logs of runs to a memscale-server. The library decides what is sent (src/observability/push.h);
 * HTTP and TLS are Python's, which is there wherever runs are made, so that the program itself needs no TLS library.
 * The program becomes that Python.
 */
#include <string.h>

#include "commands.h"
#include "common.h"

static const char help[] =
    "Usage: memscale push [FOLDER|FILE ...] [options]\n"
    "\n"
    "Sends logs of runs (Config(log_file=...)), finished or growing, to a memscale-server. It may be\n"
    "stopped and started again at any time: the server knows how far each run is, and counts no step\n"
    "twice. Steps are in a log if the logger \"memscale\" is at level DEBUG.\n"
    "\n"
    "  --server URL         https://..., or http:// on this machine (default: MEMSCALE_SERVER)\n"
    "  --token-file FILE    holds a token with the scope runs:write (default: MEMSCALE_TOKEN)\n"
    "  --project NAME       of the runs; --name NAME: instead of the log's file name\n"
    "  --follow             go on with what the logs get later, until Ctrl-C\n"
    "  --ended              the logs grow no more: runs without an end in their log have stopped\n"
    "  --patience SECONDS   give up if the server takes nothing for so long (60; 0: never)\n"
    "  --allow-http         plain http to another machine: everyone on the way can read the token\n"
    "\n"
    "Sent of a run: its numbers, its plan, the class of the model, the log's file name. Not sent:\n"
    "messages, paths, host names. Needs a Python that has memscale, beside this program or on the PATH.\n";

int cmd_push(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return cli_print(help);
    }
    return cli_become_python("memscale.observability.push", argc, argv);
}
