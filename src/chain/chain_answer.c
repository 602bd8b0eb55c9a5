/*
 * A chain's answer as JSON and as a text for people. Written as text and not through a
 * tree: a schedule may have millions of operations, and its numbers all 64 bits.
 */
#include <inttypes.h>

#include "base/units.h"
#include "memscale/chain.h"
#include "plan/text.h"

static const char *const op_names[] = {
    [MS_CHAIN_FWD_DROP] = "fwd_drop",
    [MS_CHAIN_FWD_CKPT] = "fwd_ckpt",
    [MS_CHAIN_FWD_SAVE] = "fwd_save",
    [MS_CHAIN_BWD] = "bwd",
};

static bool has_option(const ms_chain_op *op)
{
    return op->kind == MS_CHAIN_FWD_SAVE || op->kind == MS_CHAIN_BWD;
}

static void add_schedule(ms__text *text, const ms_chain_answer *answer)
{
    ms__text_add(text, ",\n  \"schedule\": [\n");
    for (size_t i = 0; i < answer->op_count; i++) {
        const ms_chain_op *op = &answer->ops[i];
        ms__text_add(text, "    {\"op\": \"%s\", \"layer\": %" PRIu32, op_names[op->kind], op->layer);
        if (has_option(op)) {
            ms__text_add(text, ", \"option\": %" PRIu32, op->option);
        }
        ms__text_add(text, i + 1 < answer->op_count ? "},\n" : "}\n");
    }
    ms__text_add(text, "  ]");
}

/* Whether the length of the chain made its tables coarser than others'. */
static bool coarser(const ms_chain_answer *answer)
{
    return answer->group_layers > 1 || answer->buckets < MS_CHAIN_BUCKETS;
}

/* Whether transfers run beside the compute. */
static bool overlaps(const ms_chain_answer *answer)
{
    return answer->write_window_bytes > 0 || answer->read_window_bytes > 0;
}

char *ms_chain_answer_to_json(const ms_chain_answer *answer)
{
    ms__text text = {0};
    ms__text_add(&text, "{\n  \"feasible\": %s", answer->feasible ? "true" : "false");
    if (answer->feasible) {
        ms__text_add(&text, ",\n  \"makespan_ns\": %" PRIu64, answer->makespan_ns);
        ms__text_add(&text, ",\n  \"peak_bytes\": %" PRIu64, answer->peak_bytes);
        ms__text_add(&text, ",\n  \"lower_bound_ns\": %" PRIu64, answer->lower_bound_ns);
        if (overlaps(answer)) {
            ms__text_add(&text, ",\n  \"write_window_bytes\": %" PRIu64, answer->write_window_bytes);
            ms__text_add(&text, ",\n  \"read_window_bytes\": %" PRIu64, answer->read_window_bytes);
        }
        add_schedule(&text, answer);
    } else {
        ms__text_add(&text, ",\n  \"smallest_budget_bytes\": %" PRIu64, answer->smallest_budget_bytes);
    }
    if (coarser(answer)) {
        ms__text_add(&text, ",\n  \"buckets\": %" PRIu32, answer->buckets);
        ms__text_add(&text, ",\n  \"group_layers\": %" PRIu32, answer->group_layers);
    }
    ms__text_add(&text, "\n}\n");
    return ms__text_take(&text);
}

char *ms_chain_answer_table(const ms_chain *chain, const ms_chain_answer *answer, uint64_t budget_bytes)
{
    ms__text text = {0};
    ms__text_add(&text, "chain of %" PRIu32 " layers\n", chain->layer_count);
    ms__text_add(&text, "  budget      %s\n", ms__text_bytes(budget_bytes).text);
    if (!answer->feasible) {
        ms__text_add(&text, "  infeasible; the smallest budget is %" PRIu64 " bytes (%s)\n",
                     answer->smallest_budget_bytes, ms__text_bytes(answer->smallest_budget_bytes).text);
        return ms__text_take(&text);
    }
    size_t count[MS_CHAIN_BWD + 1] = {0};
    for (size_t i = 0; i < answer->op_count; i++) {
        count[answer->ops[i].kind]++;
    }
    uint64_t beyond = answer->makespan_ns - answer->lower_bound_ns;
    uint64_t permille = ms__mul_div(beyond, 1000, answer->lower_bound_ns == 0 ? 1 : answer->lower_bound_ns);
    ms__text_add(&text, "  makespan    %s, %" PRIu64 ".%" PRIu64 "%% above the lower bound %s\n",
                 ms__text_ns(answer->makespan_ns).text, permille / 10, permille % 10,
                 ms__text_ns(answer->lower_bound_ns).text);
    ms__text_add(&text, "  peak        %s\n", ms__text_bytes(answer->peak_bytes).text);
    ms__text_add(&text, "  schedule    %zu forwards that save, %zu that don't, %zu backwards\n",
                 count[MS_CHAIN_FWD_SAVE], count[MS_CHAIN_FWD_CKPT] + count[MS_CHAIN_FWD_DROP], count[MS_CHAIN_BWD]);
    if (overlaps(answer)) {
        ms__text_add(&text, "  transfers   up to %s on their way out, %s back ahead\n",
                     ms__text_bytes(answer->write_window_bytes).text, ms__text_bytes(answer->read_window_bytes).text);
    }
    ms__text_add(&text, "  found       %s\n",
                 answer->exact ? "the optimum of the recurrence" : "the best of the candidates replayed");
    if (coarser(answer)) {
        ms__text_add(&text, "  tables      %" PRIu32 " buckets, %" PRIu32 " layers taken for one: the chain is long\n",
                     answer->buckets, answer->group_layers);
    }
    return ms__text_take(&text);
}
