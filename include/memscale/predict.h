/*
 * predict.h - a training step's graph from a Hugging Face configuration alone: no torch,
 * no weights, no run.
 *
 * The step is of transformers 5 and torch 2.13 on a CPU in float32 with sdpa attention: the family's causal language
 * model (for BERT, the masked one) in training mode, called with input_ids and labels of one shape, without padding.
 * Families: "llama", "mistral", "qwen2", "qwen3", "gpt2", "bert". The result equals the profiler's trace of that model:
 * residents, saved storages and live bytes agree to the byte. Tests: tests/c/predict/test_predict.c,
 * tests/python/test_predict.py.
 */
#ifndef MEMSCALE_PREDICT_H
#define MEMSCALE_PREDICT_H

#include "memscale/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * `config_json` is the text of a config.json. Members that do not affect the model are ignored. Missing members have
 * transformers' defaults, except that hidden size, layers, heads and vocabulary are required. MS_EFORMAT, with the
 * place, for a malformed document and inconsistent sizes; MS_ENOTSUP for another "model_type" and for features that are
 * not modelled (attention dropout of decoders, cross-attention, rotary positions that change with the sequence's
 * length): a trace can answer then; MS_EINVAL for a batch or sequence that the model can't take; MS_ENOMEM. Free the
 * graph with ms_graph_free(). Thread-safe.
 */
MS_API int ms_predict_hf_graph(const char *config_json, uint64_t batch, uint64_t seq, ms_graph **graph, ms_error *err);

/*
 * One rank's part of a model that is divided among ranks.
 *
 * `tensor_ranks` share every layer, as torch's parallelize_module() divides it: the linear layers of queries, keys,
 * values, gate and up by columns (ColwiseParallel), those of the output and down by rows (RowwiseParallel), so that
 * heads and the MLP's width are divided; the embedding by rows of words, the head by columns, with loss_parallel().
 * Norms are whole. Each linear layer by rows ends with an all-reduce of its output. In backward each one by columns
 * ends with an all-reduce of its input's gradient.
 * `by_sequence`: the stream between these linear layers is divided by tokens too (SequenceParallel for the norms,
 * PrepareModuleInput for attention and MLP, Shard(1) for outputs). All-gathers and reduce-scatters replace the
 * all-reduces.
 *
 * `stages` share the layers, as torch.distributed.pipelining runs them by Schedule1F1B(...).step(...,
 * return_outputs=False). The first stage has the embedding, the last one the head and the loss. Every stage has as many
 * layers as any other if that is possible; odd ones go to the second stage, the third, ..., and the last gets the rest,
 * as in torchtitan. torch has a buffer for each microbatch that a stage receives, and one for each gradient. The
 * graph is that of one microbatch, with the others that wait for their backward as pending forwards.
 */
typedef struct ms_part {
    uint32_t tensor_ranks; /* 1: whole layers */
    bool by_sequence;
    uint32_t stages;       /* 1: all layers */
    uint32_t stage;        /* from 0 */
    uint32_t microbatches; /* of a step; used if there are several stages */
    bool is_half;          /* layers run in BF16 */
} ms_part;

/* What the rank sends for one microbatch, forward and backward together. */
typedef struct ms_part_traffic {
    uint64_t tensor_bytes; /* to those that share its layers, by ring algorithms */
    uint64_t stage_bytes;  /* to the stages before and after */
} ms_part_traffic;

/*
 * The graph of one rank's part; `batch` sequences form one microbatch. As ms_predict_hf_graph() for one tensor rank and
 * one stage. MS_ENOTSUP, with the reason, for what torch does not divide: other families than "llama", "mistral",
 * "qwen2" and "qwen3"; heads, key heads, MLP or tokens that are no multiple of `tensor_ranks`; more stages than
 * layers or microbatches; a model whose head is its embedding. MS_EINVAL for a part that does not exist.
 * Tests: tests/c/predict/test_part.c; tests/python/test_parallel.py compares with real ranks.
 */
MS_API int ms_predict_hf_part(const char *config_json, uint64_t batch, uint64_t seq, const ms_part *part,
                              ms_graph **graph, ms_part_traffic *traffic, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
