/*
 * ms_graph_add_tiled(): adds the profiles of a step traced in tiles to the step's graph. Called once per traced
 * graph. Storages that cross nodes are matched by size, role and nodes; if one has no match, nothing is added.
 */
#include <string.h>

#include "graph/graph_internal.h"

typedef struct matching {
    const ms_graph *from;
    ms_graph *to;
    uint32_t *storage; /* [from->storage_count] the same storage in `to` */
} matching;

/* ---- storages that cross nodes ------------------------------------------------------------- */

static bool storages_match(const ms_storage *a, const ms_storage *b)
{
    return a->bytes == b->bytes && a->role == b->role && a->first_node == b->first_node && a->last_node == b->last_node;
}

/* Equal storages are matched in order. */
static int match_storages(const matching *m, bool *complete)
{
    uint8_t *taken = ms_calloc((size_t)m->to->storage_count + 1, 1);
    if (taken == NULL) {
        return MS_ENOMEM;
    }
    uint32_t first_free = 0;
    *complete = m->from->storage_count == m->to->storage_count;
    for (uint32_t i = 0; *complete && i < m->from->storage_count; i++) {
        while (taken[first_free]) {
            first_free++;
        }
        uint32_t found = first_free;
        while (found < m->to->storage_count &&
               (taken[found] || !storages_match(&m->from->storages[i], &m->to->storages[found]))) {
            found++;
        }
        *complete = found < m->to->storage_count;
        taken[*complete ? found : 0] = 1;
        m->storage[i] = found;
    }
    ms_free(taken);
    return MS_OK;
}

static bool same_nodes(const ms_graph *a, const ms_graph *b)
{
    bool same = a->node_count == b->node_count;
    for (uint32_t i = 0; same && i < a->node_count; i++) {
        const ms_node *x = &a->nodes[i], *y = &b->nodes[i];
        same = x->kind == y->kind && x->call == y->call && x->flags == y->flags && strcmp(x->name, y->name) == 0 &&
               a->profiles[x->profile].external_count == b->profiles[y->profile].external_count &&
               a->profiles[x->profile].input_count == b->profiles[y->profile].input_count;
    }
    return same;
}

/* ---- profiles ----------------------------------------------------------------------------------- */

/* The place of each external of a node in `from` among those of the node in `to`; false if they bind different
 * storages, or inputs in another order. */
static bool match_externals(const matching *m, uint32_t index, uint32_t *place)
{
    const ms_node *from = &m->from->nodes[index], *to = &m->to->nodes[index];
    const ms_profile *profile = &m->from->profiles[from->profile], *own = &m->to->profiles[to->profile];
    for (uint32_t i = 0; i < profile->external_count; i++) {
        uint32_t k = 0;
        while (k < own->external_count && to->externals[k] != m->storage[from->externals[i]]) {
            k++;
        }
        if (k == own->external_count) {
            return false;
        }
        place[i] = k;
    }
    for (uint32_t i = 0; i < profile->input_count; i++) {
        if (place[profile->inputs[i]] != own->inputs[i]) {
            return false;
        }
    }
    return true;
}

static void renumber_events(ms_event *events, uint32_t count, const uint32_t *place, uint32_t external_count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].kind != MS_EVENT_WORK && events[i].storage < external_count) {
            events[i].storage = place[events[i].storage];
        }
    }
}

/* Moves the profile's externals to their places; their bytes become those of `own`. */
static void renumber_profile(ms_profile *profile, const uint32_t *place, const ms_profile *own)
{
    uint32_t count = profile->external_count;
    renumber_events(profile->forward, profile->forward_count, place, count);
    renumber_events(profile->backward, profile->backward_count, place, count);
    for (uint32_t i = 0; i < profile->input_count; i++) {
        profile->inputs[i] = place[profile->inputs[i]];
    }
    for (uint32_t i = 0; i < profile->operand_count; i++) {
        profile->operands[i] = profile->operands[i] < count ? place[profile->operands[i]] : profile->operands[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        profile->storage_bytes[i] = own->storage_bytes[i];
    }
}

/* Takes ownership of the profile. Returns its number, or the number of an equal profile. */
static uint32_t add_profile(ms_graph *graph, uint32_t own_count, uint32_t own, ms_profile *profile)
{
    uint32_t found = own_count;
    while (found < graph->profile_count && !ms__profile_equal(profile, &graph->profiles[found])) {
        found++;
    }
    if (ms__profile_equal(profile, &graph->profiles[own])) {
        found = own;
    }
    if (found == graph->profile_count) {
        graph->profiles[graph->profile_count++] = *profile;
    } else {
        ms__profile_clear(profile);
    }
    return found;
}

static int add_node(const matching *m, uint32_t index, uint32_t own_count, bool *complete)
{
    ms_node *node = &m->to->nodes[index];
    const ms_profile *from = &m->from->profiles[m->from->nodes[index].profile];
    uint32_t *place = ms_calloc((size_t)from->external_count + 1, sizeof *place);
    ms_profile copy = {0};
    int rc = place != NULL ? MS_OK : MS_ENOMEM;
    *complete = rc == MS_OK && match_externals(m, index, place);
    if (*complete) {
        rc = ms__profile_copy(from, &copy);
    }
    if (*complete && rc == MS_OK) {
        renumber_profile(&copy, place, &m->to->profiles[node->profile]);
        uint32_t found = add_profile(m->to, own_count, node->profile, &copy);
        node->tiled = found == node->profile ? 0 : found + 1;
    } else {
        ms__profile_clear(&copy);
    }
    ms_free(place);
    return rc;
}

static void remove_tiled(ms_graph *graph, uint32_t own_count)
{
    while (graph->profile_count > own_count) {
        ms__profile_clear(&graph->profiles[--graph->profile_count]);
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i].tiled = 0;
    }
}

static int add_nodes(const matching *m, ms_error *err)
{
    uint32_t own_count = m->to->profile_count;
    ms_profile *profiles = ms_realloc_array(m->to->profiles, (size_t)own_count + m->to->node_count, sizeof *profiles);
    int rc = profiles != NULL ? MS_OK : MS_ENOMEM;
    bool complete = true;
    if (rc == MS_OK) {
        m->to->profiles = profiles;
    }
    for (uint32_t i = 0; rc == MS_OK && complete && i < m->to->node_count; i++) {
        if (m->to->nodes[i].kind == MS_NODE_LAYER && !(m->to->nodes[i].flags & MS_NODE_COMPILED)) {
            rc = add_node(m, i, own_count, &complete);
        }
    }
    ms_error unfit = {0};
    if (rc == MS_OK && complete) {
        rc = ms_graph_check(m->to, &unfit);
    }
    if (rc != MS_OK || !complete) {
        remove_tiled(m->to, own_count);
    }
    if (rc == MS_EFORMAT) {
        rc = MS_OK;
    }
    return rc == MS_OK ? MS_OK : ms_fail(err, rc, "graph: out of memory for layers in tiles");
}

int ms_graph_add_tiled(ms_graph *graph, const ms_graph *tiled, ms_error *err)
{
    matching m = {.from = tiled, .to = graph};
    bool complete = same_nodes(graph, tiled);
    if (!complete) {
        return MS_OK;
    }
    m.storage = ms_calloc((size_t)tiled->storage_count + 1, sizeof *m.storage);
    int rc = m.storage != NULL ? match_storages(&m, &complete) : MS_ENOMEM;
    if (rc != MS_OK) {
        ms_fail(err, rc, "graph: out of memory for layers in tiles");
    } else if (complete) {
        rc = add_nodes(&m, err);
    }
    ms_free(m.storage);
    return rc;
}
