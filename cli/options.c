/* The parser behind options.h. */
#include "options.h"

#include <string.h>

#include "common.h"

static const cli_option *find_option(const cli_option *options, size_t count, const char *word, size_t length)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(options[i].name) == length && strncmp(options[i].name, word, length) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

static int set_flag(const char *command, const cli_option *option, const char *value)
{
    if (value != NULL) {
        return cli_usage_error(command, "%s takes no value", option->name);
    }
    if (*option->flag || (option->value != NULL && *option->value != NULL)) {
        return cli_usage_error(command, "%s is given twice", option->name);
    }
    *option->flag = true;
    return CLI_GO_ON;
}

static int set_value(const char *command, const cli_option *option, const char *value)
{
    if (value == NULL || value[0] == '\0') {
        return cli_usage_error(command, "%s needs a value", option->name);
    }
    if (*option->value != NULL || (option->flag != NULL && *option->flag)) {
        return cli_usage_error(command, "%s is given twice", option->name);
    }
    *option->value = value;
    return CLI_GO_ON;
}

/* True if the option at `i` omits its optional value. */
static bool is_bare(const cli_option *option, int argc, char **argv, int i)
{
    return option->flag != NULL && (i + 1 == argc || strncmp(argv[i + 1], "--", 2) == 0);
}

int cli_parse(int argc, char **argv, const cli_option *options, size_t count, const char *help)
{
    const char *command = argv[0];
    int status = CLI_GO_ON;
    for (int i = 1; i < argc && status == CLI_GO_ON; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            return cli_print(help);
        }
        if (word[0] != '-') {
            return cli_usage_error(command, "unexpected argument \"%s\"", word);
        }
        size_t length = strcspn(word, "=");
        const char *value = word[length] == '=' ? word + length + 1 : NULL;
        const cli_option *option = find_option(options, count, word, length);
        if (option == NULL) {
            return cli_usage_error(command, "unknown option %.*s", (int)length, word);
        }
        if (option->value == NULL || (value == NULL && is_bare(option, argc, argv, i))) {
            status = set_flag(command, option, value);
        } else {
            if (value == NULL && i + 1 < argc) {
                value = argv[++i];
            }
            status = set_value(command, option, value);
        }
    }
    return status;
}
