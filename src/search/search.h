/*
 * The search's set of candidates, each replayed once without a cache. Graph, hardware and the techniques
 * admitted under pressure determine the candidates; the budget does not, which makes the choice monotone.
 * families.c proposes, search.c replays and keeps, solver.c selects.
 *
 * Tests: tests/c/search/test_selective.c, test_segment.c and test_packing.c (families),
 * tests/c/plan/test_solver.c (the whole search).
 */
#ifndef MS_SEARCH_SEARCH_H
#define MS_SEARCH_SEARCH_H

#include "sim/step_options.h"

/* COMBINED: steps made of the options alone. The others move a part of the optimizer's state. */
enum { MS__WINDOW_COUNT = 3, MS__STEPS_COMBINED_MOST = 32, MS__STEPS_MOST = 128 };

/* Admission bits: CHAINED techniques, whose argument the layers before recompute; SELECTIVE ones; and the rest,
 * which treat a WHOLE layer alike. */
#define MS__BIT_IF_CHAINED(id, name, replays, rest, set, nesting, joined, ...) \
    | ((joined) || (nesting) > 0 ? 1u << MS_TECHNIQUE_##id : 0u)
#define MS__BIT_IF_SELECTIVE(id, name, replays, rest, set, ...) | ((set) > 0 ? 1u << MS_TECHNIQUE_##id : 0u)
#define MS__CHAINED (0u MS_TECHNIQUE_TABLE(MS__BIT_IF_CHAINED))
#define MS__SELECTIVE (0u MS_TECHNIQUE_TABLE(MS__BIT_IF_SELECTIVE))
#define MS__WHOLE (((1ull << MS_TECHNIQUE_COUNT) - 1) & ~(unsigned long long)(MS__CHAINED | MS__SELECTIVE))

typedef struct ms__window {
    uint64_t write_bytes, read_bytes;
} ms__window;

/* A set of step options, and its step. */
typedef struct ms__search_step {
    uint32_t options; /* bits of ms_step_option */
    uint64_t moved_bytes; /* of optimizer state, if the options move it: see ms_choices */
    ms__sim *sim;
} ms__search_step;

/* One assignment of techniques with a window in one step, and the result of its replay. */
typedef struct ms__candidate {
    uint32_t window;
    uint32_t step;
    bool uniform;             /* one technique wherever admitted, for comparison */
    bool light;               /* uses only techniques admitted at low pressure */
    uint64_t step_ns;         /* without a cache */
    uint64_t work_ns;         /* without page faults: a cache changes only those */
    uint64_t fixed_bytes;
    uint64_t live_peak_bytes; /* peak = fixed + live */
    uint64_t activation_peak_bytes;
    uint64_t boundary_bytes;
    uint64_t held_most_bytes;
} ms__candidate;

typedef struct ms__search {
    const ms_graph *graph;
    const ms_hardware *hardware;
    ms__search_step steps[MS__STEPS_MOST]; /* the first has no options */
    uint32_t step_count;
    uint32_t step;             /* the step in use: see ms__search_use() */
    ms__sim *sim;              /* of that step */
    ms_admission *admissions;  /* from the rules, without sets that a node lacks */
    uint32_t node_count;
    uint64_t offload_min_bytes;
    uint64_t runs_differ_bytes; /* bytes by which the baseline of another run of the script may be larger */
    uint64_t tier_cap_bytes[MS__TIER_COUNT];
    ms__window windows[MS__WINDOW_COUNT];
    bool waits;                /* transfers do not overlap compute: see ms_choices */
    uint64_t pinned_bytes;     /* of the host tier: see ms_choices */
    uint32_t *layers;          /* layers that may be recomputed or move */
    uint32_t layer_count;
    uint32_t *roots;           /* root work that may move */
    uint32_t root_count;
    uint32_t layer_techniques; /* union over the layers, without selective ones */
    uint32_t selective_techniques; /* union of the selective ones */
    uint32_t segment_techniques; /* union of the chained ones */
    uint32_t offered;          /* techniques that refinement tries at single nodes */
    uint32_t root_technique;   /* the tier for root work */
    uint64_t replays_left;
    uint64_t replays_most;     /* initial replays_left */
    uint32_t permille;         /* share of the replays that the configuration grants */
    size_t plain_count;        /* candidates made before bit packing */
    size_t whole_count;        /* candidates made before state moved in part */
    bool packing_offered;      /* refinement packs and unpacks single nodes */
    bool forced;
    ms__candidate *items;
    uint32_t row_bytes;        /* of an assignment: each node's technique and then, if any storage is two-valued,
                                * each node's number of packed ones */
    uint8_t *rows;             /* [capacity][row_bytes] */
    size_t count, capacity;
    uint32_t *table;           /* open addressing over items, 1-based; 0 is empty */
    size_t table_size;         /* a power of two */
    uint8_t *scratch;          /* [row_bytes] for the families */
    bool out_of_memory;
} ms__search;

/* `options`: the admitted step options. Keeps pointers to graph and hardware. MS_ENOMEM. */
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

/* The granted share of `replays`. */
uint64_t ms__search_share(const ms__search *search, uint64_t replays);

/* Sets the scratch to keep everything and pack nothing. */
void ms__search_keep_all(ms__search *search);
/* Loads a candidate's row into the scratch and uses its step. */
void ms__search_load(ms__search *search, size_t index);

static inline uint64_t ms__candidate_peak(const ms__candidate *candidate)
{
    return candidate->fixed_bytes + candidate->live_peak_bytes;
}

/* The exactness of a candidate: that of its step's least exact option. */
ms_exactness ms__candidate_exactness(const ms__search *search, size_t candidate);

/* Selects the step for the following replays. */
void ms__search_use(ms__search *search, uint32_t step);
/* The step with exactly these options; step_count if they are not all admitted. */
uint32_t ms__search_find_step(const ms__search *search, uint32_t options);
/* The step with these options that moves `moved_bytes` of state (0: all), if they move any. It is made if there is none.
 * Returns step_count if the options are not all admitted, or if there is neither this step nor room or memory for it. */
uint32_t ms__search_step_for(ms__search *search, uint32_t options, uint64_t moved_bytes);

ms_choices ms__search_choices(const ms__search *search, const uint8_t *row, uint32_t window, uint64_t ceiling_bytes);

/* Replays search->scratch under the window and adds it as a candidate. Does nothing if it was added before,
 * if a tier would overflow, or if no replays are left and `must` is false. */
void ms__search_add(ms__search *search, uint32_t window, bool must);

/* The node's technique: `wanted` if admitted, else `second` if admitted, else keep. */
uint8_t ms__search_pick(const ms__search *search, uint32_t node, ms_technique wanted, ms_technique second);

/* Whether any technique moves something. Only such rows need windows; others are replayed under window 0. */
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
/* Parts of split and mixed: kept layers and `technique`, or `second` if `technique` is refused; kept layers
 * and two techniques. */
void ms__families_split_one(ms__search *search, ms_technique technique, ms_technique second);
void ms__families_mix_two(ms__search *search, ms_technique one, ms_technique two);
/* A technique wherever admitted, with root work that stays or moves. */
void ms__families_everywhere(ms__search *search, ms_technique technique);
/* families_selective.c: the same with selective sets, which later refinement also tries at single nodes. */
void ms__families_selective(ms__search *search);
/* families_segment.c: segments, nested segments and joined layers, beside other techniques. */
void ms__families_segment(ms__search *search);
/* families_packing.c: adds bit packing to the best candidates. */
void ms__families_packing(ms__search *search);
/* families_state.c: the best candidates with a part of the optimizer's state moved. */
void ms__families_state(ms__search *search);
/* Packs every two-valued storage of all candidates that move anything. */
void ms__families_packing_moves(ms__search *search);
/* Whether a two-valued storage is large enough for the executor. */
static inline bool ms__search_may_pack(const ms__search *search, const ms__sim_bits *bits)
{
    return bits->saved_bytes + bits->bytes >= search->offload_min_bytes;
}

/* The most two-valued storages of a node, in their order, that may be packed in the current step: up to the
 * last one large enough. 0 if the rules refuse packing. */
uint32_t ms__search_packs(const ms__search *search, uint32_t node);
/* Adds neighbours of the candidates that no other dominates in time and peak. */
void ms__families_refine(ms__search *search);
/* Adds neighbours of one candidate. */
void ms__families_around(ms__search *search, size_t index);

/* The two extremes: no cache, and a cache that saves every page fault. */
typedef enum ms__front_kind { MS__FRONT_UNCACHED, MS__FRONT_CACHED } ms__front_kind;

/* Fills in the indices of the candidates that no equally or more exact one dominates in time and peak,
 * fastest first: of the first `among` candidates, and with `light` only of light ones. At most `most`, evenly
 * spread. Returns their number. */
size_t ms__search_front(ms__search *search, ms__front_kind kind, bool light, size_t among, size_t *indices,
                        size_t most);

/* A total order by time, peak, row and window. */
int ms__candidate_compare(const ms__search *search, size_t left, size_t right);

#endif
