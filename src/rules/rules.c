/*
 * The rules. They admit or refuse every technique at every node, and name the rule; the search chooses among
 * the admitted ones. The pipeline calls them. Pure: the same three documents give the same answer. Rules
 * don't consider a technique's cost.
 */
#include <string.h>

#include "base/units.h"
#include "graph/graph_internal.h"
#include "rules/rules_internal.h"

static const struct {
    const char *name, *text;
} rule_names[] = {
#define RULE_NAME(id, name, text) [MS_RULE_##id] = {name, text},
    MS_RULE_TABLE(RULE_NAME)
#undef RULE_NAME
};

const char *ms_rule_name(ms_rule rule)
{
    return (unsigned)rule < MS_RULE_COUNT ? rule_names[rule].name : "unknown";
}

const char *ms_rule_text(ms_rule rule)
{
    return (unsigned)rule < MS_RULE_COUNT ? rule_names[rule].text : "unknown rule";
}

/* ---- a node's bytes ------------------------------------------------------------- */

/* Everything that the rules read. */
typedef struct rule_facts {
    const ms_graph *graph;
    const ms_hardware *hardware;
    const ms_config *config;
    const ms_pressure *pressure;
    uint64_t floor_bytes;   /* smaller storages, and groups of equal nodes, are not worth a technique */
    const uint64_t *alike_bytes; /* [profile]: saved by all nodes of this profile */
    uint64_t largest_bytes; /* saved by the node that saves most */
    uint64_t disk_cap_bytes, host_cap_bytes;
} rule_facts;

static uint64_t rules_storage_bytes(const rule_facts *facts, const ms_node *node, uint32_t storage)
{
    const ms_profile *profile = &facts->graph->profiles[node->profile];
    if (storage >= profile->external_count) {
        return profile->storage_bytes[storage];
    }
    const ms_storage *external = &facts->graph->storages[node->externals[storage]];
    return external->role == MS_STORAGE_BATCH ? 0 : external->bytes;
}

/* A node saves a storage once, so the sum over its SAVE events is the sum over storages. */
static void rules_sum_saved(const rule_facts *facts, const ms_node *node, ms_admission *admission)
{
    const ms_profile *profile = &facts->graph->profiles[node->profile];
    for (uint32_t i = 0; i < profile->forward_count; i++) {
        if (profile->forward[i].kind == MS_EVENT_SAVE) {
            uint64_t bytes = rules_storage_bytes(facts, node, profile->forward[i].storage);
            admission->saved_bytes = ms__add_sat(admission->saved_bytes, bytes);
            if (bytes >= facts->floor_bytes) {
                admission->offload_bytes = ms__add_sat(admission->offload_bytes, bytes);
            }
        }
    }
}

static uint64_t movable_input_bytes(const rule_facts *facts, const ms_node *node)
{
    const ms_profile *profile = &facts->graph->profiles[node->profile];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < profile->input_count; i++) {
        uint64_t bytes = rules_storage_bytes(facts, node, profile->inputs[i]);
        sum = ms__add_sat(sum, bytes >= facts->floor_bytes ? bytes : 0);
    }
    return sum;
}

/* ---- the rules --------------------------------------------------------------------- */

enum { ADMITTED = MS_RULE_COUNT }; /* no rule refuses */

/* Whether the executor's hooks reach the node. */
static uint32_t rules_judge_place(const ms_node *node)
{
    if (node->flags & MS_NODE_ELSEWHERE) {
        return MS_RULE_ELSEWHERE;
    }
    return node->flags & MS_NODE_UNHOOKABLE ? (uint32_t)MS_RULE_UNHOOKABLE : (uint32_t)ADMITTED;
}

static uint32_t rules_judge_mode(const rule_facts *facts, bool moves, bool recomputes)
{
    if (moves && facts->config->mode == MS_MODE_CONSERVATIVE) {
        return MS_RULE_MODE;
    }
    bool off = (moves && !facts->config->enable_offloading) || (recomputes && !facts->config->enable_checkpointing);
    return off ? MS_RULE_FLAG_OFF : ADMITTED;
}

static uint32_t rules_judge_disk(const rule_facts *facts, uint64_t bytes)
{
    const ms_disk *disk = &facts->hardware->disk;
    if (!ms__disk_is_usable(disk)) {
        return MS_RULE_NO_DISK;
    }
    return facts->disk_cap_bytes < ms__max_u64(bytes, 1) ? MS_RULE_DISK_CAP : ADMITTED;
}

static uint32_t rules_judge_host(const rule_facts *facts, uint64_t bytes)
{
    if (ms_hardware_host_is_device(facts->hardware)) {
        return MS_RULE_HOST_IS_DEVICE;
    }
    return facts->host_cap_bytes < ms__max_u64(bytes, 1) ? MS_RULE_HOST_CAP : ADMITTED;
}

/* A loop that calls a small layer hundreds of times saves much, so equal nodes count together. */
static bool saves_too_little(const rule_facts *facts, const ms_node *node, const ms_admission *admission)
{
    return ms__max_u64(admission->saved_bytes, facts->alike_bytes[node->profile]) < facts->floor_bytes;
}

static uint32_t rules_judge_recompute(const rule_facts *facts, const ms_node *node, const ms_admission *admission)
{
    if (node->kind == MS_NODE_ROOT) {
        return MS_RULE_ROOT_WORK;
    }
    if (node->flags & MS_NODE_MUTATES_INPUT) {
        return MS_RULE_MUTATES_INPUT;
    }
    if (node->flags & MS_NODE_OPAQUE_ARGUMENT) {
        return MS_RULE_OPAQUE_ARGUMENT;
    }
    if (node->flags & MS_NODE_NOT_REPEATABLE) {
        return MS_RULE_NOT_REPEATABLE;
    }
    bool no_input = facts->graph->profiles[node->profile].input_count == 0;
    if (no_input || (node->flags & MS_NODE_NO_TENSOR_INPUT)) {
        return MS_RULE_NO_TENSOR_INPUT;
    }
    return saves_too_little(facts, node, admission) ? MS_RULE_TOO_SMALL : ADMITTED;
}

/* This layer's first argument is recomputed by the layer before, so that layer must be able to run again. */
static uint32_t rules_judge_segment(const rule_facts *facts, const ms_node *node, const ms_admission *admission)
{
    uint32_t rule = rules_judge_recompute(facts, node, admission), storage;
    const ms_node *before = ms__chain_before(facts->graph, node, &storage);
    if (rule != ADMITTED || before == NULL) {
        return rule != ADMITTED ? rule : (uint32_t)MS_RULE_NOT_CHAINED;
    }
    ms_admission large = {.saved_bytes = UINT64_MAX}; /* size does not matter here */
    bool able = rules_judge_place(before) == ADMITTED && rules_judge_recompute(facts, before, &large) == ADMITTED;
    return able ? (uint32_t)ADMITTED : (uint32_t)MS_RULE_NOT_CHAINED;
}

static uint32_t rules_judge_move(const rule_facts *facts, ms_rest to, uint64_t bytes)
{
    uint32_t rule = to == MS_REST_HOST ? rules_judge_host(facts, bytes) : rules_judge_disk(facts, bytes);
    return rule == ADMITTED && bytes == 0 ? (uint32_t)MS_RULE_TOO_SMALL : rule;
}

/* Operators run again from saved tensors, not from the layer's arguments. */
static uint32_t rules_judge_selective(const rule_facts *facts, const ms_node *node, const ms_admission *admission)
{
    if (node->flags & MS_NODE_COMPILED) {
        return MS_RULE_COMPILED;
    }
    if (facts->graph->profiles[node->profile].maker_count == 0) {
        return MS_RULE_NO_MAKERS;
    }
    return saves_too_little(facts, node, admission) ? (uint32_t)MS_RULE_TOO_SMALL : (uint32_t)ADMITTED;
}

/* Recomputation is judged first, then moving. */
static uint32_t rules_judge_technique(const rule_facts *facts, const ms_node *node, const ms_admission *admission,
                                      ms_technique technique)
{
    const ms_technique_row *row = ms_technique_of(technique);
    uint32_t rule = ADMITTED;
    if (ms_technique_is_chained(technique)) {
        rule = rules_judge_segment(facts, node, admission);
    } else if (row->replays) {
        rule = rules_judge_recompute(facts, node, admission);
    } else if (row->set > 0) {
        rule = rules_judge_selective(facts, node, admission);
    }
    if (rule == ADMITTED && row->moves_input) {
        ms_rest lower = ms_hardware_host_is_device(facts->hardware) ? MS_REST_DISK : MS_REST_HOST;
        rule = rules_judge_move(facts, lower, movable_input_bytes(facts, node));
    }
    if (rule == ADMITTED && (row->rest == MS_REST_HOST || row->rest == MS_REST_DISK)) {
        rule = rules_judge_move(facts, row->rest, admission->offload_bytes);
    }
    return rule;
}

/* The rule that refuses, or ADMITTED. MS_RULE_LOW_PRESSURE comes later. */
static uint32_t rules_judge(const rule_facts *facts, const ms_node *node, const ms_admission *admission,
                            ms_technique technique)
{
    bool recomputes = ms_technique_of(technique)->replays || ms_technique_of(technique)->set > 0;
    uint32_t rule = rules_judge_place(node);
    if (rule != ADMITTED) {
        return rule;
    }
    if (recomputes && node->kind == MS_NODE_ROOT) {
        return MS_RULE_ROOT_WORK;
    }
    rule = rules_judge_mode(facts, ms_technique_moves(technique), recomputes);
    return rule == ADMITTED ? rules_judge_technique(facts, node, admission, technique) : rule;
}

/* Bit packing moves nothing, but the flag and the mode that switch offloading off switch it off too. Low
 * pressure does not hold it back: packing leaves the layer itself as it is. */
static void admit_packing(const rule_facts *facts, const ms_node *node, ms_admission *admission)
{
    uint32_t rule = rules_judge_mode(facts, true, false);
    if (node->flags & MS_NODE_COMPILED) {
        rule = MS_RULE_COMPILED; /* the trace's masks are not those that the compiled code saves */
    }
    uint32_t place = rules_judge_place(node);
    if (node->kind == MS_NODE_ROOT || place != ADMITTED) {
        rule = node->kind == MS_NODE_ROOT ? (uint32_t)MS_RULE_ROOT_WORK : place;
    }
    if (facts->pressure->comfortable) {
        rule = MS_RULE_COMFORTABLE;
    }
    admission->packs = rule == ADMITTED;
    if (rule == ADMITTED) {
        rule = facts->pressure->forced ? MS_RULE_FORCED : MS_RULE_PRESSURE;
    }
    admission->packing_rule = rule;
}

/* Under low pressure, nodes that save much less than the largest are left alone. */
static bool rules_hold_back(const rule_facts *facts, const ms_admission *admission)
{
    return !facts->pressure->forced && facts->config->mode != MS_MODE_AGGRESSIVE &&
           facts->pressure->permille <= MS_LOW_PRESSURE_PERMILLE &&
           ms__mul_sat(admission->saved_bytes, 4) < facts->largest_bytes;
}

static void admit_node(const rule_facts *facts, const ms_node *node, ms_admission *admission)
{
    const uint32_t keep = 1u << MS_TECHNIQUE_KEEP;
    bool comfortable = facts->pressure->comfortable;
    admission->techniques = admission->under_pressure = keep;
    uint32_t place = rules_judge_place(node);
    admission->rule[MS_TECHNIQUE_KEEP] = comfortable         ? MS_RULE_COMFORTABLE
                                         : place != ADMITTED ? place
                                                             : (uint32_t)MS_RULE_KEEP_ALWAYS;
    for (int i = MS_TECHNIQUE_KEEP + 1; i < MS_TECHNIQUE_COUNT; i++) {
        uint32_t rule =
            comfortable ? (uint32_t)MS_RULE_COMFORTABLE : rules_judge(facts, node, admission, (ms_technique)i);
        if (rule != ADMITTED) {
            admission->rule[i] = rule;
            continue;
        }
        admission->under_pressure |= 1u << i;
        if (rules_hold_back(facts, admission)) {
            admission->rule[i] = MS_RULE_LOW_PRESSURE;
            continue;
        }
        admission->techniques |= 1u << i;
        admission->rule[i] = facts->pressure->forced ? MS_RULE_FORCED : MS_RULE_PRESSURE;
    }
}

int ms_rules_admit(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                   const ms_pressure *pressure, ms_admission *admissions, ms_error *err)
{
    rule_facts facts = {.graph = graph,
                        .hardware = hardware,
                        .config = config,
                        .pressure = pressure,
                        .floor_bytes = pressure->forced ? 1 : MS_OFFLOAD_MIN_BYTES,
                        .disk_cap_bytes = ms_rules_disk_cap(hardware, config),
                        .host_cap_bytes = ms_rules_host_cap(hardware, config)};
    uint64_t *alike_bytes = ms_calloc(ms__max_u64(graph->profile_count, 1), sizeof *alike_bytes);
    if (alike_bytes == NULL) {
        return ms_fail(err, MS_ENOMEM, "rules: out of memory");
    }
    facts.alike_bytes = alike_bytes;
    int rc = MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < graph->node_count; i++) {
        if (graph->nodes[i].profile >= graph->profile_count) {
            rc = ms_fail(err, MS_EINVAL, "rules: node %u has no profile", i);
            break;
        }
        memset(&admissions[i], 0, sizeof admissions[i]);
        rules_sum_saved(&facts, &graph->nodes[i], &admissions[i]);
        facts.largest_bytes = ms__max_u64(facts.largest_bytes, admissions[i].saved_bytes);
        uint64_t *alike = &alike_bytes[graph->nodes[i].profile];
        *alike = ms__add_sat(*alike, admissions[i].saved_bytes);
    }
    for (uint32_t i = 0; rc == MS_OK && i < graph->node_count; i++) {
        admit_node(&facts, &graph->nodes[i], &admissions[i]);
        admit_packing(&facts, &graph->nodes[i], &admissions[i]);
    }
    ms_free(alike_bytes);
    return rc;
}
