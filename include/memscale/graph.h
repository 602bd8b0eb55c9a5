/*
 * graph.h - one training step as a value: a chain of nodes, what each allocates,
 * saves, needs and frees, and what it computes.
 *
 * A *node* is one call of a layer, or the root module's own work between two
 * such calls (kind MS_NODE_ROOT: the embedding, the head with the loss). A
 * *profile* is the program of a node: its events in forward and in backward,
 * over storages numbered locally. Equal nodes (the repeated blocks of a
 * transformer) share one profile. Storages that cross nodes are numbered in the
 * graph and bound to the first local numbers of a profile (`externals`).
 *
 * How lifetimes are written down. The step is traced while autograd holds
 * nothing (saved tensors are replaced by tokens), so the events are independent
 * of any plan:
 *
 *   ALLOC s   the storage comes to life
 *   FREE s    the last holder other than autograd lets it go
 *   SAVE s    autograd asks to keep it (once per node and storage)
 *   NEED s    backward asks for it (once per node and storage)
 *   DROP s    autograd will not ask again
 *   WORK      an operator ran: its floating-point operations and bytes moved
 *   LOSS s, LOSS_END t   what lies between is a cross entropy over the rows of the
 *             logits s: in forward its value (t is s), in backward its gradient, t.
 *             A mark for the planner's loss head; by itself it changes nothing
 *   HEAD s, HEAD_END t   in forward, a linear layer has just made s, which nothing but the
 *             cross entropy of the next LOSS looks at, in the same rows; in backward, between
 *             them are the gradients of that layer's operands: s is s, t that of its input.
 *             There is no HEAD_END in forward. Marks for the planner, as LOSS is
 *
 * Under "keep", a storage lives from ALLOC to the later of FREE and the last DROP;
 * under offload or recompute it dies at FREE and is back from NEED to DROP. A plan is
 * replayed by running these programs under its choices (plan.h).
 *
 * Backward runs the nodes' backward programs in reverse order of the nodes.
 *
 * What ms_graph_check() holds every graph to:
 *   - ALLOC is a storage's first event, once; only BATCH storages have none (nor any
 *     other event: they are only inputs). FREE at most once; a storage without FREE
 *     lives to the end of the step, a GRADIENT never has one.
 *   - SAVE stands in a forward program, before FREE; NEED in the backward program of a
 *     node that saved, before DROP; DROP in either program of a node that saved. Each at
 *     most once per node and storage. A SAVE without DROP is never given up, one without
 *     NEED was not used. NEED and DROP of a node stand in its own programs only.
 *   - What crosses nodes, an input, an OUTPUT and a GRADIENT are external; the rest is
 *     local. An external is bound once per node, and has the same bytes there and here.
 *   - Sums of all bytes and of all work fit 63 bits.
 *
 * Makers. Beside its events, a layer's profile lists the operators that could run again
 * on their own: they read nothing but what was saved or made by such operators, parameters
 * and buffers; they are not random and write to nothing but fresh storages, which nobody
 * writes to afterwards. What such an operator makes need not stay to be had in backward.
 * Makers stand in order of execution; only those are listed that lead to a saved storage.
 *
 * Two-valued storages. A layer's profile also lists what it saves and what surely has two
 * values only (masks): a plan may have such kept as bits, an element each.
 *
 * Untouched bytes. A profile also lists storages of which an operator touches a part only
 * (the workspace of oneDNN's recurrent layers). An unmodified run is predicted without what is
 * untouched; what fits a budget, and a planned run, whose maps are used again, count it.
 *
 * Tiles. A layer may have a second profile, `tiled`: the same call with its position-wise
 * modules (an MLP) computed some rows at a time and again in backward. It binds the same
 * storages; the planner's option tiled_mlp puts it in the place of the first.
 *
 * As JSON (docs/formats/graph.schema.json) events are short arrays: ["alloc",3],
 * ["work",flops,bytes] or, of work that draws random numbers or evaluates functions,
 * ["work",flops,bytes,draws,evaluations], the last left out where it is 0.
 */
#ifndef MEMSCALE_GRAPH_H
#define MEMSCALE_GRAPH_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What happens to storages in a node's program, in order. */
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
    uint64_t evaluations; /* WORK: elementary functions computed, or what takes a CPU as long; 0 if
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

/* A storage of the node's own, and bytes that say something about it. */
typedef struct ms_storage_bytes {
    uint32_t storage; /* local number, not external */
    uint64_t bytes;
} ms_storage_bytes;

/* Storages with bytes of each. */
typedef struct ms_storage_list {
    uint32_t count;
    ms_storage_bytes *items; /* by storage, ascending */
} ms_storage_list;

/* What one call of a module allocates, saves and computes; nodes that do the same share one. */
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
    ms_storage_list untouched;  /* bytes that what makes it never touches: fresh pages that do not become resident */
} ms_profile;

/* The work of the root module itself, or a layer. */
typedef enum ms_node_kind { MS_NODE_ROOT, MS_NODE_LAYER } ms_node_kind;

/* Facts about a node that rule techniques out or allow them. */
#define MS_NODE_FLAG_TABLE(X) \
    X(CHAINED, 0, "chained")             /* its first output is the next layer's argument 0, the same object */ \
    X(MUTATES_INPUT, 1, "mutates_input") /* changes an argument or parameter: no replay */ \
    X(OPAQUE_ARGUMENT, 2, "opaque_argument") /* gets an object that is not plain data, such as a cache */ \
    X(UPDATES_BUFFERS, 3, "updates_buffers") /* its buffers change in forward */ \
    X(USES_RNG, 4, "uses_rng") \
    X(NO_TENSOR_INPUT, 5, "no_tensor_input") \
    X(UNHOOKABLE, 6, "unhookable")       /* must be left alone: see the reason in the log */
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
                            nodes are numbered through as calls of "" */
    uint32_t flags;      /* MS_NODE_... bits */
    uint32_t profile;    /* index into ms_graph.profiles */
    uint32_t tiled;      /* of a layer: 1 + another such index, of its call in tiles; 0: none */
    uint32_t *externals; /* [profile's external_count]: indices into ms_graph.storages */
} ms_node;

/* A storage that crosses nodes. */
#define MS_STORAGE_ROLE_TABLE(X) \
    X(ACTIVATION, "activation") \
    X(GRADIENT, "gradient") /* of a parameter: stays after backward */ \
    X(OUTPUT, "output")                                 /* returned by the root's forward */ \
    X(BATCH, "batch") /* the caller's input: alive all the step, counted in residents.batch_bytes */
typedef enum ms_storage_role {
#define MS_STORAGE_ROLE_ENUM(id, name) MS_STORAGE_##id,
    MS_STORAGE_ROLE_TABLE(MS_STORAGE_ROLE_ENUM)
#undef MS_STORAGE_ROLE_ENUM
        MS_STORAGE_ROLE_COUNT
} ms_storage_role;

/* A storage that more than one node touches. */
typedef struct ms_storage {
    uint64_t bytes;
    uint32_t role;       /* ms_storage_role */
    uint32_t first_node; /* where it is allocated; of the batch, the first that takes it as input */
    uint32_t last_node;  /* the last to touch it, in order of execution, in the pass (forward or
                            backward) it was allocated in: less than first_node only for what
                            passes between nodes in backward */
} ms_storage;

/* What the trace can't see: the loop around the step. Assumed until observed. */
typedef struct ms_loop {
    bool outputs_held;                   /* the caller holds the outputs through backward */
    bool gradients_live_in_forward;      /* zero_grad comes after the next forward, or accumulation */
    bool observed;                       /* the two above were seen, not assumed */
    uint64_t optimizer_state_bytes;      /* after the first step */
    uint64_t optimizer_transient_bytes;  /* at its worst, beside state and gradients */
    uint64_t external_loss_bytes;        /* what a loss outside the model holds through its backward */
    uint64_t optimizer_stream_bytes;     /* part of the state that can lie on disk: 0 unless the
                                            optimizer is memscale's and known */
    bool gradients_releasable;           /* the optimizer can update parameters in backward */
    bool gradients_released;             /* it does, whatever the plan: its owner wants it */
    bool gradients_needed;               /* before one is used: a GradScaler, clipping or accumulation was seen */
    bool state_streamed;                 /* its state lies on disk, whatever the plan, and is none of
                                            the bytes above */
} ms_loop;

/* Bytes that are there before the step and stay. */
typedef struct ms_residents {
    uint64_t parameter_bytes;
    uint64_t trainable_bytes; /* part of parameter_bytes: what gradients will take */
    uint64_t buffer_bytes;
    uint64_t batch_bytes;
    uint64_t largest_parameter_bytes;
} ms_residents;

/* Of a document; longer ones are refused. */
enum { MS_GRAPH_NODES_MOST = 1 << 18 };

/* The step: what stays, what passes between nodes, and the nodes in order of execution. */
typedef struct ms_graph {
    char *model;     /* class name of the root module */
    char *signature; /* input shapes and dtypes the step was traced with */
    char *source;    /* "static" or "empirical" */
    ms_residents residents;
    ms_loop loop;
    bool small_products; /* no matrix product of the step is large enough to need packing buffers */
    uint32_t storage_count;
    ms_storage *storages;
    uint32_t profile_count;
    ms_profile *profiles;
    uint32_t node_count;
    ms_node *nodes; /* in order of execution */
} ms_graph;

/* Frees a graph with all that it points to. Accepts NULL. */
MS_API void ms_graph_free(ms_graph *graph);
/* A copy that shares nothing with the original; NULL when memory is out. */
MS_API ms_graph *ms_graph_copy(const ms_graph *graph, ms_error *err);

/* Checks every index, bound and order that the documents promise (an event of a
 * storage before its ALLOC, a NEED without SAVE, a profile that is not used ...).
 * ms_graph_parse() calls it; MS_EFORMAT names the place. */
MS_API int ms_graph_check(const ms_graph *graph, ms_error *err);

/* Strict: an unknown or missing member is MS_EFORMAT, and the graph is checked. */
MS_API int ms_graph_parse(const char *json, ms_graph **graph, ms_error *err);
/* One line; reading it and writing it again gives the same bytes. NULL when memory is
 * out or a number does not fit. */
MS_API char *ms_graph_to_json(const ms_graph *graph);

/*
 * Does a plan for the inputs `larger` serve the inputs `smaller`? Signatures are texts in
 * which every tensor's sizes stand in brackets, such as "input_ids:int64[4,512]". True when
 * they are equal but for sizes, and no size of `smaller` exceeds the one at its place.
 */
MS_API bool ms_signature_covers(const char *larger, const char *smaller);

/* Which of `count` known signatures serves the inputs `signature`: the equal one, else the first that covers
 * it. `count` if none does. */
MS_API size_t ms_signature_find(const char *const *known, size_t count, const char *signature);

/*
 * Writes '#' over numbers that stand as values of arguments, in place: "beta=0.25,x:float32[4]"
 * becomes "beta=#,x:float32[4]". Sizes, texts, True, False and None stay. Which numbers: with
 * `dropped` NULL, every one; else those of arguments that have '#' in `dropped`, one or several such signatures
 * with commas between. For arguments that the model's step was seen not to depend on.
 */
MS_API void ms_signature_drop_numbers(char *signature, const char *dropped);

/*
 * The same for numbers that differ in the signature `other`: of two steps that are the same
 * (ms_graph_same_step()), these change nothing.
 */
MS_API void ms_signature_drop_different(char *signature, const char *other);

/*
 * Are two graphs of one model the same step, whatever their signatures say and whatever was seen of the
 * loop? False too when out of memory.
 */
MS_API bool ms_graph_same_step(const ms_graph *graph, const ms_graph *other);

/*
 * Learns which numbers change nothing from two traces of one model: if they are the same step, drops from
 * `signature`, the first graph's, the numbers that `other`, the second one's, has otherwise, and returns true.
 */
MS_API bool ms_signature_learn(char *signature, const ms_graph *graph, const char *other, const ms_graph *other_graph);

/*
 * Takes over what another graph of the same training has seen of the caller's loop: what it
 * holds, and the state of its optimizer. Nothing where `other` has seen nothing. What depends
 * on shapes stays.
 */
MS_API void ms_graph_adopt_loop(ms_graph *graph, const ms_graph *other);

/*
 * Gives the layers of a graph the profiles that they have in `tiled`, the graph of the same step
 * traced with position-wise modules in tiles, where these are others. Nothing where the two graphs
 * differ in what crosses nodes: their layers have nothing to do with each other then.
 */
MS_API int ms_graph_add_tiled(ms_graph *graph, const ms_graph *tiled, ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
