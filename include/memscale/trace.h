/*
 * trace.h - turns the event stream of one training step into an ms_graph.
 *
 * The profiler in Python only reports events, in order; every size, cost and conclusion is computed here. A key
 * identifies a storage while it lives (torch's StorageImpl address). enter() opens a node, leave() closes it. Events
 * outside any layer belong to a root node. One exception: a storage that dies after a layer, before any other event,
 * still dies in that layer, so that a caller that only passes results on makes no node. In backward the current node
 * is the node whose saved tensor was requested last.
 * Tests: tests/c/trace/test_trace.c.
 *
 * A call in the wrong phase is MS_ESTATE, a call with an unknown key, node or serial is MS_EINVAL; neither changes
 * the trace. One thread at a time; after MS_ENOMEM a trace can only be freed.
 */
#ifndef MEMSCALE_TRACE_H
#define MEMSCALE_TRACE_H

#include "memscale/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A trace under construction. */
typedef struct ms_trace ms_trace;

/* The phase of the step. */
typedef enum ms_trace_phase {
    MS_TRACE_FORWARD,   /* the root's forward runs */
    MS_TRACE_LOSS,      /* between the end of forward and the start of backward */
    MS_TRACE_BACKWARD,
    MS_TRACE_OPTIMIZER,
    MS_TRACE_DONE
} ms_trace_phase;

/* The kind of a resident storage. */
typedef enum ms_resident_role { MS_RESIDENT_PARAMETER, MS_RESIDENT_BUFFER, MS_RESIDENT_BATCH } ms_resident_role;

/* An operand of an operator: its dimensions (rank <= 8) and bytes. */
typedef struct ms_operand {
    uint32_t rank;
    uint64_t size[8];
    uint64_t bytes;
    bool are_truths; /* elements of torch's bool; set for results only */
} ms_operand;

/* Begins the trace of a step. The texts are copied for the graph. */
MS_API int ms_trace_new(const char *model, const char *signature, const char *source, ms_trace **trace, ms_error *err);
/* Frees a trace, finished or not. Accepts NULL. */
MS_API void ms_trace_free(ms_trace *trace);

/* Reports a storage that exists before the step and stays. It has no events, but a layer's input may be a BATCH
 * storage. `item_bytes` is the size of one element, from which an optimizer's fp32 state follows. A known key
 * (tied weights) is counted once; it is trainable if one of its uses is. */
MS_API int ms_trace_resident(ms_trace *trace, uint64_t key, uint64_t bytes, uint32_t item_bytes, ms_resident_role role,
                             bool trainable, ms_error *err);

/* Phases only advance. LOSS, OPTIMIZER and DONE may be skipped, and DONE may be repeated. */
MS_API int ms_trace_set_phase(ms_trace *trace, ms_trace_phase phase, ms_error *err);

/* The optimizer's step could not be traced to its end: discards its events. The phase becomes DONE. */
MS_API int ms_trace_optimizer_unknown(ms_trace *trace, ms_error *err);

/* The optimizer is memscale's: `stream_bytes` of its state can lie on disk, and it can update parameters in
 * backward. `released`: the user, not a plan, chose updates in backward; `streamed`: the user put its state on
 * disk. */
MS_API int ms_trace_own_optimizer(ms_trace *trace, uint64_t stream_bytes, bool released, bool streamed, ms_error *err);

/* The caller computes the loss outside the model, from the outputs. The trace differentiated a substitute and
 * could not see the loss's buffers. */
MS_API int ms_trace_loss_outside(ms_trace *trace, ms_error *err);

/* A layer's call begins; `call` counts from 0 per module and step. `*node` receives its node number, for
 * unpacked() and dropped() of its saved tensors. Layers do not nest. */
MS_API int ms_trace_enter(ms_trace *trace, const char *name, uint32_t call, uint32_t *node, ms_error *err);
MS_API int ms_trace_leave(ms_trace *trace, ms_error *err);
/* The node of the last event of forward; UINT32_MAX before the first. */
MS_API uint32_t ms_trace_current(const ms_trace *trace);
/* A tensor argument of the layer just entered. For parameters, buffers and unknown keys, only the presence of a
 * tensor argument is recorded. */
MS_API int ms_trace_input(ms_trace *trace, uint64_t key, ms_error *err);
/* Facts about a node: MS_NODE_... bits, or-ed in. The trace sets NO_TENSOR_INPUT itself. */
MS_API int ms_trace_flag(ms_trace *trace, uint32_t node, uint32_t flags, ms_error *err);

/* Residents and storages of no bytes are ignored. */
MS_API int ms_trace_born(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err);
/* A key that was never born (a resident, a foreign storage) is ignored. */
MS_API int ms_trace_died(ms_trace *trace, uint64_t key, ms_error *err);
/*
 * In backward, autograd is about to add the gradient `other_key` to the gradient `key`, which is not a view. The
 * storage born next is the sum. If `key` has as many bytes and dies before the next event, it had no other holder; an
 * untraced torch then writes the sum over `key`, and the graph has one storage for both. Unknown keys are ignored.
 * Tests: tests/c/trace/test_trace_sums.c.
 */
MS_API int ms_trace_adds(ms_trace *trace, uint64_t key, uint64_t other_key, ms_error *err);
/* The operator that made a living storage left `bytes` of it untouched (oneDNN allocates more than it uses).
 * Unknown keys are ignored. */
MS_API int ms_trace_untouched(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err);
/* Sets a living storage's role: MS_STORAGE_OUTPUT of the root, or a parameter's MS_STORAGE_GRADIENT. A gradient
 * with an unknown key, of `bytes`, existed before the step and accumulates: it counts as allocated when backward
 * begins. Other unknown keys are ignored. */
MS_API int ms_trace_role(ms_trace *trace, uint64_t key, uint64_t bytes, ms_storage_role role, ms_error *err);

/* An operator ran. `name` is torch's ("aten.addmm.default"); the FLOPs of matrix
 * products, convolutions and attention follow from it and the shapes. */
MS_API int ms_trace_op(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                       const ms_operand *outputs, size_t output_count, ms_error *err);

/*
 * Mark the begin and end of a cross entropy over the rows of the logits `key`, outside of layers, and of its
 * backward: from the gradient of its value to `gradient_key`, the gradient of the logits. *head is 0 if it can't be
 * marked (inside a layer, or logits from outside the step); the other calls ignore 0.
 */
MS_API int ms_trace_loss(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err);
MS_API int ms_trace_loss_end(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_loss_backward(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_loss_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err);

/*
 * Mark a linear layer, outside of traced layers, that has just made the storage `key`, which may be logits.
 * head_used() confirms it: only the cross entropy `loss`, in the same node, reads them. Then its backward is marked:
 * from the gradient of its output to `gradient_key`, the gradient of its input. *head is 0 if it can't be marked; the
 * other calls ignore 0 and unconfirmed heads.
 */
MS_API int ms_trace_head(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err);
MS_API int ms_trace_head_used(ms_trace *trace, uint64_t head, uint64_t loss, ms_error *err);
MS_API int ms_trace_head_backward(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_head_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err);

/* The operator of ms_trace_op() ran on a CPU with operands in torch's default layout: records its workspace
 * (convolutions) as allocated and freed. */
MS_API int ms_trace_workspace(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                              const ms_operand *outputs, size_t output_count, ms_error *err);

/* True if an operator can run again by itself with the same bits, by torch's name and torch's tag "pointwise". The
 * caller leaves out random operators and operators that write to an operand. */
MS_API bool ms_operator_is_maker(const char *name, bool is_pointwise);

/* An operator's effect on the rows (positions) of a tensor, as far as its name tells. */
typedef enum ms_row_kind {
    MS_ROWS_MIX,     /* it may mix rows */
    MS_ROWS_EACH,    /* element by element: equal rows of its operands belong together */
    MS_ROWS_PRODUCT, /* a matrix product: rows of the left matrix are rows of the result */
    MS_ROWS_SEEN     /* a view, a copy, a sum or norm over a row: separate if the result keeps
                      * the rows in place */
} ms_row_kind;
MS_API ms_row_kind ms_operator_row_kind(const char *name, bool is_pointwise);

/* The storages that the last reported operator read, and the fresh ones that it made. `runs_again`:
 * ms_operator_is_maker() holds. Recorded only in a layer's forward. */
MS_API int ms_trace_made(ms_trace *trace, const uint64_t *inputs, size_t input_count, const uint64_t *outputs,
                         size_t output_count, bool runs_again, ms_error *err);
/* An operator wrote to a storage that existed before it ran. */
MS_API int ms_trace_wrote(ms_trace *trace, uint64_t key, ms_error *err);

/*
 * Autograd packed, unpacked or released a saved tensor. saved() returns the saving node and a serial for the save of
 * that storage, 0 if the storage is not the trace's (a parameter, the batch) or the phase is past LOSS. Both are
 * passed to the other two. Any number of calls gives one SAVE, NEED and DROP per node and storage.
 *
 * `copy_key` is the storage that an unpack made in place of the saved one, 0 if it made none. died() reports its
 * death, and DROP waits for it.
 */
MS_API int ms_trace_saved(ms_trace *trace, uint64_t key, uint32_t *node, uint64_t *serial, ms_error *err);
MS_API int ms_trace_unpacked(ms_trace *trace, uint32_t node, uint64_t serial, uint64_t copy_key, ms_error *err);
MS_API int ms_trace_dropped(ms_trace *trace, uint32_t node, uint64_t serial, ms_error *err);

/* Bytes that an unoptimized step would hold now, and their peak since the phase was set: without residents, with
 * all saved tensors. */
MS_API uint64_t ms_trace_live_bytes(const ms_trace *trace);
MS_API uint64_t ms_trace_peak_bytes(const ms_trace *trace);

/* Builds the graph. Nodes without events are left out; equal profiles are shared. Optimizer state is the storages
 * that the OPTIMIZER phase left alive, its transient the peak of the others. If that phase was not traced, state
 * is two fp32 values per trainable element, the transient twice the largest parameter. A loss outside the model
 * reserves twice the outputs' bytes: a row-wise log-softmax and its gradient. The trace can only be freed
 * afterwards. */
MS_API int ms_trace_finish(ms_trace *trace, ms_graph **graph, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
