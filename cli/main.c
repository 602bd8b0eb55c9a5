/*
 * Entry of the `memscale` program: finds the command in commands.h and passes the rest of the line to it.
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "common.h"

typedef struct command {
    const char *name;
    const char *text;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
#define COMMAND_ROW(name, text) {#name, text, cmd_##name},
    CLI_COMMANDS(COMMAND_ROW)
#undef COMMAND_ROW
        {NULL, NULL, NULL},
};

static void print_help(FILE *to)
{
    fputs("Usage: memscale <command> [options]\n"
          "       memscale <command> --help, or memscale help <command>\n"
          "       memscale --version\n"
          "\n"
          "Plans training steps under a byte budget.\n"
          "\n"
          "Commands:\n",
          to);
    for (const command *c = commands; c->name != NULL; c++) {
        fprintf(to, "  %-10s %s\n", c->name, c->text);
    }
}

static const command *find_command(const char *word)
{
    for (const command *c = commands; c->name != NULL; c++) {
        if (strcmp(word, c->name) == 0) {
            return c;
        }
    }
    return NULL;
}

/* "help": the program's; "help COMMAND": the command's own. */
static int help_on(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stdout);
        return CLI_OK;
    }
    static char option[] = "--help";
    char *line[] = {argv[1], option, NULL};
    const command *found = find_command(argv[1]);
    if (argc > 2) {
        return cli_usage_error(NULL, "help: unexpected argument \"%s\"", argv[2]);
    }
    return found != NULL ? found->run(2, line) : cli_usage_error(NULL, "help: unknown command \"%s\"", argv[1]);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    bool is_version = strcmp(word, "--version") == 0, is_help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
    if ((is_version || is_help) && argc > 2) {
        return cli_usage_error(NULL, "%s: unexpected argument \"%s\"", word, argv[2]);
    }
    if (is_version) {
        printf("memscale %s\n", ms_version());
        return CLI_OK;
    }
    if (is_help) {
        print_help(stdout);
        return CLI_OK;
    }
    if (strcmp(word, "help") == 0) {
        return help_on(argc - 1, argv + 1);
    }
    const command *found = find_command(word);
    if (found == NULL) {
        return cli_usage_error(NULL, "unknown %s \"%s\"", word[0] == '-' ? "option" : "command", word);
    }
    return found->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    cli_begin();
    return cli_finish(run_command(argc, argv));
}
