/*
 * Very long chains as chains of groups: consecutive layers act as one. Option k of a group
 * is option k of every member (its last where it has fewer); two more are every member's
 * smallest and every member's fastest. What a group takes is what its members take one
 * after the other, so a schedule of groups is one of the layers with the same peak.
 */
#include "base/units.h"
#include "chain/chain.h"

enum { EXTRA_OPTIONS = 2 };

static uint32_t most_options(const ms_chain *chain, uint32_t first, uint32_t end)
{
    uint32_t most = 0;
    for (uint32_t i = first; i < end; i++) {
        most = chain->layers[i].option_count > most ? chain->layers[i].option_count : most;
    }
    return most;
}

static bool ranks_before(const ms_chain_option *a, const ms_chain_option *b, bool by_time)
{
    uint64_t a_ns = ms__add_sat(a->fwd_ns, a->bwd_ns), b_ns = ms__add_sat(b->fwd_ns, b->bwd_ns);
    bool smaller = a->saved_bytes < b->saved_bytes, faster = a_ns < b_ns;
    return by_time ? faster || (a_ns == b_ns && smaller) : smaller || (a->saved_bytes == b->saved_bytes && faster);
}

/* The option that a member uses when its group, whose members have at most `most`, uses
 * `option`. */
static uint32_t member_option(const ms_chain_layer *member, uint32_t most, uint32_t option)
{
    uint32_t best = 0;
    if (option < most) {
        return option < member->option_count ? option : member->option_count - 1;
    }
    for (uint32_t k = 1; k < member->option_count; k++) {
        if (ranks_before(&member->options[k], &member->options[best], option > most)) {
            best = k;
        }
    }
    return best;
}

static void group_passes(const ms_chain *chain, uint32_t first, uint32_t end, ms_chain_layer *group)
{
    uint64_t most = 0;
    group->output_bytes = chain->layers[end - 1].output_bytes;
    for (uint32_t i = first; i < end; i++) {
        const ms_chain_layer *layer = &chain->layers[i];
        uint64_t input_bytes = i == first ? 0 : chain->layers[i - 1].output_bytes;
        uint64_t held = ms__add_sat(ms__add_sat(input_bytes, layer->output_bytes), layer->fwd_tmp_bytes);
        most = ms__max_u64(most, held);
        group->fwd_ns = ms__add_sat(group->fwd_ns, layer->fwd_ns);
    }
    group->fwd_tmp_bytes = most == UINT64_MAX ? most : ms__sub_sat(most, group->output_bytes);
}

static void group_option(const ms_chain *chain, uint32_t first, uint32_t end, uint32_t most, uint32_t k,
                         ms_chain_option *group)
{
    uint64_t forward = 0, backward = 0, output_bytes = chain->layers[end - 1].output_bytes;
    for (uint32_t i = first; i < end; i++) {
        const ms_chain_layer *layer = &chain->layers[i];
        const ms_chain_option *option = &layer->options[member_option(layer, most, k)];
        group->saved_bytes = ms__add_sat(group->saved_bytes, option->saved_bytes);
        forward = ms__max_u64(forward, ms__add_sat(group->saved_bytes, option->fwd_tmp_bytes));
        uint64_t gradients = ms__add_sat(layer->output_bytes, option->bwd_tmp_bytes);
        backward = ms__max_u64(backward, ms__add_sat(group->saved_bytes, gradients));
        group->fwd_ns = ms__add_sat(group->fwd_ns, option->fwd_ns);
        group->bwd_ns = ms__add_sat(group->bwd_ns, option->bwd_ns);
    }
    uint64_t held = ms__add_sat(group->saved_bytes, output_bytes);
    group->fwd_tmp_bytes = forward == UINT64_MAX ? forward : forward - group->saved_bytes;
    group->bwd_tmp_bytes = backward == UINT64_MAX ? backward : ms__sub_sat(backward, held);
}

static int fill_group(const ms_chain *chain, uint32_t first, uint32_t end, ms_chain_layer *group)
{
    uint32_t most = most_options(chain, first, end), count = most + EXTRA_OPTIONS;
    group_passes(chain, first, end, group);
    group->options = ms_calloc(count, sizeof *group->options);
    if (group->options == NULL) {
        return MS_ENOMEM;
    }
    group->option_count = count;
    for (uint32_t k = 0; k < count; k++) {
        group_option(chain, first, end, most, k, &group->options[k]);
    }
    return MS_OK;
}

static uint32_t end_of(const ms_chain *chain, uint32_t per_group, uint32_t group)
{
    return (uint32_t)ms__min_u64(((uint64_t)group + 1) * per_group, chain->layer_count);
}

int ms__chain_group(const ms_chain *chain, uint32_t per_group, ms_chain **groups)
{
    uint32_t count = (uint32_t)ms__div_up(chain->layer_count, per_group);
    ms_chain *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return MS_ENOMEM;
    }
    made->input_bytes = chain->input_bytes;
    made->layers = ms_calloc(count, sizeof *made->layers);
    made->layer_count = made->layers == NULL ? 0 : count;
    int rc = made->layers == NULL ? MS_ENOMEM : MS_OK;
    for (uint32_t g = 0; rc == MS_OK && g < count; g++) {
        rc = fill_group(chain, g * per_group, end_of(chain, per_group, g), &made->layers[g]);
    }
    if (rc != MS_OK) {
        ms_chain_free(made);
        return rc;
    }
    *groups = made;
    return MS_OK;
}

static int expand(const ms_chain *chain, const ms_chain_op *op, uint32_t first, uint32_t end,
                  ms__chain_schedule *layers)
{
    uint32_t most = most_options(chain, first, end);
    bool passes = op->kind == MS_CHAIN_FWD_DROP || op->kind == MS_CHAIN_FWD_CKPT;
    int rc = MS_OK;
    for (uint32_t n = 0; rc == MS_OK && n < end - first; n++) {
        uint32_t i = op->kind == MS_CHAIN_BWD ? end - 1 - n : first + n;
        ms_chain_op_kind kind = passes && n > 0 ? MS_CHAIN_FWD_DROP : (ms_chain_op_kind)op->kind;
        uint32_t option = passes ? 0 : member_option(&chain->layers[i], most, op->option);
        rc = ms__chain_push(layers, kind, i, option);
    }
    return rc;
}

int ms__chain_ungroup(const ms_chain *chain, uint32_t per_group, const ms__chain_schedule *groups,
                      ms__chain_schedule *layers)
{
    int rc = MS_OK;
    for (size_t n = 0; rc == MS_OK && n < groups->ops.count; n++) {
        uint32_t group = groups->ops.items[n].layer;
        rc = expand(chain, &groups->ops.items[n], group * per_group, end_of(chain, per_group, group), layers);
    }
    return rc;
}
