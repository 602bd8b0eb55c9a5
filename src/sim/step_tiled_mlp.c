/*
 * Position-wise modules in tiles as an option of the step (techniques/tiles.py does it): what such a
 * module makes of a row depends on that row alone, so that it can run some rows at a time. It
 * saves its input and nothing else, and runs again, tile by tile, in backward. Sums over rows (the
 * weights' gradients) have another order: it rounds otherwise.
 *
 * How a layer's step is then, was traced with the rest (ms_node.tiled): here it takes the place
 * of the layer's own.
 */
#include "base/units.h"
#include "sim/step_options.h"

/* More tiles free little: what is left then are the module's input and output, which stay whole. */
enum { TILES = 8, LEAST_ROWS = 16 };

uint64_t ms_tile_rows(uint64_t rows)
{
    uint64_t tile = ms__max_u64(ms__div_up(rows, TILES), LEAST_ROWS);
    return ms__min_u64(tile, rows);
}

static uint32_t judge(const ms__step_case *facts)
{
    bool found = false;
    for (uint32_t i = 0; i < facts->graph->node_count; i++) {
        found |= facts->graph->nodes[i].tiled > 0;
    }
    if (!facts->config->enable_tiling) {
        return MS_RULE_FLAG_OFF;
    }
    if (!found) {
        return MS_RULE_NO_TILES;
    }
    return facts->config->mode == MS_MODE_CONSERVATIVE ? MS_RULE_MODE : MS__STEP_ADMITTED;
}

static int apply(const ms_hardware *hardware, ms__step *step)
{
    (void)hardware;
    for (uint32_t i = 0; i < step->graph->node_count; i++) {
        ms_node *node = &step->graph->nodes[i];
        node->profile = node->tiled > 0 ? node->tiled - 1 : node->profile;
    }
    return MS_OK;
}

const ms__step_option ms__step_tiled_mlp = {.goes_first = true, .judge = judge, .apply = apply};
