/* The half of `memscale plan` that solves a chain; cmd_plan.c calls it. */
#ifndef MS_CLI_PLAN_CHAIN_H
#define MS_CLI_PLAN_CHAIN_H

#include "memscale/base.h"

/* Answers the chain in the file for the budget; gives the status to exit with. */
int cli_plan_chain(const char *path, uint64_t budget_bytes, bool as_json);

#endif
