/*
 * graph.h - one training step as a value: a chain of nodes with the storages that each allocates, saves, needs and
 * frees, and its work.
 * Tests: tests/c/graph/test_graph.c.
 *
 * A *node* is one call of a layer, or the root module's own work between two layer calls (kind MS_NODE_ROOT: the
 * embedding, the head with the loss). A *profile* is a node's program: its events in forward and in backward, over
 * storages with local numbers. Equal nodes (the repeated blocks of a transformer) share one profile. Storages that
 * cross nodes have numbers in the graph; `externals` binds them to the first local numbers of a profile.
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
 *   LOSS s, LOSS_END t   the events between them compute a cross entropy over the rows of
 *             the logits s: in forward its value (t is s), in backward its gradient t.
 *             Marks for the planner's loss head; they change nothing themselves
 *   HEAD s, HEAD_END t   in forward, HEAD alone: a linear layer has just made s, which only
 *             the cross entropy of the next LOSS reads, in the same rows. In backward, the
 *             events between them compute the gradients of that layer's operands; t is the
 *             gradient of its input. Marks for the planner, like LOSS
 *   FINAL s   in backward: autograd has added the last part of the gradient s, which an optimizer
 *             that releases gradients frees here. A mark for the planner; traces of the caller's own steps lack it
 *
 * Under "keep", a storage lives from ALLOC to the later of FREE and the last DROP; under offload or recompute it dies
 * at FREE and exists again from NEED to DROP. A plan is replayed by running these programs under its choices
 * (plan.h).
 *
 * Backward runs the nodes' backward programs in reverse order.
 *
 * Invariants, checked by ms_graph_check():
 *   - A storage's first event is its only ALLOC. BATCH storages are only inputs: they have
 *     no events. FREE comes at most once. A storage without FREE lives to the end of the
 *     step; a GRADIENT has no FREE.
 *   - SAVE is in a node's forward program, before FREE; NEED in the same node's backward
 *     program, before DROP; DROP in either of its programs. Each comes at most once per
 *     node and storage. A SAVE without DROP is held to the end of the step; a SAVE without
 *     NEED was not used.
 *   - FINAL is in a backward program, of an external, once.
 *   - Storages that cross nodes, inputs, OUTPUTs and GRADIENTs are external; the others are local. A node binds an
 *     external once; the profile and the graph state the same bytes for it.
 *   - Sums of all bytes and of all work fit 63 bits.
 *
 * Makers. A layer's profile also lists the operators that can recompute single tensors. A maker reads only
 * parameters, buffers, saved storages and results of other makers. It is not random, and it writes only to fresh
 * storages that no later operator writes to. Backward can recompute its results, so they need not be kept. Makers
 * are listed in order of execution; makers that lead to no saved storage are left out.
 *
 * Two-valued storages. A layer's profile also lists its saved storages that certainly have only two values (masks). A
 * plan may pack them to one bit per element.
 *
 * Untouched bytes. A profile also lists storages that an operator touches only in part (the workspace of oneDNN's
 * recurrent layers). The prediction of an unmodified run leaves out untouched bytes. Budgets and planned runs, which
 * reuse maps, count them.
 *
 * Compiled layers. A trace runs them as written. Once a call was measured (ms_graph_measure()), the layer's profile has
 * the storages, peaks and times that were seen; its flag `measured` says so.
 *
 * Tiles. A layer may have a second profile, `tiled`: in the same call its position-wise modules (an MLP) run some
 * rows at a time, and again in backward. It binds the same storages. The planner's option tiled_mlp uses it instead
 * of the first profile.
 *
 * As JSON (docs/formats/graph.schema.json) events are short arrays: ["alloc",3], ["work",flops,bytes]. Work that
 * draws random numbers, evaluates functions or multiplies 16-bit numbers is
 * ["work",flops,bytes,draws,evaluations,precision], without the zeros at its end.
 */
#ifndef MEMSCALE_GRAPH_H
#define MEMSCALE_GRAPH_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The precision of matrix products, and of forwards under `use_mixed_precision`. */
typedef enum ms_precision {
    MS_PRECISION_AS_IS, /* products of other types; forwards without autocast */
    MS_PRECISION_BF16,
    MS_PRECISION_FP16, /* forwards with a scaled loss */
} ms_precision;

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
    X(HEAD_END, "head_end") \
    X(FINAL, "final")
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
    uint32_t precision; /* WORK: ms_precision of its matrix products; MS_PRECISION_AS_IS for all but 16-bit ones */
    uint64_t moved_bytes; /* WORK: bytes that come from another device, at the rate of the link between the two */
} ms_event;

/* An operator that can run again. Its operands are local numbers in ms_profile.operands,
 * inputs first, without parameters and buffers. */
typedef struct ms_maker {
    uint64_t flops, bytes, evaluations; /* as in its WORK */
    uint32_t precision;
    uint32_t first;        /* index of its first operand */
    uint32_t input_count;
    uint32_t output_count;
} ms_maker;

/* A local storage of the node, and a number of bytes whose meaning the list defines. */
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
    ms_storage_list two_valued; /* saved storages of two values; bytes of an element: 1, 2, 4 or 8 */
    ms_storage_list untouched;  /* bytes that its operator never touches: fresh pages that do not become resident */
    uint64_t forward_ns, backward_ns; /* measured times of the programs; both 0: only their WORK is known */
} ms_profile;

/* The root module's own work, or a layer. */
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
    X(NOT_REPEATABLE, 7, "not_repeatable") /* a second run gives other values, or would do something twice */ \
    X(COMPILED, 8, "compiled")           /* torch.compile's code runs in it: its operators can't be seen one by one */ \
    X(MEASURED, 9, "measured")           /* compiled: its profile comes from a call that was measured */ \
    X(ELSEWHERE, 10, "elsewhere")        /* computes on another device than the graph's, or on several */
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
    uint32_t last_node;  /* the last node to touch it in the pass (forward or backward) that allocates it;
                            less than first_node only in backward */
} ms_storage;

/* The loop around the step, which the trace can't see. Assumed until observed. */
typedef struct ms_loop {
    bool outputs_held;                   /* the caller holds the outputs through backward */
    bool gradients_live_in_forward;      /* zero_grad comes after the next forward, or gradients accumulate */
    bool observed;                       /* the two above were observed, not assumed */
    bool gradients_cleared;              /* those that live in forward are gone before backward begins: zero_grad()
                                            comes between the two */
    uint64_t pending_forwards; /* forwards of the model that wait for their backward when the step's last one
                                            runs, as in a loss of two; set by ms_graph_pend() */
    uint64_t optimizer_state_bytes; /* after the first step */
    uint64_t optimizer_made_bytes; /* part of the state that exists before the first step: a resumed run */
    uint64_t optimizer_transient_bytes; /* peak of the step's temporaries, beside state and gradients */
    uint64_t external_loss_bytes; /* bytes that a loss outside the model holds through its backward */
    uint64_t optimizer_stream_bytes; /* part of the state that can lie on disk, on a GPU in host
                                            memory: 0 unless the optimizer is memscale's and known */
    bool gradients_releasable; /* the optimizer can update parameters in backward */
    bool gradients_released; /* it does so under every plan, at the user's request */
    bool gradients_needed; /* all must exist before one is used: a GradScaler, clipping or accumulation */
    bool state_streamed; /* its state is there under every plan; the bytes above do not include it */
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
    /* Convolutions, and matrix products of 16-bit numbers, that differ in operator or shape: the math library generates
     * code for each in the process. */
    uint32_t convolutions, half_products;
    uint64_t libc_buffer_bytes; /* of the operator that takes most; libc keeps them, so they count in the whole step */
    uint32_t storage_count;
    ms_storage *storages;
    uint32_t profile_count;
    ms_profile *profiles;
    uint32_t node_count;
    ms_node *nodes; /* in order of execution */
} ms_graph;

/* Frees a graph and everything it owns. Accepts NULL. */
MS_API void ms_graph_free(ms_graph *graph);
/* A copy that shares nothing with the original; NULL when out of memory. */
MS_API ms_graph *ms_graph_copy(const ms_graph *graph, ms_error *err);

/* Checks every invariant above (no event of a storage before its ALLOC, no NEED without SAVE, no unused profile
 * ...). ms_graph_parse() calls it; MS_EFORMAT names the place. */
MS_API int ms_graph_check(const ms_graph *graph, ms_error *err);

/* Parses and checks a graph. An unknown or missing member is MS_EFORMAT. */
MS_API int ms_graph_parse(const char *json, ms_graph **graph, ms_error *err);
/* One line of JSON; parsing and writing it again gives the same bytes. NULL when out of
 * memory, or if a number does not fit. */
MS_API char *ms_graph_to_json(const ms_graph *graph);

/*
 * True if a plan for the inputs `larger` also serves the inputs `smaller`: the signatures are equal except for sizes,
 * and no size of `smaller` exceeds its counterpart. Signatures write every tensor's sizes in brackets, such as
 * "input_ids:int64[4,512]".
 */
MS_API bool ms_signature_covers(const char *larger, const char *smaller);

/* The index of the known signature whose plan serves `signature`: the equal one, else the first that covers it;
 * `count` if none does. */
MS_API size_t ms_signature_find(const char *const *known, size_t count, const char *signature);

/*
 * For inputs that keep growing: a signature with room, so that the next lengths need no trace. It is compared with
 * the last known one that it covers; each size that has grown since becomes some 10 to 19% larger. NULL if it covers
 * fewer than MS_SIGNATURE_GROWTHS other known signatures, or when out of memory. Free with ms_free().
 */
enum { MS_SIGNATURE_GROWTHS = 3 };
MS_API char *ms_signature_ahead(const char *const *known, size_t count, const char *signature);

/*
 * Replaces numbers that are values of arguments by '#', in place: "beta=0.25,x:float32[4]" becomes
 * "beta=#,x:float32[4]". Sizes, texts, True, False and None stay. If `dropped` is NULL, replaces every number;
 * otherwise only numbers of arguments that have '#' in `dropped` (one signature, or several separated by commas).
 * Used for arguments that were seen to have no effect on the step.
 */
MS_API void ms_signature_drop_numbers(char *signature, const char *dropped);

/*
 * Replaces only the numbers that differ from those of the signature `other`. If both steps are the same
 * (ms_graph_same_step()), these numbers have no effect.
 */
MS_API void ms_signature_drop_different(char *signature, const char *other);

/*
 * True if two graphs of one model are the same step; signatures and observed loops may differ. False when out of
 * memory.
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

/* The step has at least this many forwards that wait for their backward while another one runs. Never lowers it. */
MS_API void ms_graph_pend(ms_graph *graph, uint64_t forwards);

/* Sets MS_NODE_NOT_REPEATABLE at every call of the layer with this name. */
MS_API void ms_graph_hold(ms_graph *graph, const char *layer);

/*
 * Takes each layer's second profile from `tiled`, if it differs from the first; `tiled` is the graph of the same step
 * traced with position-wise modules in tiles. Does nothing if the storages that cross nodes differ: the graphs' layers
 * then do not correspond. MS_ENOMEM.
 * Tests: tests/c/graph/test_graph_tiled.c.
 */
MS_API int ms_graph_add_tiled(ms_graph *graph, const ms_graph *tiled, ms_error *err);

/* A measured call of a compiled layer. Bytes are those of tensors, counted from the beginning of each pass. */
typedef struct ms_measured_call {
    const char *layer;
    uint32_t call; /* as in ms_node */
    uint32_t input_count;
    const uint32_t *inputs; /* saved arguments: their places among the profile's inputs */
    uint32_t output_count;
    const uint64_t *output_bytes; /* storages that it makes, saves and returns */
    uint32_t made_count;
    const uint64_t *made_bytes; /* other storages that it makes and saves */
    uint64_t live_bytes; /* growth of live bytes over the forward */
    uint64_t forward_peak_bytes; /* highest growth in forward */
    uint64_t backward_peak_bytes; /* highest growth in backward, over what is live when it begins */
    uint64_t forward_ns, backward_ns;
} ms_measured_call;

/*
 * Replaces the profiles of compiled layers by what their calls were seen to do. Each makes everything at once, saves
 * it at its end, and asks for all of it when its backward begins; bytes that live through forward without being saved
 * stay until backward, under every plan. Events of storages that cross nodes stay, but for what is saved. Calls of
 * other nodes are ignored. `least_bytes`: smaller storages are not among the live bytes. The session calls it after
 * each trace. MS_EPROFILE, and the graph stays as it is, if what was seen makes no sound graph; MS_ENOMEM.
 * Tests: tests/c/graph/test_graph_measured.c.
 */
MS_API int ms_graph_measure(ms_graph *graph, const ms_measured_call *calls, size_t count, uint64_t least_bytes,
                            ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
