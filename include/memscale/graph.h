/*
 * graph.h - one training step as a value: a chain of nodes with the storages that each allocates, saves, needs and
 * frees, and its work.
 * Tests: tests/c/graph/test_graph.c.
 *
 * A *node* is one call of a layer, or the root module's own work between two layer calls (kind MS_NODE_ROOT: the
 * embedding, the head with the loss). A *profile* is the program of a node: its events in forward and in backward,
 * over storages numbered locally. Equal nodes (the repeated blocks of a transformer) share one profile. Storages that
 * cross nodes are numbered in the graph and bound to the first local numbers of a profile (`externals`).
 *
 * Lifetimes. The step is traced while autograd holds nothing (tokens replace saved tensors), so the events do not
 * depend on any plan:
 *
 *   ALLOC s   the storage is allocated
 *   FREE s    the last holder other than autograd releases it
 *   SAVE s    autograd saves it (once per node and storage)
 *   NEED s    backward requests it (once per node and storage)
 *   DROP s    autograd has released it
 *   WORK      an operator ran: its floating-point operations and bytes moved
 *   LOSS s, LOSS_END t   the events between are a cross entropy over the rows of the
 *             logits s: in forward its value (t is s), in backward its gradient, t.
 *             A mark for the planner's loss head; it changes nothing by itself
 *   HEAD s, HEAD_END t   in forward, a linear layer has just made s, which only the cross
 *             entropy of the next LOSS reads, in the same rows; in backward, the events
 *             between compute the gradients of that layer's operands: t is the gradient of
 *             its input. There is no HEAD_END in forward. Marks for the planner, as LOSS is
 *
 * Under "keep", a storage lives from ALLOC to the later of FREE and the last DROP; under offload or recompute it dies
 * at FREE and exists again from NEED to DROP. A plan is replayed by running these programs under its choices
 * (plan.h).
 *
 * Backward runs the nodes' backward programs in reverse order.
 *
 * Invariants, checked by ms_graph_check():
 *   - ALLOC is a storage's first event, once; only BATCH storages have none (nor any
 *     other event: they are only inputs). FREE at most once; a storage without FREE
 *     lives to the end of the step, a GRADIENT never has one.
 *   - SAVE stands in a forward program, before FREE; NEED in the backward program of a
 *     node that saved, before DROP; DROP in either program of a node that saved. Each at
 *     most once per node and storage. A SAVE without DROP is held to the end of the step; a SAVE without NEED was not
 *     used. NEED and DROP of a node stand in its own programs only.
 *   - Storages that cross nodes, inputs, OUTPUTs and GRADIENTs are external; the others are local. An external is
 *     bound once per node, and has the same bytes in the profile and in the graph.
 *   - Sums of all bytes and of all work fit 63 bits.
 *
 * Makers. A layer's profile also lists the operators that can recompute single tensors. A maker reads only
 * parameters, buffers, saved storages and results of other makers. It is not random, and it writes only to fresh
 * storages that no later operator writes to. Backward can recompute its results, so they need not be kept. Makers
 * stand in order of execution; a maker that leads to no saved storage is not listed.
 *
 * Two-valued storages. A layer's profile also lists its saved storages that certainly have only two values (masks). A
 * plan may bit-pack them to one bit per element.
 *
 * Untouched bytes. A profile also lists storages that an operator touches only in part (the workspace of oneDNN's
 * recurrent layers). The prediction of an unmodified run leaves out untouched bytes. Budgets and planned runs, which
 * reuse maps, count them.
 *
 * Tiles. A layer may have a second profile, `tiled`: the same call with its position-wise modules (an MLP) computed
 * some rows at a time and recomputed in backward. It binds the same storages. The planner's option tiled_mlp uses it
 * instead of the first profile.
 *
 * As JSON (docs/formats/graph.schema.json) events are short arrays: ["alloc",3], ["work",flops,bytes] or, for work
 * that draws random numbers or evaluates functions, ["work",flops,bytes,draws,evaluations], the last one omitted if
 * 0.
 */
#ifndef MEMSCALE_GRAPH_H
#define MEMSCALE_GRAPH_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Events of a node's program, in order. */
#define MS_EVENT_TABLE(X) \
    X(ALLOC, "alloc") \
    X(FREE, "free") \
    X(SAVE, "save") \
    X(NEED, "need") \
    X(DROP, "drop") \
    X(WORK, "work") \
    X(LOSS, "loss") \
    X(LOSS_END, "loss_end") \
    X(HEAD, "head") \
    X(HEAD_END, "head_end")
typedef enum ms_event_kind {
#define MS_EVENT_ENUM(id, name) MS_EVENT_##id,
    MS_EVENT_TABLE(MS_EVENT_ENUM)
#undef MS_EVENT_ENUM
        MS_EVENT_COUNT
} ms_event_kind;

/* One event of a node's program. */
typedef struct ms_event {
    uint32_t kind;    /* ms_event_kind */
    uint32_t storage; /* local number; unused for WORK */
    uint64_t flops;   /* WORK: floating-point operations of matrix products, else 0 */
    uint64_t bytes;   /* WORK: bytes read + written */
    uint64_t draws;   /* WORK: random numbers drawn; on a CPU each takes as long as hundreds of bytes */
    uint64_t evaluations; /* WORK: elementary functions computed, or work that takes a CPU as long; 0 if
                             moving the bytes takes longer */
} ms_event;

/* An operator that can run again. Its operands are local numbers in ms_profile.operands,
 * inputs first; parameters and buffers are not among them. */
typedef struct ms_maker {
    uint64_t flops, bytes, evaluations; /* as of its WORK */
    uint32_t first;        /* of its operands */
    uint32_t input_count;
    uint32_t output_count;
} ms_maker;

/* A local storage of the node and a number of bytes; the list defines their meaning. */
typedef struct ms_storage_bytes {
    uint32_t storage; /* local number, not external */
    uint64_t bytes;
} ms_storage_bytes;

/* Storages, each with a number of bytes. */
typedef struct ms_storage_list {
    uint32_t count;
    ms_storage_bytes *items; /* by storage, ascending */
} ms_storage_list;

/* The program of one call of a module; equal nodes share one. */
typedef struct ms_profile {
    uint32_t storage_count;  /* local storages, externals first */
    uint32_t external_count;
    uint64_t *storage_bytes; /* [storage_count] */
    uint32_t input_count;    /* storages of the node's tensor arguments */
    uint32_t *inputs;        /* [input_count], local numbers, all external */
    uint32_t forward_count;
    ms_event *forward;
    uint32_t backward_count;
    ms_event *backward;
    uint32_t maker_count;
    ms_maker *makers;
    uint32_t operand_count;
    uint32_t *operands;      /* [operand_count] of all makers, one after the other */
    ms_storage_list two_valued; /* saved ones whose elements have two values; bytes of an element: 1, 2, 4, 8 */
    ms_storage_list untouched;  /* bytes that its operator never touches: fresh pages that do not become resident */
} ms_profile;

/* The work of the root module itself, or a layer. */
typedef enum ms_node_kind { MS_NODE_ROOT, MS_NODE_LAYER } ms_node_kind;

/* Facts about a node that rule techniques out or allow them. */
#define MS_NODE_FLAG_TABLE(X) \
    X(CHAINED, 0, "chained")             /* its first output is the next layer's argument 0, the same object */ \
    X(MUTATES_INPUT, 1, "mutates_input") /* changes an argument or parameter: can't be replayed */ \
    X(OPAQUE_ARGUMENT, 2, "opaque_argument") /* an argument is not plain data, such as a cache */ \
    X(UPDATES_BUFFERS, 3, "updates_buffers") /* its buffers change in forward */ \
    X(USES_RNG, 4, "uses_rng") \
    X(NO_TENSOR_INPUT, 5, "no_tensor_input") \
    X(UNHOOKABLE, 6, "unhookable")       /* can't be hooked; the log gives the reason */ \
    X(NOT_REPEATABLE, 7, "not_repeatable") /* a second run gives other values, or would do something twice */
enum {
#define MS_NODE_FLAG_ENUM(id, bit, name) MS_NODE_##id = 1u << (bit),
    MS_NODE_FLAG_TABLE(MS_NODE_FLAG_ENUM)
#undef MS_NODE_FLAG_ENUM
};

/* One call of a layer, or some of the root module's own work. */
typedef struct ms_node {
    char *name;          /* the module's qualified name; "" for the root's own work */
    uint32_t kind;       /* ms_node_kind */
    uint32_t call;       /* 0 for the first call of this module in a step, 1 for the second ...; root
                            nodes count as calls of "" */
    uint32_t flags;      /* MS_NODE_... bits */
    uint32_t profile;    /* index into ms_graph.profiles */
    uint32_t tiled;      /* of a layer: 1 + index of the profile of its call in tiles; 0: none */
    uint32_t *externals; /* [profile's external_count]: indices into ms_graph.storages */
} ms_node;

/* A storage that crosses nodes. */
#define MS_STORAGE_ROLE_TABLE(X) \
    X(ACTIVATION, "activation") \
    X(GRADIENT, "gradient") /* of a parameter: stays after backward */ \
    X(OUTPUT, "output")                                 /* returned by the root's forward */ \
    X(BATCH, "batch") /* the caller's input: alive during the whole step, counted in residents.batch_bytes */
typedef enum ms_storage_role {
#define MS_STORAGE_ROLE_ENUM(id, name) MS_STORAGE_##id,
    MS_STORAGE_ROLE_TABLE(MS_STORAGE_ROLE_ENUM)
#undef MS_STORAGE_ROLE_ENUM
        MS_STORAGE_ROLE_COUNT
} ms_storage_role;

/* A storage that crosses nodes. */
typedef struct ms_storage {
    uint64_t bytes;
    uint32_t role;       /* ms_storage_role */
    uint32_t first_node; /* the node that allocates it; for the batch, the first that takes it as input */
    uint32_t last_node;  /* the last node to touch it in the pass (forward or backward) that allocates it:
                            less than first_node only for storages of backward */
} ms_storage;

/* The loop around the step, which the trace can't see. Assumed until observed. */
typedef struct ms_loop {
    bool outputs_held;                   /* the caller holds the outputs through backward */
    bool gradients_live_in_forward;      /* zero_grad comes after the next forward, or accumulation */
    bool observed;                       /* the two above were observed, not assumed */
    uint64_t optimizer_state_bytes;      /* after the first step */
    uint64_t optimizer_transient_bytes;  /* peak of the step's temporaries, beside state and gradients */
    uint64_t external_loss_bytes;        /* bytes that a loss outside the model holds through its backward */
    uint64_t optimizer_stream_bytes;     /* part of the state that can lie on disk: 0 unless the
                                            optimizer is memscale's and known */
    bool gradients_releasable;           /* the optimizer can update parameters in backward */
    bool gradients_released;             /* it does under every plan: the user requested it */
    bool gradients_needed; /* all must exist before one is used: a GradScaler, clipping or accumulation */
    bool state_streamed; /* its state is on disk under every plan, and not in the bytes above */
} ms_loop;

/* Bytes that exist before the step and stay. */
typedef struct ms_residents {
    uint64_t parameter_bytes;
    uint64_t trainable_bytes; /* part of parameter_bytes: the size of all gradients */
    uint64_t buffer_bytes;
    uint64_t batch_bytes;
    uint64_t largest_parameter_bytes;
} ms_residents;

/* Nodes of a document; longer documents are refused. */
enum { MS_GRAPH_NODES_MOST = 1 << 18 };

/* The step: resident bytes, storages that cross nodes, and the nodes. */
typedef struct ms_graph {
    char *model; /* class name of the root module */
    char *signature; /* input shapes and dtypes the step was traced with */
    char *source; /* "static" or "empirical" */
    ms_residents residents;
    ms_loop loop;
    bool small_products; /* no matrix product of the step is large enough to need packing buffers */
    bool convolutions; /* the step has some, whose code is generated in the process */
    uint32_t storage_count;
    ms_storage *storages;
    uint32_t profile_count;
    ms_profile *profiles;
    uint32_t node_count;
    ms_node *nodes; /* in order of execution */
} ms_graph;

/* Frees a graph and everything it owns. Accepts NULL. */
MS_API void ms_graph_free(ms_graph *graph);
/* A copy that shares nothing with the original; NULL when memory is out. */
MS_API ms_graph *ms_graph_copy(const ms_graph *graph, ms_error *err);

/* Checks every invariant above (no event of a storage before its ALLOC, no NEED without SAVE, no unused profile
 * ...). ms_graph_parse() calls it; MS_EFORMAT names the place. */
MS_API int ms_graph_check(const ms_graph *graph, ms_error *err);

/* Strict: an unknown or missing member is MS_EFORMAT, and the graph is checked. */
MS_API int ms_graph_parse(const char *json, ms_graph **graph, ms_error *err);
/* One line; reading it and writing it again gives the same bytes. NULL when memory is
 * out or a number does not fit. */
MS_API char *ms_graph_to_json(const ms_graph *graph);

/*
 * True if a plan for the inputs `larger` also serves the inputs `smaller`: the signatures are equal except for sizes,
 * and no size of `smaller` exceeds its counterpart. Signatures write every tensor's sizes in brackets, such as
 * "input_ids:int64[4,512]".
 */
MS_API bool ms_signature_covers(const char *larger, const char *smaller);

/* The index of the known signature that serves the inputs `signature`: the equal one, else the first that covers
 * it; `count` if none does. */
MS_API size_t ms_signature_find(const char *const *known, size_t count, const char *signature);

/*
 * For inputs that keep growing: the signature of inputs some 10 to 19% larger in each size that has grown since the
 * last known inputs that were nowhere larger, so that the next lengths need no trace. NULL if fewer than
 * MS_SIGNATURE_GROWTHS known inputs were smaller, if none was alike, or when out of memory. The caller frees it.
 */
enum { MS_SIGNATURE_GROWTHS = 3 };
MS_API char *ms_signature_ahead(const char *const *known, size_t count, const char *signature);

/*
 * Replaces numbers that are values of arguments by '#', in place: "beta=0.25,x:float32[4]" becomes
 * "beta=#,x:float32[4]". Sizes, texts, True, False and None stay. With `dropped` NULL every number is replaced;
 * otherwise the numbers of arguments that have '#' in `dropped`, which is one signature or several separated by
 * commas. Used for arguments on which the step was observed not to depend.
 */
MS_API void ms_signature_drop_numbers(char *signature, const char *dropped);

/*
 * The same for numbers that differ from those of the signature `other`: if both steps are the same
 * (ms_graph_same_step()), these numbers have no effect.
 */
MS_API void ms_signature_drop_different(char *signature, const char *other);

/*
 * True if two graphs of one model are the same step, apart from their signatures and observed loops. False when out
 * of memory.
 */
MS_API bool ms_graph_same_step(const ms_graph *graph, const ms_graph *other);

/*
 * Learns from two traces of one model which numbers have no effect: if they are the same step, drops from `signature`
 * (of `graph`) the numbers that differ in `other` (of `other_graph`) and returns true.
 */
MS_API bool ms_signature_learn(char *signature, const ms_graph *graph, const char *other, const ms_graph *other_graph);

/*
 * Copies the observed loop (held tensors, optimizer state) from another graph of the same training. Does nothing if
 * `other` has not observed the loop. Fields that depend on shapes stay.
 */
MS_API void ms_graph_adopt_loop(ms_graph *graph, const ms_graph *other);

/* Sets MS_NODE_NOT_REPEATABLE at every call of the layer with this name. */
MS_API void ms_graph_hold(ms_graph *graph, const char *layer);

/*
 * Gives each layer of a graph its profile in `tiled` if that differs; `tiled` is the graph of the same step traced
 * with position-wise modules in tiles. Does nothing if the storages that cross nodes differ: the graphs' layers then
 * do not correspond. MS_ENOMEM.
 * Tests: tests/c/graph/test_graph_tiled.c.
 */
MS_API int ms_graph_add_tiled(ms_graph *graph, const ms_graph *tiled, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
