/*
 * Exit statuses, messages and output of the commands. Used by cmd_*.c only.
 * Tests: tests/cli/main.golden.
 */
#ifndef MS_CLI_COMMON_H
#define MS_CLI_COMMON_H

#include "memscale/base.h"

enum {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the work could not be done */
    CLI_USAGE = 2,  /* the command line is wrong */
};

/* Prints "memscale: <text of the error>" to stderr; returns CLI_FAILED. */
int cli_fail(const ms_error *err);

/* Prints "memscale: <command>: <message>" and a pointer to the command's help to stderr; returns CLI_USAGE.
 * `command` is NULL if it is unknown. */
int cli_usage_error(const char *command, const char *fmt, ...) MS_PRINTF(2, 3);

/* Prints "memscale: <message>", one line, for an unsuitable file; returns CLI_USAGE. */
int cli_file_error(const char *fmt, ...) MS_PRINTF(1, 2);

/* MS_ECONFIG if `path` does not exist or is not a directory. For commands that only read: they must not make a
 * directory from a misspelt name. */
int cli_check_directory(const char *path, ms_error *err);

/* As cli_fail(), for a budget that no plan fits. With `as_json` also prints the smallest budget that fits as a
 * JSON document to stdout. */
int cli_infeasible(const ms_error *err, bool as_json);

/* Writes all of `text` to stdout; CLI_FAILED if that fails. cli_finish() prints the message. */
int cli_print(const char *text);

/* The same for a text made by the library; frees it. NULL means out of memory: CLI_FAILED, with a message. */
int cli_print_made(char *text);

enum { CLI_PATH_BYTES = 4096 };

/* The path of a program that lies beside this one; false if there is none that may be run. */
bool cli_neighbour(const char *name, char path[CLI_PATH_BYTES]);

/* Becomes `python3 -m module` with the arguments after argv[0]: the Python beside this program, else the one on the
 * PATH. Returns only on failure, as cli_fail(). */
int cli_become_python(const char *module, int argc, char **argv);

/* Runs `python3 -m module` with these words (the last is NULL), found as above, and takes what it writes to stdout; its
 * messages go to stderr. CLI_OK, or the exit status after a message. The caller frees *text with ms_free() in any case. */
int cli_ask_python(const char *command, const char *module, const char *const *words, char **text);

/* Makes sure that stdin, stdout and stderr are open, and prints the library's warnings to stderr. main() calls it
 * first. */
void cli_begin(void);

/* Closes stdout. Returns `status`, or CLI_FAILED with a message if some output was lost. main() calls it last. */
int cli_finish(int status);

#endif
