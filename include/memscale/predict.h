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

#ifdef __cplusplus
}
#endif

#endif
