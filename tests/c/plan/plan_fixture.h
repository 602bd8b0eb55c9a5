/*
 * Graphs and machines for the tests of planning, made by hand so that what a replay
 * must give can be worked out on paper.
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
    uint64_t maker_flops; /* to make the inner result again from the input; 0: it can't be */
} fixture_layer;

/* root "embed", layers "h.0" ... , root head with the loss; activations between them
 * have `activation_bytes`, the head makes `logits_bytes` (logits, log-softmax and
 * gradient). Checked by ms_graph_check(). */
typedef struct fixture_chain {
    uint32_t layer_count;
    const fixture_layer *layers; /* [layer_count], or one for all where `uniform` */
    bool uniform;
    uint64_t activation_bytes;
    uint64_t logits_bytes;
    uint64_t parameter_bytes;
    uint64_t state_bytes;
    bool marks_loss; /* the cross entropy is marked, and makes one buffer more in backward */
} fixture_chain;

ms_graph *fixture_chain_graph(const fixture_chain *chain);

/* A CPU host: 1 GFLOP/s, so that a FLOP takes a nanosecond; bytes moved by operators,
 * page faults and checksums cost nothing; a disk of 1 GB/s both ways. Nothing resident. */
ms_hardware *fixture_hardware(void);

/* The graphs that properties are tried on: 0 .. FIXTURE_GRAPHS-1. */
enum { FIXTURE_GRAPHS = 6 };
ms_graph *fixture_graph(int which);

/* The machine for them: every cost counts. */
ms_hardware *fixture_real_hardware(void);

#endif
