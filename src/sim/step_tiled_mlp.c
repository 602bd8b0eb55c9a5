/*
 * Position-wise modules in tiles as an option of the step (techniques/tiles.py executes it). Such a module's
 * result for a row depends on that row alone, so it can run some rows at a time. It saves only its input, and
 * runs again in backward, tile by tile. Sums over rows (the weights' gradients) have another order, so the
 * option rounds differently.
 *
 * Layers in tiles were traced with the rest (ms_node.tiled); here that program replaces the layer's own.
 */
#include "base/units.h"
#include "sim/step_options.h"

/* More tiles free little more: the module's input and output stay whole. */
enum { TILES = 8, LEAST_ROWS = 16 };

uint64_t ms_tile_rows(uint64_t rows)
{
    uint64_t tile = ms__max_u64(ms__div_up(rows, TILES), LEAST_ROWS);
    return ms__min_u64(tile, rows);
}

static uint32_t tiled_mlp_judge(const ms__step_case *facts)
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

static int tiled_mlp_apply(const ms_hardware *hardware, ms__step *step)
{
    (void)hardware;
    for (uint32_t i = 0; i < step->graph->node_count; i++) {
        ms_node *node = &step->graph->nodes[i];
        node->profile = node->tiled > 0 ? node->tiled - 1 : node->profile;
    }
    return MS_OK;
}

const ms__step_option ms__step_tiled_mlp = {.goes_first = true, .judge = tiled_mlp_judge, .apply = tiled_mlp_apply};
