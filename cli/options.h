/*
 * The options of a command: a table in, values out. Used by cmd_*.c, so that
 * every command accepts and refuses the same spellings.
 */
#ifndef MS_CLI_OPTIONS_H
#define MS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* One of `flag` and `value` is set, or both for an option whose value may be left out: then
 * the flag tells that it was. */
typedef struct cli_option {
    const char *name; /* with its dashes: "--json" */
    bool *flag;
    const char **value;
} cli_option;

/* What cli_parse() returns when the command should go on; anything else is the
 * status to exit with. */
enum { CLI_GO_ON = -1 };

/*
 * Reads "--flag", "--name VALUE" and "--name=VALUE" of a command, whose name is
 * argv[0]. A value that may be left out is, where the line ends or "--" follows. "--help" prints `help` and ends it. An unknown option, a missing or
 * empty value, a value given to a flag, an option given twice and anything that
 * is no option are errors of usage, named in the message.
 */
int cli_parse(int argc, char **argv, const cli_option *options, size_t count, const char *help);

#endif
