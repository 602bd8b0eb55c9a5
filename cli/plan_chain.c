/*
 * `memscale plan --chain`: the chain solver alone, from a chain document to a schedule.
 * Whatever is wrong with the file is one line: file, place, reason.
 */
#include "plan_chain.h"
#include "common.h"
#include "inputs.h"
#include "memscale/chain.h"

static int load(const char *path, ms_chain **chain)
{
    ms_error err;
    char *text;
    int rc = cli_read_text(path, &text, &err);
    rc = rc != MS_OK ? rc : ms_chain_parse(text, chain, &err);
    ms_free(text);
    return cli_file_status("plan", "--chain", path, rc, &err);
}

static int show(const ms_chain *chain, const ms_chain_answer *answer, uint64_t budget_bytes, bool as_json)
{
    char *text = as_json ? ms_chain_answer_to_json(answer) : ms_chain_answer_table(chain, answer, budget_bytes);
    return cli_print_made(text);
}

int cli_plan_chain(const char *path, uint64_t budget_bytes, bool as_json)
{
    ms_error err;
    ms_chain *chain = NULL;
    ms_chain_answer answer = {0};
    int status = load(path, &chain);
    if (status != CLI_OK) {
        return status;
    }
    int rc = ms_chain_solve(chain, budget_bytes, 0, &answer, &err);
    status = rc == MS_OK ? show(chain, &answer, budget_bytes, as_json) : cli_fail(&err);
    ms_chain_answer_clear(&answer);
    ms_chain_free(chain);
    return status;
}
