/*
 * The options of a command: a table in, values out. Used by cmd_*.c, so that every command accepts the same
 * spellings.
 * Tests: tests/cli/main.golden.
 */
#ifndef MS_CLI_OPTIONS_H
#define MS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* One of `flag` and `value` is set. Both are set for an option whose value may be omitted; the flag then says that
 * it was. */
typedef struct cli_option {
    const char *name; /* with its dashes: "--json" */
    bool *flag;
    const char **value;
} cli_option;

/* Returned by cli_parse() if the command should continue; any other result is the exit status. */
enum { CLI_GO_ON = -1 };

/*
 * Reads "--flag", "--name VALUE" and "--name=VALUE" of a command, whose name is argv[0]. An optional value is omitted
 * if the line ends or "--" follows. "--help" prints `help` and ends the command. Usage errors, named in the message:
 * an unknown option, a missing or empty value, a value for a flag, an option given twice, and an argument that is not
 * an option.
 */
int cli_parse(int argc, char **argv, const cli_option *options, size_t count, const char *help);

#endif
