/*
 * `memscale demo`: a small model trains under a budget, beside the unmodified run. The work is Python's
 * (memscale.benchmarks.first).
 */
#include <string.h>

#include "commands.h"
#include "common.h"

static const char help[] =
    "Usage: memscale demo [--steps N] [--report FILE]\n"
    "\n"
    "Trains a six-layer transformer unmodified, then under 60% of the memory that this took, and\n"
    "compares memory, time, losses and gradients. Takes less than a minute on two cores.\n"
    "\n"
    "  --steps N      training steps of each run (4)\n"
    "  --report FILE  writes the report of the wrapped run, one HTML page\n"
    "\n"
    "Needs a Python that has memscale and torch, beside this program or on the PATH.\n";

int cmd_demo(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return cli_print(help);
    }
    return cli_become_python("memscale.benchmarks.first", argc, argv);
}
