/* Any text is a chain or is refused; a short chain is solved, and what is answered keeps
 * within its budget. */
#include "fuzz.h"
#include "memscale/chain.h"

enum { LAYERS_SOLVED = 12 };

static void check_text(char *text)
{
    FUZZ_CHECK(text != NULL && text[0] != '\0');
    ms_free(text);
}

static void solve(const ms_chain *chain, uint64_t budget_bytes, ms_chain_answer *answer)
{
    ms_error err = {0};
    FUZZ_CHECK(ms_chain_solve(chain, budget_bytes, 1, answer, &err) == MS_OK);
    FUZZ_CHECK(answer->feasible ==
               (budget_bytes >= answer->smallest_budget_bytes && answer->smallest_budget_bytes != UINT64_MAX));
    if (answer->feasible) {
        FUZZ_CHECK(answer->peak_bytes <= budget_bytes && answer->makespan_ns >= answer->lower_bound_ns);
    }
    check_text(ms_chain_answer_to_json(answer));
    check_text(ms_chain_answer_table(chain, answer, budget_bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    ms_chain *chain = NULL;
    ms_error err = {0};
    int rc = ms_chain_parse(text, &chain, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    if (chain->layer_count <= LAYERS_SOLVED) {
        ms_chain_answer answer;
        solve(chain, 0, &answer);
        uint64_t least = answer.smallest_budget_bytes;
        ms_chain_answer_clear(&answer);
        solve(chain, least, &answer);
        ms_chain_answer_clear(&answer);
        solve(chain, least / 4 * 5, &answer);
        ms_chain_answer_clear(&answer);
    }
    ms_chain_free(chain);
    return 0;
}
