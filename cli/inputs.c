/*
 * Inputs of several commands: a number of bytes, a file's text, a machine.
 */
#include "inputs.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/os/file.h"
#include "base/units.h"
#include "common.h"

enum { FILE_MOST_BYTES = 1 << 30 };

static bool unit_of(const char *text, uint64_t *unit)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"kB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", 1 << 10},
        {"MiB", 1 << 20},
        {"GiB", 1 << 30},
        {"TiB", (uint64_t)1 << 40},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcasecmp(text, units[i].name) == 0) {
            *unit = units[i].bytes;
            return true;
        }
    }
    return false;
}

/* Parses a number of bytes; one beyond 64 bits gives UINT64_MAX. False if it is not a number. */
static bool parse_bytes(const char *text, uint64_t *bytes)
{
    uint64_t whole = 0, fraction = 0, scale = 1, unit = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        whole = ms__add_sat(ms__mul_sat(whole, 10), (uint64_t)(*at - '0'));
    }
    bool digits = at > text;
    if (*at == '.') {
        const char *point = at++;
        for (; *at >= '0' && *at <= '9'; at++) {
            if (scale < 1000000) {
                scale *= 10;
                fraction = fraction * 10 + (uint64_t)(*at - '0');
            }
        }
        digits = digits && at > point + 1;
    }
    while (*at == ' ') {
        at++;
    }
    if (!digits || !unit_of(at, &unit)) {
        return false;
    }
    *bytes = ms__add_sat(ms__mul_sat(whole, unit), fraction * (unit / scale) + fraction * (unit % scale) / scale);
    return true;
}

int cli_parse_bytes(const char *command, const char *option, const char *text, uint64_t least, uint64_t *bytes)
{
    if (!parse_bytes(text, bytes)) {
        return cli_usage_error(command, "%s %s: give bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB",
                               option, text);
    }
    if (*bytes < least) {
        return cli_usage_error(command, "%s %s: give at least %" PRIu64 " byte", option, text, least);
    }
    return *bytes <= INT64_MAX
               ? CLI_OK
               : cli_usage_error(command, "%s %s: give at most %" PRId64 " bytes", option, text, INT64_MAX);
}

int cli_read_text(const char *path, char **text, ms_error *err)
{
    size_t length = 0;
    *text = NULL;
    int rc = ms__file_read_text(path, FILE_MOST_BYTES, text, &length, err);
    if (rc == MS_OK && strlen(*text) != length) {
        rc = ms_fail(err, MS_EFORMAT, "byte %zu is a null byte", strlen(*text));
    }
    if (rc != MS_OK) {
        ms_free(*text);
        *text = NULL;
    }
    return rc;
}

int cli_file_status(const char *command, const char *option, const char *path, int rc, const ms_error *err)
{
    if (rc == MS_OK) {
        return CLI_OK;
    }
    return rc == MS_ENOMEM ? cli_fail(err) : cli_file_error("%s: %s %s: %s", command, option, path, err->text);
}

int cli_use_card(const char *command, const char *option, const char *card, ms_hardware *hardware)
{
    ms_error err;
    int rc = ms_hardware_use_card(hardware, card, &err);
    return rc == MS_OK ? CLI_OK : cli_usage_error(command, "%s: %s", option, err.text);
}

static int probe_with_card(const char *command, const char *card, ms_hardware *hardware)
{
    ms_error err;
    ms_hardware_options options = {0};
    if (ms_hardware_probe(&options, hardware, &err) != MS_OK) {
        return cli_fail(&err);
    }
    return card != NULL ? cli_use_card(command, "--hardware", card, hardware) : CLI_OK;
}

/* A word that could be a card: no path, no file name with an ending. */
static bool may_be_card(const char *named)
{
    return strpbrk(named, "/.") == NULL;
}

int cli_load_hardware(const char *command, const char *named, ms_hardware **hardware)
{
    ms_error err;
    *hardware = ms_calloc(1, sizeof **hardware);
    if (*hardware == NULL) {
        ms_fail(&err, MS_ENOMEM, "out of memory");
        return cli_fail(&err);
    }
    if (named == NULL) {
        return probe_with_card(command, NULL, *hardware);
    }
    char *text;
    int rc = cli_read_text(named, &text, &err);
    if (rc != MS_OK && err.system_errno == ENOENT && may_be_card(named)) {
        return probe_with_card(command, named, *hardware);
    }
    if (rc == MS_OK) {
        rc = ms_hardware_parse(text, *hardware, &err);
    }
    ms_free(text);
    return cli_file_status(command, "--hardware", named, rc, &err);
}

int cli_load_graph(const char *command, const char *path, ms_graph **graph)
{
    ms_error err;
    char *text;
    int rc = cli_read_text(path, &text, &err);
    if (rc == MS_OK) {
        rc = ms_graph_parse(text, graph, &err);
    }
    ms_free(text);
    return cli_file_status(command, "--graph", path, rc, &err);
}

int cli_load_config(const char *command, const char *path, const char *budget, ms_config *config)
{
    ms_error err;
    ms_config_default(config);
    if (path != NULL) {
        char *text;
        int rc = cli_read_text(path, &text, &err);
        if (rc == MS_OK) {
            rc = ms_config_parse(text, config, &err);
        }
        ms_free(text);
        int status = cli_file_status(command, "--config", path, rc, &err);
        if (status != CLI_OK) {
            return status;
        }
    }
    return budget != NULL ? cli_parse_bytes(command, "--budget", budget, 1, &config->memory_budget_bytes) : CLI_OK;
}
