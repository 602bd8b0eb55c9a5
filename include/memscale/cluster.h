/*
 * cluster.h - one rank's step among many: from the graph of a process that trains alone, what each of N ranks holds
 * and sends.
 *
 * `memscale predict --ranks` calls it before it plans. It changes the three documents of the plan; owns nothing. Each
 * rank is taken to hold the batch of the graph. Thread-safe.
 *
 * What torch 2.13 holds:
 *   DDP    buckets as large as all gradients, beside the gradients (gradient_as_bucket_view=False, the default).
 *   FSDP2  `fully_shard` on every repeated layer and on the model. A rank holds its part of parameters, gradients and
 *          state. The root's group (embeddings, head) stays gathered from its forward to the end of backward, and so do
 *          its gradients, which the graph keeps whole. Beside it are gathered: a layer, and the next one ahead of its
 *          use; and a layer's whole gradients, once more as the input of their reduction.
 * These are upper bounds: not all of it is held at one moment.
 *
 * What is sent follows from ring algorithms: each rank sends (N-1)/N of the bytes that it gathers or reduces, twice for
 * DDP's all-reduce.
 *
 * Tests: tests/c/pipeline/test_cluster.c; tests/python/test_cluster.py compares with real ranks.
 */
#ifndef MEMSCALE_CLUSTER_H
#define MEMSCALE_CLUSTER_H

#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How ranks share a training. */
typedef enum ms_parallelism {
    MS_PARALLELISM_DDP, /* each holds the whole model */
    MS_PARALLELISM_FSDP /* each holds a part of it */
} ms_parallelism;
/* "ddp" or "fsdp". */
MS_API const char *ms_parallelism_name(ms_parallelism parallelism);

enum { MS_CLUSTER_RANKS_MOST = 65536, MS_CLUSTER_HOST_RANKS = 8 };

/* The question. */
typedef struct ms_cluster {
    uint32_t ranks;
    ms_parallelism parallelism;
    uint64_t link_bytes_per_s; /* that a rank sends; 0: the card's, by ms_hardware_peer_bytes_per_s() */
} ms_cluster;

/* The answer for one rank, beside its plan. */
typedef struct ms_cluster_share {
    uint64_t gathered_bytes;   /* held for the exchange: buckets, or gathered parameters and layers' gradients */
    uint64_t sent_bytes;       /* a step */
    uint64_t link_bytes_per_s; /* 0: unknown */
    uint64_t exchange_ns;      /* sent_bytes at that rate; 0 if it is unknown */
} ms_cluster_share;

/*
 * Changes the documents to those of one rank: resident bytes and gradients of the graph, the process of the hardware,
 * and for FSDP the techniques of the configuration. A GPU's host, with its memory and disk, serves
 * MS_CLUSTER_HOST_RANKS ranks; on a CPU each rank has such a machine for itself. MS_EINVAL for less than one rank or
 * too many; nothing changes then. MS_EFORMAT if nodes that share a profile differ in what they keep of gradients.
 */
MS_API int ms_cluster_apply(const ms_cluster *cluster, ms_graph *graph, ms_hardware *hardware, ms_config *config,
                            ms_cluster_share *share, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
