/*
 * trace.h - turns the event stream of one training step into an ms_graph.
 *
 * The profiler in Python only reports events, in order; every size, cost and conclusion is computed here. A key
 * identifies a storage while it lives (torch's StorageImpl address). enter() opens a node, leave() closes it. Events
 * outside any layer belong to a root node. One exception: a storage that dies after a layer, before any other event,
 * still dies in that layer. So no node is made for a caller that only passes results on. In backward the current node
 * is the node whose saved tensor was requested last.
 * Tests: tests/c/trace/test_trace.c.
 *
 * MS_ESTATE for a call in the wrong phase, MS_EINVAL for an unknown key, node or serial; neither changes the trace.
 * One thread at a time; after MS_ENOMEM a trace can only be freed.
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
    ms_precision precision; /* of 16-bit floating-point elements; set for results only */
} ms_operand;

/* Begins the trace of a step. The texts are copied for the graph. */
MS_API int ms_trace_new(const char *model, const char *signature, const char *source, ms_trace **trace, ms_error *err);
/* Sets the threads that operators run on; 1 until then. */
MS_API void ms_trace_set_threads(ms_trace *trace, uint32_t threads);
/* The model lies on several devices, and the caller reports the storages of one: the root's own work, around which no
 * hooks of one device stay, gets MS_NODE_ELSEWHERE. Call it before the first event. */
MS_API void ms_trace_on_several_devices(ms_trace *trace);
/* Frees a trace, finished or not. Accepts NULL. */
MS_API void ms_trace_free(ms_trace *trace);

/* Reports a storage that exists before the step and stays. It has no events, but a layer's input may be a BATCH
 * storage. `item_bytes` is the size of one element, for computing an optimizer's fp32 state. A key reported again
 * (tied weights) counts once; the storage is trainable if one of its uses is. */
MS_API int ms_trace_resident(ms_trace *trace, uint64_t key, uint64_t bytes, uint32_t item_bytes, ms_resident_role role,
                             bool trainable, ms_error *err);

/* Phases only advance. LOSS, OPTIMIZER and DONE may be skipped, and DONE may be repeated. */
MS_API int ms_trace_set_phase(ms_trace *trace, ms_trace_phase phase, ms_error *err);

/* Reports that the optimizer, which is not traced, will make `bytes` of state for a parameter. They add up, and replace
 * the two fp32 values per element that are assumed otherwise. */
MS_API int ms_trace_expect_state(ms_trace *trace, uint64_t bytes, ms_error *err);

/* Reports that `bytes` of the optimizer's state exist before the step, as in a run that was resumed. */
MS_API int ms_trace_made_state(ms_trace *trace, uint64_t bytes, ms_error *err);

/* Reports that the optimizer's step could not be traced to its end: discards its events; the phase becomes DONE. */
MS_API int ms_trace_optimizer_unknown(ms_trace *trace, ms_error *err);

/* Reports an optimizer of memscale: `stream_bytes` of its state can lie on disk, and it can update parameters in
 * backward. `released`: the user, not a plan, chose updates in backward; `streamed`: the user put its state on
 * disk. */
MS_API int ms_trace_own_optimizer(ms_trace *trace, uint64_t stream_bytes, bool released, bool streamed, ms_error *err);

/* Reports that a step needs all gradients at once, so that no plan may choose updates in backward. */
MS_API int ms_trace_gradients_needed(ms_trace *trace, ms_error *err);

/* Reports that the caller computes the loss outside the model, from the outputs. The trace differentiated a
 * substitute and could not see the loss's buffers. */
MS_API int ms_trace_loss_outside(ms_trace *trace, ms_error *err);

/* A layer's call begins; `call` counts from 0 per module and step. `*node` receives its node number, for
 * unpacked() and dropped() of its saved tensors. Layers do not nest. */
MS_API int ms_trace_enter(ms_trace *trace, const char *name, uint32_t call, uint32_t *node, ms_error *err);
MS_API int ms_trace_leave(ms_trace *trace, ms_error *err);
/* The node of the last event of forward; UINT32_MAX before the first. */
MS_API uint32_t ms_trace_current(const ms_trace *trace);
/* Reports a tensor argument of the layer just entered. A parameter, buffer or unknown key only shows that the layer
 * has a tensor argument. `*place` (may be NULL) receives the storage's place among the inputs of the layer's profile,
 * or MS_TRACE_NO_PLACE. */
#define MS_TRACE_NO_PLACE UINT32_MAX
MS_API int ms_trace_input(ms_trace *trace, uint64_t key, uint32_t *place, ms_error *err);
/* Adds facts about a node: MS_NODE_... bits. The trace sets NO_TENSOR_INPUT itself. */
MS_API int ms_trace_flag(ms_trace *trace, uint32_t node, uint32_t flags, ms_error *err);

/* The operator reported next copies `bytes` from another device. */
MS_API int ms_trace_moves(ms_trace *trace, uint64_t bytes, ms_error *err);
/* Reports a new storage. Ignores residents and storages of 0 bytes. */
MS_API int ms_trace_born(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err);
/* Reports a freed storage. Ignores a key that was never born (a resident, a foreign storage). */
MS_API int ms_trace_died(ms_trace *trace, uint64_t key, ms_error *err);
/*
 * In backward, autograd is about to add the gradient `other_key` to the gradient `key`, which is not a view. The
 * storage born next is the sum. If it has the bytes of `key`, and `key` dies before the next event, `key` had no other
 * holder: an untraced torch writes the sum over `key`, and the graph has one storage for both. Ignores unknown keys.
 * Tests: tests/c/trace/test_trace_sums.c.
 */
MS_API int ms_trace_adds(ms_trace *trace, uint64_t key, uint64_t other_key, ms_error *err);
/* Reports that the operator that made a living storage left `bytes` of it untouched (oneDNN allocates more than it
 * uses). Ignores unknown keys. */
MS_API int ms_trace_untouched(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err);
/* Sets a living storage's role: MS_STORAGE_OUTPUT of the root, or a parameter's MS_STORAGE_GRADIENT. A gradient of
 * `bytes` with an unknown key existed before the step and accumulates: it counts as allocated when backward begins.
 * Ignores other unknown keys. */
MS_API int ms_trace_role(ms_trace *trace, uint64_t key, uint64_t bytes, ms_storage_role role, ms_error *err);

/* In backward, autograd has added the last part of the living gradient `key`. Ignores other keys. */
MS_API int ms_trace_final(ms_trace *trace, uint64_t key, ms_error *err);

/* Reports that an operator ran. `name` is torch's ("aten.addmm.default"); name and shapes give
 * the FLOPs of matrix products, convolutions and attention. */
MS_API int ms_trace_op(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                       const ms_operand *outputs, size_t output_count, ms_error *err);

/*
 * Mark the begin and end of a cross entropy over the rows of the logits `key`, outside layers, and of its backward:
 * from the gradient of its value to `gradient_key`, the gradient of the logits. *head is 0 if the cross entropy can't
 * be marked (inside a layer, or logits from outside the step); the other calls ignore 0.
 */
MS_API int ms_trace_loss(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err);
MS_API int ms_trace_loss_end(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_loss_backward(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_loss_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err);

/*
 * Mark a linear layer, outside traced layers, that has just made the storage `key`, which may be logits. head_used()
 * confirms that only the cross entropy `loss`, in the same node, reads them. The other two mark the linear layer's
 * backward: from the gradient of its output to `gradient_key`, the gradient of its input. *head is 0 if the linear
 * layer can't be marked; the other calls ignore 0 and unconfirmed heads.
 */
MS_API int ms_trace_head(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err);
MS_API int ms_trace_head_used(ms_trace *trace, uint64_t head, uint64_t loss, ms_error *err);
MS_API int ms_trace_head_backward(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_head_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err);

/* A bit of `copied`: an image of a convolution is in channels_last. Nothing is reordered then, except a grouped filter. */
#define MS_WORKSPACE_CHANNELS_LAST (UINT32_C(1) << 31)

/* Another: the operator ran on a GPU. Only convolutions have a figure there. */
#define MS_WORKSPACE_GPU (UINT32_C(1) << 30)

/* Another: torch unfolds the images of this convolution, because oneDNN has no kernel for their 16-bit type on this CPU. */
#define MS_WORKSPACE_UNFOLDS (UINT32_C(1) << 29)

/* Bytes that an operator takes at most on a CPU, or is expected to take on a GPU, beside operands and results. `name` is torch's. Bit i of `copied` says
 * that the operator copies input i first: it has gaps or repeats elements (an expanded gradient), is the image that is not
 * in channels_last, or is converted to another type of the same size. Types of other sizes are seen from the operands.
 * Saturates. 0 for most operators. */
MS_API uint64_t ms_workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count,
                                   const ms_operand *outputs, size_t output_count, uint32_t copied);

/* Whether an operator of that name may take a workspace. */
MS_API bool ms_operator_takes_workspace(const char *name);

/* Whether an operator of that name first writes operands of several types in one type. */
MS_API bool ms_operator_converts(const char *name);

/* Reports that the operator of ms_trace_op() ran, `copied` says where: records its workspace, as of ms_workspace_bytes(), as
 * allocated and freed, in pieces of the operands' and results' sizes as far as they go. */
MS_API int ms_trace_workspace(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                              const ms_operand *outputs, size_t output_count, uint32_t copied, ms_error *err);

/* True if an operator can run again by itself with the same bits, judged by torch's name and torch's tag "pointwise".
 * Not for random operators and operators that write to an operand: the caller leaves those out. */
MS_API bool ms_operator_is_maker(const char *name, bool is_pointwise);

/* An operator's effect on the rows (positions) of a tensor, judged by its name. */
typedef enum ms_row_kind {
    MS_ROWS_MIX,     /* it may mix rows */
    MS_ROWS_EACH,    /* element by element: equal rows of its operands belong together */
    MS_ROWS_PRODUCT, /* a matrix product: rows of the left matrix are rows of the result */
    MS_ROWS_SEEN     /* a view, a copy, a sum or norm over a row: rows stay separate if the result
                      * keeps them in place */
} ms_row_kind;
MS_API ms_row_kind ms_operator_row_kind(const char *name, bool is_pointwise);

/* Reports the storages that the last reported operator read, and the fresh ones that it made. `runs_again`:
 * ms_operator_is_maker() is true. Recorded only in a layer's forward. */
MS_API int ms_trace_made(ms_trace *trace, const uint64_t *inputs, size_t input_count, const uint64_t *outputs,
                         size_t output_count, bool runs_again, ms_error *err);
/* Reports that an operator wrote to a storage that existed before it ran. */
MS_API int ms_trace_wrote(ms_trace *trace, uint64_t key, ms_error *err);

/*
 * Report that autograd packed, unpacked or released a saved tensor. saved() returns the saving node and a serial for
 * the save of that storage; pass both to the other two. The serial is 0 if the storage is not the trace's (a
 * parameter, the batch) or the phase is past LOSS. Any number of calls gives one SAVE, NEED and DROP per node and
 * storage.
 *
 * `copy_key` is the storage that an unpack made in place of the saved one, 0 if it made none. DROP waits until died()
 * reports that storage.
 */
MS_API int ms_trace_saved(ms_trace *trace, uint64_t key, uint32_t *node, uint64_t *serial, ms_error *err);
MS_API int ms_trace_unpacked(ms_trace *trace, uint32_t node, uint64_t serial, uint64_t copy_key, ms_error *err);
MS_API int ms_trace_dropped(ms_trace *trace, uint32_t node, uint64_t serial, ms_error *err);

/* Bytes that an unoptimized step would hold now, and their peak since the phase was set: without residents, with
 * all saved tensors. */
MS_API uint64_t ms_trace_live_bytes(const ms_trace *trace);
MS_API uint64_t ms_trace_peak_bytes(const ms_trace *trace);

/* Builds the graph; afterwards the trace can only be freed. Nodes without events are left out; equal profiles are
 * shared. The storages that the OPTIMIZER phase leaves alive are optimizer state; the peak of its other storages is
 * the transient. If that phase was not traced, state is two fp32 values per trainable element, and the transient
 * twice the largest parameter. A loss outside the model reserves twice the outputs' bytes: a row-wise log-softmax and
 * its gradient. */
MS_API int ms_trace_finish(ms_trace *trace, ms_graph **graph, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
