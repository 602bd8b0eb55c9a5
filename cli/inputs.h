/*
 * What several commands read from the command line and from files. Used by cmd_*.c only.
 */
#ifndef MS_CLI_INPUTS_H
#define MS_CLI_INPUTS_H

#include "memscale/hardware.h"

/* The bytes that --budget names: digits, or a number with a unit (4000000000, 4.0GB, "3.7 GiB";
 * capitals or not). CLI_OK, or what cli_usage_error() gives where it is none, below `least` or
 * beyond INT64_MAX. */
int cli_parse_budget(const char *command, const char *text, uint64_t least, uint64_t *bytes);

/* The text of a file, to be freed with ms_free(); NULL if it fails. */
int cli_read_text(const char *path, char **text, ms_error *err);

/* The status to end with where the file that `option` names gave `rc`: CLI_OK; else one line with
 * file, place and reason is printed, and it is CLI_USAGE, or CLI_FAILED when out of memory. */
int cli_file_status(const char *command, const char *option, const char *path, int rc, const ms_error *err);

/* A saved machine, or this one where `path` is NULL. Returns CLI_OK, or the status to end
 * with after the message. What it leaves in *hardware, NULL included, is freed by the caller. */
int cli_load_hardware(const char *command, const char *path, ms_hardware **hardware);

#endif
