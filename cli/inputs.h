/*
 * Inputs of several commands: numbers of bytes, files, machines. Used by cmd_*.c only.
 * Tests: tests/cli/plan.golden.
 */
#ifndef MS_CLI_INPUTS_H
#define MS_CLI_INPUTS_H

#include "memscale/graph.h"
#include "memscale/hardware.h"

/* The value of `option` in bytes: digits, or a number with a unit (4000000000, 4.0GB, "3.7 GiB"; capitals or not).
 * CLI_OK; cli_usage_error() if it is not a number of bytes, below `least` or beyond INT64_MAX. */
int cli_parse_bytes(const char *command, const char *option, const char *text, uint64_t least, uint64_t *bytes);

/* The text of a file, to be freed with ms_free(); NULL if it fails. */
int cli_read_text(const char *path, char **text, ms_error *err);

/* The exit status after reading the file of `option` gave `rc`: CLI_OK, else CLI_USAGE, or CLI_FAILED when out of
 * memory. Prints one line with file, place and reason on failure. */
int cli_file_status(const char *command, const char *option, const char *path, int rc, const ms_error *err);

/* Loads the graph of --graph. Returns CLI_OK, or the exit status after a message. */
int cli_load_graph(const char *command, const char *path, ms_graph **graph);

/* The configuration of --config, the defaults if `path` is NULL, with the budget of --budget unless it is NULL. Returns
 * CLI_OK, or the exit status after a message. */
int cli_load_config(const char *command, const char *path, const char *budget, ms_config *config);

/* Puts a card of the catalogue into the machine. Returns CLI_OK, or the exit status after a message about `option`. */
int cli_use_card(const char *command, const char *option, const char *card, ms_hardware *hardware);

/* Loads a machine: the one that the file `named` describes; if no such file exists, this machine with the catalogue's
 * card `named`; if `named` is NULL, this machine. Returns CLI_OK, or the exit status after a message. The caller frees
 * *hardware in any case. */
int cli_load_hardware(const char *command, const char *named, ms_hardware **hardware);

#endif
