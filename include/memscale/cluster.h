/*
 * cluster.h - one rank's step among many: from the graph of its part of a model, what each of N ranks holds and sends.
 *
 * `memscale predict --ranks` calls it before it plans, and a session whose model FSDP has divided after each trace. It
 * changes the documents of the plan; owns nothing. Each rank is taken to hold the batch of the graph. Thread-safe.
 *
 * Ranks form a mesh of stages, of copies of a stage's layers, and of ranks that divide each layer, from far to near:
 * `ranks` is the product of the three. The graph is that of one part (ms_predict_hf_part()). Here its copies share it, by
 * DDP or FSDP.
 *
 * What torch 2.13 holds:
 *   DDP    buckets as large as all gradients, beside the gradients (gradient_as_bucket_view=False, the default).
 *   FSDP2  `fully_shard` on every repeated layer and on the model. A rank holds its part of parameters, gradients and
 *          state. The root's group (embeddings, head) stays gathered from its forward to the end of backward, and so do
 *          its gradients, which the graph keeps whole. Beside it are gathered: a layer, and the next one ahead of its
 *          use; and a layer's whole gradients, once more as the input of their reduction.
 *   FSDP2 of a stage of several: with reshard_after_forward=False, so that microbatches gather nothing again. All its
 *          parameters stay gathered, and gradients stay whole until the last microbatch; they are reduced once.
 *   FSDP2 with `mixed`: as MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32), for a graph in BF16.
 *          Parameters, their gradients and state are in FP32, what is gathered is in BF16. A layer's gradients are
 *          reduced in FP32; those that wait for other microbatches are FP32 too.
 * These are upper bounds: not all of it is held at one moment.
 *
 * What is sent follows from ring algorithms: each rank sends (N-1)/N of the bytes that it gathers or reduces, twice for
 * DDP's all-reduce.
 *
 * The time of a pipeline of P stages and M microbatches (1F1B): the slowest stage's work for one microbatch, M + P - 1
 * times; (P - 1) / (M + P - 1) of that is idle. What ranks that divide a layer send to each other delays their work.
 *
 * Tests: tests/c/pipeline/test_cluster.c; tests/python/test_cluster.py and test_parallel.py compare with real ranks.
 */
#ifndef MEMSCALE_CLUSTER_H
#define MEMSCALE_CLUSTER_H

#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How copies of a part share a training. */
typedef enum ms_parallelism {
    MS_PARALLELISM_NONE, /* there is one copy */
    MS_PARALLELISM_DDP,  /* each holds the whole part */
    MS_PARALLELISM_FSDP  /* each holds a share of it */
} ms_parallelism;
/* "none", "ddp" or "fsdp". */
MS_API const char *ms_parallelism_name(ms_parallelism parallelism);

enum { MS_CLUSTER_RANKS_MOST = 65536, MS_CLUSTER_HOST_RANKS = 8 };

/* The question. */
typedef struct ms_cluster {
    uint32_t ranks; /* all */
    ms_parallelism parallelism;
    uint32_t tensor_ranks; /* that divide each layer; 0 or 1: none do */
    uint32_t stages;       /* 0 or 1: no pipeline */
    uint32_t microbatches; /* of a step; used if there are several stages */
    bool mixed;            /* FSDP keeps in FP32 what the BF16 graph's parameters stand for; with AdamW */
    uint64_t tensor_bytes; /* that the rank sends for one microbatch, as in ms_part_traffic */
    uint64_t stage_bytes;
    uint64_t link_bytes_per_s; /* that a rank sends; 0: the card's, by ms_hardware_peer_bytes_per_s() */
} ms_cluster;

/* The answer for one rank, beside its plan. Times are 0 if the rate is unknown. */
typedef struct ms_cluster_share {
    uint64_t gathered_bytes;   /* held for the exchange: buckets, or gathered parameters and layers' gradients */
    uint64_t sent_bytes;       /* a step, to the other copies */
    uint64_t link_bytes_per_s; /* between copies; 0: unknown */
    uint64_t exchange_ns;      /* sent_bytes at that rate */
    uint64_t tensor_ns;        /* of tensor_bytes, for one microbatch */
    uint64_t stage_ns;         /* of stage_bytes, for one microbatch */
    uint64_t optimizer_ns;     /* part of a step's time that comes once, not for each microbatch */
} ms_cluster_share;

/* Copies of each part; 0 if `ranks` is no multiple of the ranks that hold one model. */
MS_API uint32_t ms_cluster_copies(const ms_cluster *cluster);

/*
 * Changes the documents to those of one rank: resident bytes and gradients of the graph, the process of the hardware,
 * and for divided layers the techniques of the configuration. A GPU's host, with its memory and disk, serves
 * MS_CLUSTER_HOST_RANKS ranks; on a CPU each rank has such a machine for itself. MS_EINVAL for less than one rank or
 * too many, for ranks that do not form a mesh, for several copies without a parallelism, and for `mixed` without FSDP;
 * nothing changes then. MS_EFORMAT if nodes that share a profile differ in what they keep of gradients.
 */
MS_API int ms_cluster_apply(const ms_cluster *cluster, ms_graph *graph, ms_hardware *hardware, ms_config *config,
                            ms_cluster_share *share, ms_error *err);

/* How FSDP has divided a model that is at hand. */
typedef struct ms_sharding {
    uint32_t copies; /* the ranks that it is divided among */
    bool mixed;      /* as in ms_cluster */
    /* Parameters stay gathered between forward and backward: with reshard_after_forward=False, or if the model is one
     * group. */
    bool stays_gathered;
    /* All gradients are reduced at once, so they are whole until then: in a pipeline, or if the model is one group. */
    bool reduces_once;
} ms_sharding;

/*
 * Changes a traced graph, in which parameters, gradients and state are whole, to that of one rank, and adds what the
 * rank gathers to what its process holds. *gathered_bytes: before, what the process holds of this already (0 at first);
 * after, what it holds of it now. MS_EINVAL for no copies; nothing changes then.
 */
MS_API int ms_cluster_shard(const ms_sharding *sharding, ms_graph *graph, ms_hardware *hardware,
                            uint64_t *gathered_bytes, ms_error *err);

/* The time of a step in which the slowest stage's plan takes `part_ns` for one microbatch, optimizer included. `hidden`:
 * what goes to copies and stages is sent while others compute. */
MS_API uint64_t ms_cluster_step_ns(const ms_cluster *cluster, const ms_cluster_share *share, uint64_t part_ns,
                                   bool hidden);

/* The part of the work's time in which a stage waits for others. */
MS_API uint32_t ms_cluster_idle_permille(const ms_cluster *cluster);

#ifdef __cplusplus
}
#endif

#endif
