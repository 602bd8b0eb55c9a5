/*
 * Graphs and machines for the tests of planning, made by hand so that replays can be worked out on paper.
 */
#ifndef MS_TEST_PLAN_FIXTURE_H
#define MS_TEST_PLAN_FIXTURE_H

#include "memscale/pipeline.h"
#include "test_common.h"

#define MIB ((uint64_t)1 << 20)

/* One layer of a chain. Times are work in forward; backward takes twice as much. */
typedef struct fixture_layer {
    uint64_t saved_bytes; /* inner result kept for backward */
    uint64_t temp_bytes;  /* scratch tensor in forward */
    uint64_t flops;       /* in forward */
    uint64_t gradient_bytes;
    uint32_t flags;
    uint64_t maker_flops; /* to recompute the inner result from the input; 0: impossible */
} fixture_layer;

/* root "embed", layers "h.0" ... , root head with the loss; activations between them
 * have `activation_bytes`, the head makes `logits_bytes` (logits, log-softmax and
 * gradient). Checked by ms_graph_check(). */
typedef struct fixture_chain {
    uint32_t layer_count;
    const fixture_layer *layers; /* [layer_count], or one for all if `uniform` */
    bool uniform;
    uint64_t activation_bytes;
    uint64_t logits_bytes;
    uint64_t parameter_bytes;
    uint64_t state_bytes;
    bool marks_loss; /* the cross entropy is marked, and makes one more buffer in backward */
    bool marks_head; /* the layer that makes its logits is marked too */
    uint64_t head_bytes; /* bytes of that layer's weight gradient */
    bool is_half;    /* that layer is of 16 bits; its result is cast for the cross entropy */
} fixture_chain;

ms_graph *fixture_chain_graph(const fixture_chain *chain);

/* A list of one storage, with its bytes. */
void fixture_list_storage(ms_storage_list *list, uint32_t storage, uint64_t bytes);

/* Makes the layers' own saved storages two-valued, with elements of four bytes. */
void fixture_mark_masks(ms_graph *graph);

/* A CPU host: 1 GFLOP/s, so that a FLOP takes a nanosecond; bytes moved by operators,
 * page faults and checksums cost nothing; a disk of 1 GB/s both ways. Nothing resident. */
ms_hardware *fixture_hardware(void);

/* From now on the training device is a card of 24,000 MiB and 10 TFLOP/s, with the same rate both ways over its link. */
void fixture_use_card(ms_hardware *hardware, uint64_t link_bytes_per_s);

/* The graphs for property tests: 0 .. FIXTURE_GRAPHS-1. */
enum { FIXTURE_GRAPHS = 6 };
ms_graph *fixture_graph(int which);

/* The machine for them: every cost counts. */
ms_hardware *fixture_real_hardware(void);

/* The documents of a plan; a test may change any of them between two plans. */
typedef struct fixture_planning {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
} fixture_planning;

/* Takes `graph`, with the real machine and the default configuration. */
fixture_planning fixture_open(ms_graph *graph);
void fixture_close(fixture_planning *f);

/* The step under `techniques`, one for each node, and these options. */
ms_replay fixture_simulate(const fixture_planning *f, const uint8_t *techniques, uint32_t step_options);

/* As ms_pipeline_plan() at a budget. */
int fixture_try_plan(const fixture_planning *f, uint64_t budget_bytes, ms_plan **plan, ms_error *err);

/* The plan of a feasible budget. Freed by the caller. */
ms_plan *fixture_plan_at(const fixture_planning *f, uint64_t budget_bytes);

/* Planning at a budget gives a plan or MS_ENOMEM, and leaks nothing, whichever allocation fails. */
void fixture_plan_without_memory(const fixture_planning *f, uint64_t budget_bytes);

/* The smallest budget that a refusal names. */
uint64_t fixture_smallest_budget(const fixture_planning *f);

/* The need of an unoptimized step. */
uint64_t fixture_need(const fixture_planning *f);

/* The k-th of `count` budgets from the smallest to 20% above the need. */
uint64_t fixture_budget(uint64_t smallest, uint64_t need, uint64_t k, uint64_t count);

/* Asserts that `text` contains `part`; frees the text. */
void fixture_assert_says(char *text, const char *part);

#endif
