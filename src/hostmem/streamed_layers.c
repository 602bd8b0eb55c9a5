/*
 * The order of a model's layers: which one follows which, forward and backward.
 */
#include "base/array.h"
#include "base/thread.h"
#include "base/units.h"
#include "memscale/streamed.h"

#define NO_LAYER UINT32_MAX

typedef struct layer {
    const void **addresses;
    size_t count;
    uint32_t next[2]; /* the layer that last followed this one: in forward, in backward */
} layer;

struct ms_streamed_layers {
    ms__mutex lock; /* over the order; the list of layers does not change once one is entered */
    MS__ARRAY(layer) list;
    uint32_t last[2];
};

ms_streamed_layers *ms_streamed_layers_new(void)
{
    ms_streamed_layers *layers = ms_calloc(1, sizeof *layers);
    if (layers != NULL) {
        ms__mutex_init(&layers->lock);
        layers->last[0] = layers->last[1] = NO_LAYER;
    }
    return layers;
}

void ms_streamed_layers_free(ms_streamed_layers *layers)
{
    if (layers == NULL) {
        return;
    }
    for (size_t i = 0; i < layers->list.count; i++) {
        ms_free(layers->list.items[i].addresses);
    }
    MS__ARRAY_FREE(&layers->list);
    ms__mutex_destroy(&layers->lock);
    ms_free(layers);
}

int ms_streamed_layers_add(ms_streamed_layers *layers, ms_streamed_blocks blocks, ms_error *err)
{
    const void **addresses = ms_calloc(blocks.count + 1, sizeof *addresses);
    layer *added = addresses != NULL ? MS__ARRAY_PUSH(&layers->list) : NULL;
    if (added == NULL) {
        ms_free(addresses);
        return ms_fail(err, MS_ENOMEM, "streamed: out of memory for a layer of %zu blocks", blocks.count);
    }
    for (size_t i = 0; i < blocks.count; i++) {
        addresses[i] = blocks.addresses[i];
    }
    uint32_t number = (uint32_t)layers->list.count - 1;
    *added = (layer){.addresses = addresses, .count = blocks.count, .next = {number + 1, number - 1}};
    return MS_OK;
}

/* No blocks for a number that is no layer's. */
static ms_streamed_blocks blocks_of(const ms_streamed_layers *layers, uint32_t number)
{
    if (number >= layers->list.count) {
        return (ms_streamed_blocks){.addresses = NULL, .count = 0};
    }
    return (ms_streamed_blocks){.addresses = layers->list.items[number].addresses,
                                .count = layers->list.items[number].count};
}

uint64_t ms_streamed_layers_least_bytes(const ms_streamed_layers *layers)
{
    uint64_t least = 0, before = 0;
    for (uint32_t i = 0; i < layers->list.count; i++) {
        uint64_t bytes = ms_streamed_bytes(blocks_of(layers, i));
        least = ms__max_u64(least, ms__add_sat(before, bytes));
        before = bytes;
    }
    return least;
}

/* Learns that `number` follows the layer entered before it, and returns the layer expected next. The first layer of a
 * pass follows nothing. */
static uint32_t learn(ms_streamed_layers *layers, uint32_t number, bool in_backward)
{
    uint32_t *last = &layers->last[in_backward];
    ms__mutex_lock(&layers->lock);
    if (*last != NO_LAYER && *last != number) {
        layers->list.items[*last].next[in_backward] = number;
    }
    *last = number;
    layers->last[!in_backward] = NO_LAYER;
    uint32_t next = layers->list.items[number].next[in_backward];
    ms__mutex_unlock(&layers->lock);
    return next;
}

void ms_streamed_layers_enter(ms_streamed_layers *layers, uint32_t number, bool in_backward)
{
    if (number < layers->list.count) {
        uint32_t next = learn(layers, number, in_backward);
        ms_streamed_use(blocks_of(layers, number), blocks_of(layers, next));
    }
}
