/*
 * The solver's set of candidates, each replayed once without a cache. Graph, hardware and the techniques
 * admitted under pressure decide which candidates exist, never the budget: that makes the choice monotone.
 * families.c proposes, search.c replays and keeps, solver.c selects.
 *
 * Tests: tests/c/search/test_selective.c, test_segment.c and test_packing.c (families),
 * tests/c/plan/test_solver.c (the whole search).
 */
#ifndef MS_SEARCH_SEARCH_H
#define MS_SEARCH_SEARCH_H

#include "sim/step_options.h"

enum { MS__WINDOW_COUNT = 3, MS__STEPS_MOST = 32 };

/* Admission bits: techniques with arguments recomputed by layers before; selective ones; and the others,
 * which treat a whole layer alike. */
#define MS__BIT_IF_CHAINED(id, name, replays, rest, set, nesting, joined, ...) \
    | ((joined) || (nesting) > 0 ? 1u << MS_TECHNIQUE_##id : 0u)
#define MS__BIT_IF_SELECTIVE(id, name, replays, rest, set, ...) | ((set) > 0 ? 1u << MS_TECHNIQUE_##id : 0u)
#define MS__CHAINED (0u MS_TECHNIQUE_TABLE(MS__BIT_IF_CHAINED))
#define MS__SELECTIVE (0u MS_TECHNIQUE_TABLE(MS__BIT_IF_SELECTIVE))
#define MS__WHOLE (((1ull << MS_TECHNIQUE_COUNT) - 1) & ~(unsigned long long)(MS__CHAINED | MS__SELECTIVE))

typedef struct ms__window {
    uint64_t write_bytes, read_bytes;
} ms__window;

/* One set of step options, with its step. */
typedef struct ms__search_step {
    uint32_t options; /* bits of ms_step_option */
    ms__sim *sim;
} ms__search_step;

/* One assignment of techniques with a window in one step, and the result of its replay. */
typedef struct ms__candidate {
    uint32_t window;
    uint32_t step;
    bool uniform;             /* one technique wherever admitted: a yardstick */
    bool light;               /* uses only techniques admitted at low pressure */
    uint64_t step_ns;         /* without a cache */
    uint64_t work_ns;         /* without page faults, the only part that a cache changes */
    uint64_t fixed_bytes;
    uint64_t live_peak_bytes; /* peak = fixed + live */
    uint64_t activation_peak_bytes;
    uint64_t boundary_bytes;
    uint64_t held_most_bytes;
} ms__candidate;

typedef struct ms__search {
    ms__search_step steps[MS__STEPS_MOST]; /* the first has no options */
    uint32_t step_count;
    uint32_t step;             /* the step that is replayed now: see ms__search_use() */
    ms__sim *sim;              /* of that step */
    ms_admission *admissions;  /* the rules' answers, without sets that a node lacks */
    uint32_t node_count;
    uint64_t offload_min_bytes;
    uint64_t runs_differ_bytes; /* bytes that another run of the script may hold beyond this one's baseline */
    uint64_t tier_cap_bytes[MS__TIER_COUNT];
    ms__window windows[MS__WINDOW_COUNT];
    bool waits;                /* transfers do not overlap compute: see ms_choices */
    uint32_t *layers;          /* layers that may run again or move */
    uint32_t layer_count;
    uint32_t *roots;           /* root work that can move */
    uint32_t root_count;
    uint32_t layer_techniques; /* union over the layers, selective ones aside */
    uint32_t selective_techniques; /* union of those */
    uint32_t segment_techniques; /* union of those with an argument from the layer before */
    uint32_t offered;          /* techniques that single nodes are changed to */
    uint32_t root_technique;   /* the tier for root work */
    uint64_t replays_left;
    uint64_t replays_most;     /* their initial number */
    size_t plain_count;        /* candidates made before any with bit packing */
    bool packing_offered;      /* refinement packs and unpacks single nodes */
    bool forced;
    ms__candidate *items;
    uint32_t row_bytes;        /* of an assignment: a technique for each node and then, if any storage is two-valued,
                                * for each node the number of packed ones */
    uint8_t *rows;             /* [capacity][row_bytes] */
    size_t count, capacity;
    uint32_t *table;           /* open addressing over items, 1-based; 0 is empty */
    size_t table_size;         /* a power of two */
    uint8_t *scratch;          /* [row_bytes] for the families */
    bool out_of_memory;
} ms__search;

/* `options`: the admitted step options. MS_ENOMEM. */
int ms__search_open(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                    const ms_admission *admissions, bool forced, uint32_t options, ms__search *search, ms_error *err);
void ms__search_close(ms__search *search);

/* The row of candidate `index`; techniques come first. */
static inline const uint8_t *ms__candidate_row(const ms__search *search, size_t index)
{
    return &search->rows[index * search->row_bytes];
}

/* A row's numbers of packed storages; NULL if no storage is two-valued. */
static inline const uint8_t *ms__row_packed(const ms__search *search, const uint8_t *row)
{
    return search->row_bytes > search->node_count ? row + search->node_count : NULL;
}

/* Sets the scratch to keep everything, unpacked. */
void ms__search_keep_all(ms__search *search);
/* Loads a candidate's row into the scratch and uses its step. */
void ms__search_load(ms__search *search, size_t index);

static inline uint64_t ms__candidate_peak(const ms__candidate *candidate)
{
    return candidate->fixed_bytes + candidate->live_peak_bytes;
}

/* A candidate's class: the least exact of its step's options. */
ms_exactness ms__candidate_exactness(const ms__search *search, size_t candidate);

/* Selects the step that is replayed from now on. */
void ms__search_use(ms__search *search, uint32_t step);
/* The step with exactly these options, or step_count. */
uint32_t ms__search_find_step(const ms__search *search, uint32_t options);

ms_choices ms__search_choices(const ms__search *search, const uint8_t *row, uint32_t window, uint64_t ceiling_bytes);

/* Replays search->scratch under the window and adds it. Does nothing if it was added before, if a tier
 * would overflow, or if replays have run out and `must` is false. */
void ms__search_add(ms__search *search, uint32_t window, bool must);

/* The node's technique: `wanted` if admitted, else `second` if admitted, else keep. */
uint8_t ms__search_pick(const ms__search *search, uint32_t node, ms_technique wanted, ms_technique second);

/* Whether any technique moves something; only those need windows, the others are replayed under window 0. */
bool ms__search_moves(const ms__search *search, const uint8_t *techniques);

/* families.c */
/* Sets root work in the scratch to move, if admitted, or to stay. */
void ms__families_set_roots(ms__search *search, bool moved);
/* One technique wherever admitted, under each window. */
void ms__families_one(ms__search *search, ms_technique technique);
/* The same for all techniques, with and without root work. The candidate that keeps all comes first. */
void ms__families_uniform(ms__search *search);
void ms__families_split(ms__search *search);
void ms__families_greedy(ms__search *search);
void ms__families_mixed(ms__search *search);
/* Their parts: kept layers and one technique, with `second` where that one is refused; kept layers and two
 * techniques. */
void ms__families_split_one(ms__search *search, ms_technique technique, ms_technique second);
void ms__families_mix_two(ms__search *search, ms_technique one, ms_technique two);
/* A technique wherever admitted, with root work that stays or moves. */
void ms__families_everywhere(ms__search *search, ms_technique technique);
/* families_selective.c: the same with selective sets; later refinement uses them at single nodes too. */
void ms__families_selective(ms__search *search);
/* families_segment.c: segments, nested ones and joined layers, beside other techniques. */
void ms__families_segment(ms__search *search);
/* families_packing.c: bit packing on the best candidates without it. */
void ms__families_packing(ms__search *search);
/* The same on all candidates that move anything, with every storage packed. */
void ms__families_packing_moves(ms__search *search);
/* Whether a two-valued storage is large enough for the executor to look at. */
static inline bool ms__search_may_pack(const ms__search *search, const ms__sim_bits *bits)
{
    return bits->saved_bytes + bits->bytes >= search->offload_min_bytes;
}

/* The number of a node's two-valued storages, in their order, that may be packed in the current step, down
 * to the last one large enough; 0 if the rules refuse packing. */
uint32_t ms__search_packs(const ms__search *search, uint32_t node);
/* Neighbours of the candidates that none dominates in time and peak. */
void ms__families_refine(ms__search *search);
/* Neighbours of one candidate. */
void ms__families_around(ms__search *search, size_t index);

/* The two extremes of a cache: none, and one that saves every page fault. */
typedef enum ms__front_kind { MS__FRONT_UNCACHED, MS__FRONT_CACHED } ms__front_kind;

/* Indices of the candidates that no other of an equal or more exact class dominates in time and peak,
 * fastest first; light ones only if `light`; among the first `among`. At most `most`, evenly spread.
 * Returns their number. */
size_t ms__search_front(ms__search *search, ms__front_kind kind, bool light, size_t among, size_t *indices,
                        size_t most);

/* (time, peak, row, window): a total order. */
int ms__candidate_compare(const ms__search *search, size_t left, size_t right);

#endif
