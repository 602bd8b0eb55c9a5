/*
 * A schedule of a chain replayed in exact bytes and nanoseconds. The proof of fit of
 * every schedule that leaves the solver; also the place where its rules of memory are
 * written down as operations.
 */
#include <string.h>

#include "base/parts.h"
#include "chain/chain.h"

/* Sums of 64-bit sizes over a schedule never pass 128 bits. */
__extension__ typedef unsigned __int128 wide;

int ms__chain_push(ms__chain_schedule *schedule, ms_chain_op_kind kind, uint32_t layer, uint32_t option)
{
    ms_chain_op *op = MS__ARRAY_PUSH(&schedule->ops);
    if (op == NULL) {
        return MS_ENOMEM;
    }
    *op = (ms_chain_op){.kind = kind, .layer = layer, .option = option};
    return MS_OK;
}

int ms__chain_push_passes(ms__chain_schedule *schedule, uint32_t s, uint32_t j)
{
    int rc = ms__chain_push(schedule, MS_CHAIN_FWD_CKPT, s, 0);
    for (uint32_t i = s + 1; rc == MS_OK && i < j; i++) {
        rc = ms__chain_push(schedule, MS_CHAIN_FWD_DROP, i, 0);
    }
    return rc;
}

void ms__chain_schedule_clear(ms__chain_schedule *schedule)
{
    MS__ARRAY_FREE(&schedule->ops);
    memset(schedule, 0, sizeof *schedule);
}

/* What is in memory. Activation i is there on its own, or as a part of what layer i-1
 * saved. */
typedef struct memory {
    const ms_chain *chain;
    uint8_t *alone;  /* [layers + 1] */
    uint32_t *saved; /* [layers] option + 1, or 0 */
    wide live, peak, ns;
    uint32_t backward; /* layers whose backward is to come */
} memory;

static uint64_t activation(const ms_chain *chain, uint32_t i)
{
    return i == 0 ? chain->input_bytes : chain->layers[i - 1].output_bytes;
}

static void touch(memory *m, wide more)
{
    m->peak = m->live + more > m->peak ? m->live + more : m->peak;
}

static bool has_input(const memory *m, uint32_t layer)
{
    return m->alone[layer] || (layer > 0 && m->saved[layer - 1] != 0);
}

static bool save(memory *m, const ms_chain_op *op)
{
    const ms_chain_layer *layer = &m->chain->layers[op->layer];
    if (op->option >= layer->option_count) {
        return false;
    }
    const ms_chain_option *option = &layer->options[op->option];
    touch(m, (wide)option->saved_bytes + option->fwd_tmp_bytes);
    m->live += option->saved_bytes;
    m->ns += option->fwd_ns;
    m->saved[op->layer] = op->option + 1;
    return true;
}

static bool forward(memory *m, const ms_chain_op *op)
{
    const ms_chain_layer *layer = &m->chain->layers[op->layer];
    if (!has_input(m, op->layer) || op->layer >= m->backward || m->saved[op->layer] || m->alone[op->layer + 1]) {
        return false;
    }
    if (op->kind == MS_CHAIN_FWD_SAVE) {
        return save(m, op);
    }
    touch(m, (wide)layer->output_bytes + layer->fwd_tmp_bytes);
    m->live += layer->output_bytes;
    m->ns += layer->fwd_ns;
    m->alone[op->layer + 1] = 1;
    if (op->kind == MS_CHAIN_FWD_DROP) {
        if (!m->alone[op->layer]) {
            return false;
        }
        m->alone[op->layer] = 0;
        m->live -= activation(m->chain, op->layer);
    }
    return true;
}

/* Frees what was saved, the gradient of the output and the input; leaves its gradient. */
static bool backward(memory *m, const ms_chain_op *op)
{
    const ms_chain_layer *layer = &m->chain->layers[op->layer];
    if (op->layer + 1 != m->backward || m->saved[op->layer] != op->option + 1 || !has_input(m, op->layer)) {
        return false;
    }
    const ms_chain_option *option = &layer->options[op->option];
    uint64_t input_bytes = activation(m->chain, op->layer);
    touch(m, option->bwd_tmp_bytes);
    m->ns += option->bwd_ns;
    m->live -= option->saved_bytes;
    m->live -= layer->output_bytes;
    m->live += input_bytes;
    m->saved[op->layer] = 0;
    if (m->alone[op->layer]) {
        m->alone[op->layer] = 0;
        m->live -= input_bytes;
    }
    touch(m, 0);
    m->backward--;
    return true;
}

static uint64_t narrow(wide value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

static int replay_ops(memory *m, const ms__chain_schedule *schedule, ms_error *err)
{
    m->alone[0] = 1;
    m->live = (wide)m->chain->input_bytes + activation(m->chain, m->chain->layer_count);
    touch(m, 0);
    for (size_t i = 0; i < schedule->ops.count; i++) {
        const ms_chain_op *op = &schedule->ops.items[i];
        if (op->layer >= m->chain->layer_count || !(op->kind == MS_CHAIN_BWD ? backward(m, op) : forward(m, op))) {
            return ms_fail(err, MS_ESTATE, "chain: operation %zu on layer %u is out of order", i, op->layer);
        }
    }
    return m->backward == 0 ? MS_OK : ms_fail(err, MS_ESTATE, "chain: %u layers have no backward", m->backward);
}

static void lay_out(memory *m, ms__parts *parts)
{
    m->alone = MS__PART(parts, m->alone, (size_t)m->chain->layer_count + 1);
    m->saved = MS__PART(parts, m->saved, m->chain->layer_count);
}

int ms__chain_replay(const ms_chain *chain, ms__chain_schedule *schedule, ms_error *err)
{
    memory m = {.chain = chain, .backward = chain->layer_count};
    ms__parts parts = {0};
    lay_out(&m, &parts);
    int rc = ms__parts_allocate(&parts) ? MS_OK : ms_fail(err, MS_ENOMEM, "chain: out of memory");
    if (rc == MS_OK) {
        lay_out(&m, &parts);
        rc = replay_ops(&m, schedule, err);
    }
    schedule->makespan_ns = narrow(m.ns);
    schedule->peak_bytes = narrow(m.peak);
    ms_free(parts.block);
    return rc;
}

/* ---- the fastest ------------------------------------------------------------------------ */

static uint32_t fastest_option(const ms_chain_layer *layer)
{
    uint32_t best = 0;
    wide best_ns = 0;
    for (uint32_t k = 0; k < layer->option_count; k++) {
        const ms_chain_option *o = &layer->options[k];
        wide ns = (wide)o->fwd_ns + o->bwd_ns;
        if (k == 0 || ns < best_ns || (ns == best_ns && o->saved_bytes < layer->options[best].saved_bytes)) {
            best = k;
            best_ns = ns;
        }
    }
    return best;
}

int ms__chain_fastest(const ms_chain *chain, ms__chain_schedule *schedule, uint64_t *lower_bound_ns)
{
    wide ns = 0;
    int rc = MS__ARRAY_RESERVE(&schedule->ops, 2 * (size_t)chain->layer_count);
    for (uint32_t i = 0; rc == MS_OK && i < chain->layer_count; i++) {
        uint32_t k = fastest_option(&chain->layers[i]);
        ns += (wide)chain->layers[i].options[k].fwd_ns + chain->layers[i].options[k].bwd_ns;
        rc = ms__chain_push(schedule, MS_CHAIN_FWD_SAVE, i, k);
    }
    for (uint32_t i = chain->layer_count; rc == MS_OK && i-- > 0;) {
        rc = ms__chain_push(schedule, MS_CHAIN_BWD, i, schedule->ops.items[i].option);
    }
    *lower_bound_ns = narrow(ns);
    return rc;
}
