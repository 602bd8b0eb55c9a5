/*
 * trace.h - turns the event stream of one training step into an ms_graph.
 *
 * The profiler in Python only reports what it sees, in order; every size, cost
 * and conclusion is made here. Storages are known by a key that is unique while
 * the storage lives (torch's StorageImpl address). Nodes are opened by enter()
 * and closed by leave(); what happens outside any layer belongs to a root node,
 * except that a storage which dies between two layers, before anything else is
 * done there, still dies in the layer that was left: a caller that only passes
 * results on is no node. In backward the current node is the one whose saved
 * tensor was asked for last.
 *
 * A call in the wrong phase, or with a key, node or serial that was never given,
 * is MS_ESTATE or MS_EINVAL and changes nothing. One thread at a time; after
 * MS_ENOMEM a trace can only be freed.
 */
#ifndef MEMSCALE_TRACE_H
#define MEMSCALE_TRACE_H

#include "memscale/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A trace that is being made. */
typedef struct ms_trace ms_trace;

/* Where in the step the trace is. */
typedef enum ms_trace_phase {
    MS_TRACE_FORWARD,   /* the root's forward runs */
    MS_TRACE_LOSS,      /* between the end of forward and the start of backward */
    MS_TRACE_BACKWARD,
    MS_TRACE_OPTIMIZER,
    MS_TRACE_DONE
} ms_trace_phase;

/* What a storage that stays is. */
typedef enum ms_resident_role { MS_RESIDENT_PARAMETER, MS_RESIDENT_BUFFER, MS_RESIDENT_BATCH } ms_resident_role;

/* An operand of an operator: its dimensions (rank <= 8) and bytes. */
typedef struct ms_operand {
    uint32_t rank;
    uint64_t size[8];
    uint64_t bytes;
    bool are_truths; /* of results: elements of torch's bool */
} ms_operand;

/* Begins the trace of a step; the texts, which are copied, become those of the graph. */
MS_API int ms_trace_new(const char *model, const char *signature, const char *source, ms_trace **trace, ms_error *err);
/* Ends a trace that is not to become a graph. Accepts NULL. */
MS_API void ms_trace_free(ms_trace *trace);

/* A storage that is there before the step and stays. Never part of any event, but a
 * layer's input may be a BATCH storage. `item_bytes` is the size of one element: with
 * it an optimizer's fp32 state follows from a parameter's bytes. A key that is known
 * already (tied weights) is counted once; it is trainable if one of its uses is. */
MS_API int ms_trace_resident(ms_trace *trace, uint64_t key, uint64_t bytes, uint32_t item_bytes, ms_resident_role role,
                             bool trainable, ms_error *err);

/* Phases only move on; LOSS, OPTIMIZER and what follows may be left out, and DONE may be
 * said again. */
MS_API int ms_trace_set_phase(ms_trace *trace, ms_trace_phase phase, ms_error *err);

/* The optimizer's step could not be followed to its end: as if it had not been traced.
 * The phase becomes DONE. */
MS_API int ms_trace_optimizer_unknown(ms_trace *trace, ms_error *err);

/* The optimizer is memscale's: this many bytes of its state can lie on disk, and it can update
 * parameters in backward. At its owner's wish, and not a plan's: `released`, it does; `streamed`,
 * state lies on disk. */
MS_API int ms_trace_own_optimizer(ms_trace *trace, uint64_t stream_bytes, bool released, bool streamed, ms_error *err);

/* The loss was not the model's: what was differentiated stood in for one that the
 * caller computes from the outputs, and whose buffers the trace could not see. */
MS_API int ms_trace_loss_outside(ms_trace *trace, ms_error *err);

/* A layer's call begins; `call` counts from 0 per module and step. Returns its
 * node number in *node, which unpacked() and dropped() of its saved tensors are
 * reported with. Layers do not nest. */
MS_API int ms_trace_enter(ms_trace *trace, const char *name, uint32_t call, uint32_t *node, ms_error *err);
MS_API int ms_trace_leave(ms_trace *trace, ms_error *err);
/* The node that the last event of forward went to; UINT32_MAX before the first. */
MS_API uint32_t ms_trace_current(const ms_trace *trace);
/* A tensor argument of the layer just entered; keys that are parameters, buffers or
 * unknown only say that there was a tensor. */
MS_API int ms_trace_input(ms_trace *trace, uint64_t key, ms_error *err);
/* Facts about a node: MS_NODE_... bits, or-ed in. NO_TENSOR_INPUT is found here. */
MS_API int ms_trace_flag(ms_trace *trace, uint32_t node, uint32_t flags, ms_error *err);

/* Residents and storages of no bytes are ignored. */
MS_API int ms_trace_born(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err);
/* A key that was never born (a resident, a foreign storage) is ignored. */
MS_API int ms_trace_died(ms_trace *trace, uint64_t key, ms_error *err);
/*
 * In backward, autograd's engine is about to add the gradient `other_key` to the gradient `key`,
 * which is nobody's view. The storage born next is the sum; where `key` has as many bytes and dies
 * before anything else is told, nobody else held it, and torch, when it is not traced, writes the
 * sum over it: the graph then has one storage. Other keys are ignored.
 */
MS_API int ms_trace_adds(ms_trace *trace, uint64_t key, uint64_t other_key, ms_error *err);
/* Of a living storage, the operator that made it has left so much untouched (oneDNN asks for more
 * than it uses). Unknown keys are ignored. */
MS_API int ms_trace_untouched(ms_trace *trace, uint64_t key, uint64_t bytes, ms_error *err);
/* Says what a living storage is: MS_STORAGE_OUTPUT of the root, or a parameter's
 * MS_STORAGE_GRADIENT. A gradient of `bytes` whose key is unknown was there before the
 * step and was added to: it counts as allocated when backward begins. Other unknown
 * keys are ignored. */
MS_API int ms_trace_role(ms_trace *trace, uint64_t key, uint64_t bytes, ms_storage_role role, ms_error *err);

/* An operator ran. `name` is torch's ("aten.addmm.default"); the FLOPs of matrix
 * products, convolutions and attention follow from it and the shapes. */
MS_API int ms_trace_op(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                       const ms_operand *outputs, size_t output_count, ms_error *err);

/*
 * A cross entropy over the rows of the logits `key` begins and ends, outside of layers,
 * and later its backward: from the gradient of its value to `gradient_key`, the gradient
 * of the logits. *head is 0 if it is none to mark (in a layer, logits that are not of
 * the step); the other calls ignore that number.
 */
MS_API int ms_trace_loss(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err);
MS_API int ms_trace_loss_end(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_loss_backward(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_loss_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err);

/*
 * A linear layer outside of layers has just made the storage `key`, which may be logits.
 * It counts once head_used() says that nothing but the cross entropy `loss`, of the same
 * node, looks at them. Then its backward is told of: from the gradient of what it made to
 * `gradient_key`, the gradient of its input. *head is 0 if it is none to mark; the other
 * calls ignore that number, and those of heads that are not used.
 */
MS_API int ms_trace_head(ms_trace *trace, uint64_t key, uint64_t *head, ms_error *err);
MS_API int ms_trace_head_used(ms_trace *trace, uint64_t head, uint64_t loss, ms_error *err);
MS_API int ms_trace_head_backward(ms_trace *trace, uint64_t head, ms_error *err);
MS_API int ms_trace_head_backward_end(ms_trace *trace, uint64_t head, uint64_t gradient_key, ms_error *err);

/* The same operator ran on a CPU, its operands in torch's default layout: what it took for
 * itself meanwhile (convolutions) is allocated and freed here. */
MS_API int ms_trace_workspace(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                              const ms_operand *outputs, size_t output_count, ms_error *err);

/* Whether an operator can run again on its own and gives the same bits: torch's name of
 * it, and whether torch calls it element-wise. Random operators and those that write to
 * an operand are the caller's to leave out. */
MS_API bool ms_operator_is_maker(const char *name, bool is_pointwise);

/* What an operator does with a tensor whose rows are positions, as far as its name says. */
typedef enum ms_row_kind {
    MS_ROWS_MIX,     /* it is not known to leave them apart */
    MS_ROWS_EACH,    /* element by element: rows of its operands at the same place belong together */
    MS_ROWS_PRODUCT, /* a matrix product: rows of the left matrix stay rows of the result */
    MS_ROWS_SEEN     /* a view, a copy, a sum or norm over a row: apart where the result still has
                      * the rows at their place */
} ms_row_kind;
MS_API ms_row_kind ms_operator_row_kind(const char *name, bool is_pointwise);

/* The storages that the operator told last read, and the fresh ones that it made; `runs_again`:
 * it is one that can. Only what happens in a layer's forward is noted. */
MS_API int ms_trace_made(ms_trace *trace, const uint64_t *inputs, size_t input_count, const uint64_t *outputs,
                         size_t output_count, bool runs_again, ms_error *err);
/* An operator wrote to a storage that was there before it ran. */
MS_API int ms_trace_wrote(ms_trace *trace, uint64_t key, ms_error *err);

/*
 * Autograd packed, unpacked or gave up a saved tensor. saved() tells the node that
 * saves and a serial for its save of that storage, 0 if the storage is none of the
 * trace's (a parameter, the batch) or the phase is past LOSS; the other two are given
 * both back. One SAVE, NEED and DROP per node and storage come of any number of calls.
 *
 * `copy_key` is the storage that an unpack made to stand for the saved one, 0 if it
 * made none: its death is reported by died(), and DROP waits for it.
 */
MS_API int ms_trace_saved(ms_trace *trace, uint64_t key, uint32_t *node, uint64_t *serial, ms_error *err);
MS_API int ms_trace_unpacked(ms_trace *trace, uint32_t node, uint64_t serial, uint64_t copy_key, ms_error *err);
MS_API int ms_trace_dropped(ms_trace *trace, uint32_t node, uint64_t serial, ms_error *err);

/* Bytes live now, and at most since the phase was set, residents excluded, counting
 * what autograd was asked to keep: what an unoptimized step would hold. */
MS_API uint64_t ms_trace_live_bytes(const ms_trace *trace);
MS_API uint64_t ms_trace_peak_bytes(const ms_trace *trace);

/* Builds the graph: nodes without any event are left out, equal profiles are
 * shared, optimizer state is what the OPTIMIZER phase left alive and its transient
 * the most that the rest took at once, or, where that phase was not traced, two fp32 values per trainable element, with twice the largest
 * parameter as transient. Of a loss outside, twice the outputs' bytes are reserved: a
 * row-wise log-softmax and its gradient. The trace can't be used afterwards, only freed. */
MS_API int ms_trace_finish(ms_trace *trace, ms_graph **graph, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
