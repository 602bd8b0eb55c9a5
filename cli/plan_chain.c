/*
 * `memscale plan --chain`: the chain solver alone, from a chain document to a schedule.
 * Whatever is wrong with the file is one line: file, place, reason.
 */
#include <string.h>

#include "base/os/file.h"
#include "common.h"
#include "memscale/chain.h"
#include "plan_chain.h"

enum { FILE_MOST_BYTES = 1 << 30 };

static int load(const char *path, ms_chain **chain, ms_error *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = ms__file_read_text(path, FILE_MOST_BYTES, &text, &length, err);
    if (rc == MS_OK && strlen(text) != length) {
        rc = ms_fail(err, MS_EFORMAT, "byte %zu is a null byte", strlen(text));
    }
    if (rc == MS_OK) {
        rc = ms_chain_parse(text, chain, err);
    }
    ms_free(text);
    return rc;
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
    int rc = load(path, &chain, &err);
    if (rc != MS_OK) {
        return rc == MS_ENOMEM ? cli_fail(&err) : cli_file_error("plan: --chain %s: %s", path, err.text);
    }
    rc = ms_chain_solve(chain, budget_bytes, 0, &answer, &err);
    int status = rc == MS_OK ? show(chain, &answer, budget_bytes, as_json) : cli_fail(&err);
    ms_chain_answer_clear(&answer);
    ms_chain_free(chain);
    return status;
}
