/*
 * A schedule of a chain replayed with its transfers beside the compute: one queue per link,
 * which moves one thing at a time in the order of issue. Called by chain_links.c for
 * schedules that chain_replay.c has accepted; at windows of no bytes both agree.
 *
 * What an option moves leaves memory when its store has ended, and comes back when its
 * fetch is issued. At most the write window's bytes may be on their way out when a layer's
 * forward has ended (else compute waits), and fetches are issued in the order of the
 * backwards while no more than the read window's bytes have come or are coming ahead of
 * them. During the option's own forward and backward its bytes are part of its transients.
 */
#include <string.h>

#include "base/units.h"
#include "chain/chain.h"

/* Sums of 64-bit amounts over a schedule never pass 128 bits. */
__extension__ typedef unsigned __int128 wide;

typedef struct replaying {
    const ms_chain *chain;
    ms__chain_windows windows;
    uint8_t *alone;    /* [layers + 1] x_i is there on its own */
    uint32_t *saved;   /* [layers] option + 1, or 0 */
    wide *free_at;     /* [links] */
    wide *stored_at;   /* [layers] when its store ends */
    wide *fetched_at;  /* [layers] when its fetch ends */
    uint32_t *writing; /* layers whose stores may still run, in order of issue */
    uint32_t *fetches; /* layers whose backward waits for a fetch, in order of the backwards */
    uint32_t writing_count, fetch_count, issued;
    wide written_bytes, read_bytes; /* that the windows count */
    wide now, live, peak;
} replaying;

uint64_t ms__chain_transfer_ns(const ms_chain *chain, const ms_chain_option *option)
{
    const uint64_t ns_per_s = 1000000000;
    return option->link == 0 ? 0
                             : ms__mul_div_up(option->link_bytes, ns_per_s, chain->links[option->link - 1].bytes_per_s);
}

static uint64_t activation(const ms_chain *chain, uint32_t i)
{
    return i == 0 ? chain->input_bytes : chain->layers[i - 1].output_bytes;
}

static const ms_chain_option *option_of(const replaying *r, uint32_t layer)
{
    return &r->chain->layers[layer].options[r->saved[layer] - 1];
}

static wide later(wide a, wide b)
{
    return a > b ? a : b;
}

static void touch(replaying *r, wide more)
{
    r->peak = later(r->peak, r->live + more);
}

/* Queues a transfer that may begin at `from`; gives when it ends. */
static wide transfer(replaying *r, const ms_chain_option *option, wide from)
{
    wide *free_at = &r->free_at[option->link - 1];
    *free_at = later(*free_at, from) + ms__chain_transfer_ns(r->chain, option);
    return *free_at;
}

/* ---- stores ----------------------------------------------------------------------------- */

/* Lets go of what has left by now. */
static void settle(replaying *r)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < r->writing_count; i++) {
        uint32_t layer = r->writing[i];
        if (r->stored_at[layer] > r->now) {
            r->writing[left++] = layer;
            continue;
        }
        r->written_bytes -= option_of(r, layer)->link_bytes;
        r->live -= option_of(r, layer)->link_bytes;
    }
    r->writing_count = left;
}

static void wait_for_stores(replaying *r)
{
    while (r->writing_count > 0 && r->written_bytes > r->windows.write_bytes) {
        wide first = r->stored_at[r->writing[0]];
        for (uint32_t i = 1; i < r->writing_count; i++) {
            wide other = r->stored_at[r->writing[i]];
            first = other < first ? other : first;
        }
        r->now = later(r->now, first);
        settle(r);
    }
}

static void store(replaying *r, uint32_t layer)
{
    const ms_chain_option *option = option_of(r, layer);
    r->stored_at[layer] = transfer(r, option, r->now);
    r->writing[r->writing_count++] = layer;
    r->written_bytes += option->link_bytes;
    r->live += option->link_bytes;
    wait_for_stores(r);
}

/* ---- fetches ----------------------------------------------------------------------------- */

static void issue(replaying *r, uint32_t layer)
{
    r->fetched_at[layer] = transfer(r, option_of(r, layer), later(r->now, r->stored_at[layer]));
    r->issued++;
}

static void fetch_ahead(replaying *r)
{
    while (r->issued < r->fetch_count && r->saved[r->fetches[r->issued]] != 0) {
        uint32_t layer = r->fetches[r->issued];
        uint64_t bytes = option_of(r, layer)->link_bytes;
        if (r->read_bytes + bytes > r->windows.read_bytes) {
            break;
        }
        issue(r, layer);
        r->read_bytes += bytes;
        r->live += bytes;
    }
}

/* Waits until the layer's bytes are back; from then on they are its backward's. */
static void take_back(replaying *r, uint32_t layer)
{
    if (r->issued < r->fetch_count && r->fetches[r->issued] == layer) {
        issue(r, layer);
    } else {
        r->read_bytes -= option_of(r, layer)->link_bytes;
        r->live -= option_of(r, layer)->link_bytes;
    }
    r->now = later(r->now, r->fetched_at[layer]);
    settle(r);
}

/* ---- operations ----------------------------------------------------------------------------- */

static void save(replaying *r, const ms_chain_op *op)
{
    const ms_chain_option *option = &r->chain->layers[op->layer].options[op->option];
    touch(r, (wide)option->saved_bytes + option->fwd_tmp_bytes);
    r->saved[op->layer] = op->option + 1;
    r->live += option->saved_bytes;
    r->now += option->fwd_ns;
    settle(r);
    if (option->link != 0) {
        store(r, op->layer);
    }
}

static void pass(replaying *r, const ms_chain_op *op)
{
    const ms_chain_layer *layer = &r->chain->layers[op->layer];
    touch(r, (wide)layer->output_bytes + layer->fwd_tmp_bytes);
    r->live += layer->output_bytes;
    r->now += layer->fwd_ns;
    r->alone[op->layer + 1] = 1;
    if (op->kind == MS_CHAIN_FWD_DROP) {
        r->alone[op->layer] = 0;
        r->live -= activation(r->chain, op->layer);
    }
}

static void backward(replaying *r, const ms_chain_op *op)
{
    const ms_chain_option *option = option_of(r, op->layer);
    if (option->link != 0) {
        take_back(r, op->layer);
        fetch_ahead(r);
    }
    touch(r, option->bwd_tmp_bytes);
    r->now += option->bwd_ns;
    r->live -= option->saved_bytes;
    r->live -= r->chain->layers[op->layer].output_bytes;
    r->saved[op->layer] = 0;
    if (!r->alone[op->layer]) {
        r->live += activation(r->chain, op->layer); /* the gradient, which takes the place of x_i else */
    }
    r->alone[op->layer] = 0;
    touch(r, 0);
}

static void run(replaying *r, const ms_chain_op *ops, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ops[i].kind == MS_CHAIN_BWD && r->chain->layers[ops[i].layer].options[ops[i].option].link != 0) {
            r->fetches[r->fetch_count++] = ops[i].layer;
        }
    }
    r->alone[0] = 1;
    r->live = (wide)r->chain->input_bytes + activation(r->chain, r->chain->layer_count);
    touch(r, 0);
    for (size_t i = 0; i < count; i++) {
        settle(r);
        fetch_ahead(r);
        switch (ops[i].kind) {
        case MS_CHAIN_BWD:
            backward(r, &ops[i]);
            break;
        case MS_CHAIN_FWD_SAVE:
            save(r, &ops[i]);
            break;
        default:
            pass(r, &ops[i]);
        }
    }
}

static uint64_t narrow(wide value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

int ms__chain_overlap(const ms_chain *chain, const ms__chain_schedule *schedule, const ms__chain_windows *windows,
                      uint64_t *makespan_ns, uint64_t *peak_bytes)
{
    size_t layers = chain->layer_count;
    replaying r = {.chain = chain, .windows = *windows};
    r.alone = ms_calloc(layers + 1, sizeof *r.alone);
    r.saved = ms_calloc(3 * layers, sizeof *r.saved);
    r.free_at = ms_calloc(chain->link_count + 2 * layers, sizeof *r.free_at);
    int rc = r.alone == NULL || r.saved == NULL || r.free_at == NULL ? MS_ENOMEM : MS_OK;
    if (rc == MS_OK) {
        r.writing = r.saved + layers;
        r.fetches = r.writing + layers;
        r.stored_at = r.free_at + chain->link_count;
        r.fetched_at = r.stored_at + layers;
        run(&r, schedule->ops.items, schedule->ops.count);
        *makespan_ns = narrow(r.now);
        *peak_bytes = narrow(r.peak);
    }
    ms_free(r.alone);
    ms_free(r.saved);
    ms_free(r.free_at);
    return rc;
}
