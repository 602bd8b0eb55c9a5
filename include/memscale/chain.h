/*
 * chain.h - the chain solver on its own: the fastest schedule of a chain of layers, with
 * several options for what each layer keeps, under a byte budget.
 *
 * The schedules are memory-persistent: what is stored stays until the backward that
 * needs it. Layer i takes activation x_i and gives x_{i+1}; the gradient of an activation
 * has its size. Every schedule handed out was replayed in exact bytes and fits.
 *
 * Exactness. The answer is the optimum of the recurrence (Rotor's, with options) where it
 * says `exact`: while a bucket is one unit, which is the greatest common divisor of all
 * sizes in the chain, and times fit 32 bits of nanoseconds. Otherwise sizes are rounded to
 * buckets, tables are solved on a grid of budgets that the chain alone fixes, and the
 * answer is the best replay among their schedules. In both cases a larger budget never
 * gives a slower schedule, and the same chain and budget give the same answer whatever
 * the number of threads. What is infeasible is decided in bytes, never in buckets.
 *
 * Links. A store begins when its layer's forward has ended; compute then waits until no
 * more than the write window's bytes are on their way. Fetches are issued before each
 * operation, in the order of the backwards, while no more than the read window's bytes
 * have come ahead of them; a backward waits for its own. What is on its way is in memory.
 * With options over links an answer is the best of many replays, and `exact` only where no
 * schedule can be faster; never slower than compute that waits for every transfer, as it
 * does in chains of more than 300 layers.
 */
#ifndef MEMSCALE_CHAIN_H
#define MEMSCALE_CHAIN_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MS_CHAIN_LAYERS_MOST = 65536,
    MS_CHAIN_OPTIONS_MOST = 1024, /* of a layer */
    MS_CHAIN_LINKS_MOST = 64,
    MS_CHAIN_BUCKETS = 500 /* of a table; longer chains get more while that is cheap, very long ones fewer */
};

/* What options move bytes over, down after a forward and back for its backward: one
 * transfer at a time, whichever way. */
typedef struct ms_chain_link {
    char *name;           /* may be NULL */
    uint64_t bytes_per_s; /* at least 1 */
} ms_chain_link;

/* One way to run a layer so that its backward can follow. */
typedef struct ms_chain_option {
    char *kind;                  /* a free label; may be NULL */
    uint64_t saved_bytes;        /* stored from forward to backward: the output included, the input not */
    uint64_t fwd_ns;
    uint64_t bwd_ns;
    uint64_t fwd_tmp_bytes;      /* beside what is saved, during the forward */
    uint64_t bwd_tmp_bytes;      /* the same in backward; includes the gradient of the input */
    uint32_t link;               /* index of the link that it uses, plus 1; 0: none */
    uint64_t link_bytes;         /* moved each way; during the layer's own forward and backward
                                  * they are part of its transients */
} ms_chain_option;

typedef struct ms_chain_layer {
    char *name;                  /* may be NULL */
    uint64_t output_bytes;
    uint64_t fwd_ns;             /* of a forward that stores nothing but its output */
    uint64_t fwd_tmp_bytes;
    uint32_t option_count;       /* 1 to MS_CHAIN_OPTIONS_MOST */
    ms_chain_option *options;    /* saved_bytes >= output_bytes */
} ms_chain_layer;

typedef struct ms_chain {
    uint64_t input_bytes;        /* x_0 */
    uint32_t layer_count;        /* 1 to MS_CHAIN_LAYERS_MOST */
    ms_chain_layer *layers;
    uint32_t link_count;         /* up to MS_CHAIN_LINKS_MOST */
    ms_chain_link *links;
} ms_chain;

typedef enum ms_chain_op_kind {
    MS_CHAIN_FWD_DROP, /* stores only its output and frees its input */
    MS_CHAIN_FWD_CKPT, /* stores only its output and keeps its input */
    MS_CHAIN_FWD_SAVE, /* stores what its option saves */
    MS_CHAIN_BWD       /* frees what was saved, the gradient of the output and the input */
} ms_chain_op_kind;

typedef struct ms_chain_op {
    uint32_t kind;   /* ms_chain_op_kind */
    uint32_t layer;
    uint32_t option; /* of FWD_SAVE and BWD, else 0 */
} ms_chain_op;

/* Numbers that pass 64 bits are given as UINT64_MAX. */
typedef struct ms_chain_answer {
    bool feasible;
    bool exact;                     /* the optimum of the recurrence */
    uint64_t smallest_budget_bytes; /* the least budget that is feasible; of a chain of more than
                                     * 1000 layers, one that is. UINT64_MAX: none is */
    uint64_t lower_bound_ns;        /* the sum of every layer's fastest option, transfers not counted;
                                     * where options use links, what a relaxation shows if that is more */
    uint32_t buckets;               /* of a table that was or would be solved */
    uint32_t group_layers;          /* layers that its tables take for one: 1 but for long chains */
    uint64_t makespan_ns;           /* the rest: where feasible */
    uint64_t peak_bytes;            /* x_0 and, from the first operation on, the gradient of x_L included */
    uint64_t write_window_bytes;    /* transfers beside the compute, see below; both 0: it waits for */
    uint64_t read_window_bytes;     /* every transfer. UINT64_MAX: no limit */
    size_t op_count;
    ms_chain_op *ops;
} ms_chain_answer;

/* Reads a chain (docs/formats/chain.schema.json). MS_EFORMAT and MS_EVERSION with the
 * place in the document, MS_ENOMEM. Free with ms_chain_free(). */
MS_API int ms_chain_parse(const char *json, ms_chain **chain, ms_error *err);
MS_API void ms_chain_free(ms_chain *chain);

/*
 * Solves the chain for a budget with up to `threads` threads (0: one for each processor,
 * at most 8). An infeasible budget is an answer, not an error. MS_EINVAL for a chain that
 * breaks the rules above, MS_ENOMEM. Fewer threads are used where none can be started.
 * Free what it gives with ms_chain_answer_clear(), which accepts an answer of zeros.
 */
MS_API int ms_chain_solve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer,
                          ms_error *err);
MS_API void ms_chain_answer_clear(ms_chain_answer *answer);

/* The document that `memscale plan --chain FILE --json` prints, and the same as a short
 * text for people. Free with ms_free(); NULL where memory is out. */
MS_API char *ms_chain_answer_to_json(const ms_chain_answer *answer);
MS_API char *ms_chain_answer_table(const ms_chain *chain, const ms_chain_answer *answer, uint64_t budget_bytes);

#ifdef __cplusplus
}
#endif

#endif
