/*
 * The differences between two graphs of one step: the traced one, and the one that a real step gave. For the
 * page docs/peaks.md and `python -m memscale.trace_diff`. Nothing here changes a graph.
 *
 * Nodes are paired by name and call. The events of a pair are aligned by their longest common subsequence
 * (Hunt and McIlroy's diff); two events are equal if kind and bytes are. Work is left out.
 */
#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "memscale/pipeline.h"
#include "plan/text.h"
#include "sim/sim.h"

enum {
    EVENTS_MOST = 4096, /* of a program; longer ones are cut, which the report states */
    LINES_MOST = 40     /* shown of a program */
};

/* An event that changes a storage's life, and the number of operators before it. */
typedef struct diff_event {
    uint32_t kind, operators;
    uint64_t bytes;
} diff_event;

typedef struct diff_events {
    diff_event *items;
    size_t count;
    bool cut;
} diff_events;

static bool events_equal(const diff_event *a, const diff_event *b)
{
    return a->kind == b->kind && a->bytes == b->bytes;
}

static diff_events events_of(const ms_profile *profile, bool backward)
{
    const ms_event *events = backward ? profile->backward : profile->forward;
    uint32_t count = backward ? profile->backward_count : profile->forward_count, operators = 0;
    diff_events found = {.items = ms_calloc(ms__min_u64(count, EVENTS_MOST) + 1, sizeof(diff_event))};
    for (uint32_t i = 0; found.items != NULL && i < count; i++) {
        operators += events[i].kind == MS_EVENT_WORK;
        if (events[i].kind > MS_EVENT_DROP) {
            continue; /* work and marks */
        }
        if (found.count == EVENTS_MOST) {
            found.cut = true;
            break;
        }
        found.items[found.count++] = (diff_event){events[i].kind, operators, profile->storage_bytes[events[i].storage]};
    }
    return found;
}

/* lengths[i][k]: the longest common subsequence of a from i and b from k. */
static uint16_t *common_lengths(const diff_events *a, const diff_events *b)
{
    size_t width = b->count + 1;
    uint16_t *lengths = ms_calloc((a->count + 1) * width, sizeof *lengths);
    for (size_t i = a->count; lengths != NULL && i-- > 0;) {
        for (size_t k = b->count; k-- > 0;) {
            uint16_t down = lengths[(i + 1) * width + k], right = lengths[i * width + k + 1];
            uint16_t both = (uint16_t)(lengths[(i + 1) * width + k + 1] + 1);
            lengths[i * width + k] = events_equal(&a->items[i], &b->items[k]) ? both : down > right ? down : right;
        }
    }
    return lengths;
}

static void diff_add_line(ms__text *text, const diff_event *event, bool in_trace, uint32_t *lines)
{
    static const char *const names[] = {[MS_EVENT_ALLOC] = "alloc",
                                        [MS_EVENT_FREE] = "free",
                                        [MS_EVENT_SAVE] = "save",
                                        [MS_EVENT_NEED] = "need",
                                        [MS_EVENT_DROP] = "drop"};
    if (++*lines > LINES_MOST) {
        return;
    }
    ms__text_add(text, "    %c %-5s %12s  after operator %" PRIu32 ", only in the %s\n", in_trace ? '-' : '+',
                 names[event->kind], ms__text_bytes(event->bytes).text, event->operators, in_trace ? "trace" : "step");
}

/* Prints the events that only one side has; returns their number. */
static uint32_t diff_add_events(ms__text *text, const diff_events *a, const diff_events *b)
{
    uint16_t *lengths = common_lengths(a, b);
    size_t i = 0, k = 0, width = b->count + 1;
    uint32_t lines = 0;
    if (lengths == NULL) {
        text->failed = true;
        return 0;
    }
    while (i < a->count || k < b->count) {
        bool both = i < a->count && k < b->count;
        if (both && events_equal(&a->items[i], &b->items[k])) {
            i++;
            k++;
        } else if (k == b->count || (both && lengths[(i + 1) * width + k] >= lengths[i * width + k + 1])) {
            diff_add_line(text, &a->items[i++], true, &lines);
        } else {
            diff_add_line(text, &b->items[k++], false, &lines);
        }
    }
    if (lines > LINES_MOST) {
        ms__text_add(text, "    ... and %" PRIu32 " more\n", lines - LINES_MOST);
    }
    ms_free(lengths);
    return lines;
}

static uint32_t diff_programs(ms__text *text, const ms_profile *traced, const ms_profile *seen, bool backward)
{
    diff_events a = events_of(traced, backward), b = events_of(seen, backward);
    uint32_t found = 0;
    bool equal = a.count == b.count;
    for (size_t i = 0; equal && i < a.count; i++) {
        equal = events_equal(&a.items[i], &b.items[i]);
    }
    if (a.items == NULL || b.items == NULL) {
        text->failed = true;
    } else if (!equal) {
        ms__text_add(text, "  %s%s\n", backward ? "backward" : "forward",
                     a.cut || b.cut ? " (its first 4096 events)" : "");
        found = diff_add_events(text, &a, &b);
    }
    ms_free(a.items);
    ms_free(b.items);
    return found;
}

static const ms_node *node_named(const ms_graph *graph, const ms_node *like)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].call == like->call && strcmp(graph->nodes[i].name, like->name) == 0) {
            return &graph->nodes[i];
        }
    }
    return NULL;
}

static void diff_add_title(ms__text *text, const ms_node *node, const char *more)
{
    ms__text_add(text, "%s, call %" PRIu32 "%s\n", node->name[0] != '\0' ? node->name : "(root)", node->call, more);
}

/* Whether a node before `index` had the same two profiles. */
static bool was_compared(const ms_graph *traced, const ms_graph *seen, uint32_t index, const ms_node *other)
{
    for (uint32_t i = 0; i < index; i++) {
        const ms_node *before = node_named(seen, &traced->nodes[i]);
        if (before != NULL && traced->nodes[i].profile == traced->nodes[index].profile &&
            before->profile == other->profile) {
            return true;
        }
    }
    return false;
}

static uint32_t diff_nodes(ms__text *text, const ms_graph *traced, const ms_graph *seen)
{
    uint32_t found = 0, like = 0;
    for (uint32_t i = 0; i < traced->node_count; i++) {
        const ms_node *node = &traced->nodes[i], *other = node_named(seen, node);
        if (other == NULL) {
            diff_add_title(text, node, ": only in the trace");
            found++;
            continue;
        }
        if (was_compared(traced, seen, i, other)) {
            like++;
            continue;
        }
        ms__text differences = {0};
        uint32_t here =
            diff_programs(&differences, &traced->profiles[node->profile], &seen->profiles[other->profile], false) +
            diff_programs(&differences, &traced->profiles[node->profile], &seen->profiles[other->profile], true);
        if (here > 0) {
            diff_add_title(text, node, "");
            ms__text_add(text, "%s", differences.bytes);
        }
        text->failed = text->failed || differences.failed;
        ms_free(differences.bytes);
        found += here;
    }
    for (uint32_t i = 0; i < seen->node_count; i++) {
        if (node_named(traced, &seen->nodes[i]) == NULL) {
            diff_add_title(text, &seen->nodes[i], ": only in the step");
            found++;
        }
    }
    ms__text_add(text, "%" PRIu32 " of %" PRIu32 " nodes repeat others and are not shown again\n", like,
                 traced->node_count);
    return found;
}

int ms_pipeline_trace_diff(const ms_graph *traced, const ms_graph *seen, const ms_hardware *hardware, char **report,
                           uint32_t *differences, ms_error *err)
{
    ms__text text = {0};
    ms_replay traced_kept, seen_kept;
    int rc = ms__simulate_kept(traced, hardware, &traced_kept, err);
    if (rc == MS_OK) {
        rc = ms__simulate_kept(seen, hardware, &seen_kept, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    ms__text_add(&text, "peak of tensors, everything kept: %s traced, ",
                 ms__text_bytes(traced_kept.peak_live_bytes).text);
    ms__text_add(&text, "%s in the step\n", ms__text_bytes(seen_kept.peak_live_bytes).text);
    *differences = diff_nodes(&text, traced, seen);
    ms__text_add(&text, *differences > 0 ? "%" PRIu32 " differences\n" : "no difference\n", *differences);
    *report = ms__text_take(&text);
    return *report != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "comparing graphs: out of memory");
}
