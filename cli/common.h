/*
 * What the commands share: exit statuses, messages, output. Used by cmd_*.c only.
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

/* Prints "memscale: <command>: <message>" and where help on the command is found to
 * stderr; returns CLI_USAGE. `command` is NULL if none is known. */
int cli_usage_error(const char *command, const char *fmt, ...) MS_PRINTF(2, 3);

/* Prints "memscale: <message>", one line, for a file that is not what it should be;
 * returns CLI_USAGE. */
int cli_file_error(const char *fmt, ...) MS_PRINTF(1, 2);

/* Whether `path` is there and a directory; else MS_ECONFIG, saying which. For commands that
 * only look: they make no directory from a name that may be misspelt. */
int cli_check_directory(const char *path, ms_error *err);

/* The same for a budget that no plan fits, with the smallest that one does as a JSON document on
 * standard output where that was asked for. */
int cli_infeasible(const ms_error *err, bool as_json);

/* Writes all of `text` to stdout; CLI_FAILED if that fails. cli_finish() tells. */
int cli_print(const char *text);

/* The same for a text that the library made, which is freed here. NULL is out of memory:
 * CLI_FAILED, with a message. */
int cli_print_made(char *text);

/* Sees to standard input, output and error, and shows the library's warnings on the
 * last. main() calls it first. */
void cli_begin(void);

/* Closes stdout and says whether everything reached it: `status`, or CLI_FAILED
 * with a message. main() calls it last. */
int cli_finish(int status);

#endif
