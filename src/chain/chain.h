/*
 * Between the files of the chain solver (public face: memscale/chain.h):
 *
 *   chain.c           which tables are solved for a budget, and the answer
 *   chain_json.c      the chain read from JSON
 *   chain_answer.c    the answer written
 *   chain_group.c     very long chains as chains of groups
 *   chain_model.c     the chain in units, types of layers, classes of segments
 *   chain_least.c     the least memory that any schedule takes, in units
 *   chain_table.c     the recurrence over segments and memory, in buckets
 *   chain_class.c     one class of segments of it
 *   chain_rounding.c  what rounding to buckets can change
 *   chain_kernel.c    its inner loops, once per instruction set
 *   chain_unfold.c    the schedule behind an entry of a table
 *   chain_replay.c    a schedule replayed in bytes and nanoseconds
 *   chain_links.c     options over links, by prices
 *   chain_overlap.c   a schedule replayed with transfers beside the compute
 *
 * In a segment s..t with m bytes, x_s is held outside m and the gradient of x_{t+1}
 * inside. Source of the recurrence: Beaumont et al., "Optimal memory-aware
 * backpropagation of deep join networks" and Rotor (ACM TOMS 2024), with options.
 */
#ifndef MS_CHAIN_CHAIN_H
#define MS_CHAIN_CHAIN_H

#include "base/array.h"
#include "base/units.h"
#include "chain/chain_kernel.h"
#include "memscale/chain.h"

/* ---- the model ---------------------------------------------------------------------- */

/* An option that no other option of its layer beats in everything. */
typedef struct ms__chain_choice {
    uint64_t saved, fwd_tmp, bwd_tmp; /* units */
    uint64_t ns;                      /* forward and backward */
    uint32_t option;                  /* index in the chain */
} ms__chain_choice;

typedef struct ms__chain_step {
    uint64_t pass_ns, pass_tmp; /* of a forward that stores nothing; units */
    uint64_t fastest_ns;        /* the least ns of a choice */
    uint32_t first, end;        /* its choices; equal layers share them */
    uint32_t type;              /* equal for equal layers: the index of the first */
} ms__chain_step;

/*
 * What the solver works on. Sizes are in units of the greatest common divisor of all of
 * them, which loses nothing: a budget holds as many whole units as fit. UINT64_MAX stands
 * for a size that passes 64 bits and never fits.
 *
 * Segments with equal layers are one class; classes are numbered so that the parts of a
 * segment come before it.
 */
typedef struct ms__chain_model {
    uint32_t count;      /* layers */
    uint64_t unit_bytes;
    uint64_t *sizes;     /* [count + 1] x_i */
    ms__chain_step *steps;
    ms__chain_choice *choices;

    uint32_t class_count;
    uint32_t *class_of;  /* [segments], at ms__chain_segment() */
    uint32_t *starts, *ends; /* [class_count] a segment of the class */
    uint64_t *none;      /* [class_count] what a forward over it that stores nothing takes */
    uint64_t work;       /* splits over all classes: what a table costs per bucket */
    void *block;         /* all arrays */
} ms__chain_model;

int ms__chain_model_make(const ms_chain *chain, ms__chain_model *model);
void ms__chain_model_clear(ms__chain_model *model);

static inline size_t ms__chain_segment(uint32_t count, uint32_t s, uint32_t t)
{
    size_t after = count - 1 - s;
    return after * (after + 1) / 2 + (t - s);
}

/* Every segment is a class of its own, whose number is ms__chain_segment(). */
static inline bool ms__chain_all_differ(const ms__chain_model *model)
{
    return model->class_count == (uint64_t)model->count * (model->count + 1) / 2;
}

static inline uint32_t ms__chain_class(const ms__chain_model *model, uint32_t s, uint32_t t)
{
    return model->class_of[ms__chain_segment(model->count, s, t)];
}

/* max(x_{t+1} + saved + f, x_{s+1} + saved + b): what layer s with a choice takes in s..t. */
static inline uint64_t ms__chain_all(const ms__chain_model *model, uint32_t s, uint32_t t,
                                     const ms__chain_choice *choice)
{
    uint64_t forward = ms__add_sat(ms__add_sat(model->sizes[t + 1], choice->saved), choice->fwd_tmp);
    uint64_t backward = ms__add_sat(ms__add_sat(model->sizes[s + 1], choice->saved), choice->bwd_tmp);
    return ms__max_u64(forward, backward);
}

/* ---- schedules ------------------------------------------------------------------------ */

typedef struct ms__chain_schedule {
    MS__ARRAY(ms_chain_op) ops;
    uint64_t makespan_ns, peak_bytes;
} ms__chain_schedule;

int ms__chain_push(ms__chain_schedule *schedule, ms_chain_op_kind kind, uint32_t layer, uint32_t option);
/* Forwards of s..j-1 that store nothing, x_s kept. */
int ms__chain_push_passes(ms__chain_schedule *schedule, uint32_t s, uint32_t j);
void ms__chain_schedule_clear(ms__chain_schedule *schedule);

/* Fills makespan and peak; MS_ESTATE for a sequence that is no schedule (an input that
 * is not there, a backward out of order), which would be a bug of the solver. */
int ms__chain_replay(const ms_chain *chain, ms__chain_schedule *schedule, ms_error *err);

/* Every layer saved with its fastest option: no schedule takes less time. */
int ms__chain_fastest(const ms_chain *chain, ms__chain_schedule *schedule, uint64_t *lower_bound_ns);

/* The least units that a schedule takes, x_0 included, and one that takes them. */
int ms__chain_least(const ms__chain_model *model, uint64_t *units, ms__chain_schedule *schedule);

/* ---- tables ----------------------------------------------------------------------------- */

/* Times of a class by memory, from the first entry that is finite and wanted. */
typedef struct ms__chain_row {
    uint32_t *times; /* beyond the segment's fastest options, in 2^shift ns, rounded down; points to
                      * where entry 0 would be */
    uint32_t *ends;  /* the least time of each block of MS__CHAIN_BLOCK entries: the one at its end */
    uint32_t first;  /* UINT32_MAX: no entry */
} ms__chain_row;

typedef struct ms__chain_table {
    const ms__chain_model *model;
    uint64_t bucket;  /* units */
    uint64_t inverse; /* 2^64 / bucket */
    uint32_t low, top; /* entries of the whole chain are memory low .. top, in buckets, x_0 not included */
    uint32_t shift;
    ms__chain_row *rows; /* [class_count] */
    uint32_t *pool, *end_pool;
} ms__chain_table;

/* Solves the table for up to `units` of memory beside x_0. Of the whole chain, entries of less
 * than `low_units` may be left out, and of its parts what no other entry is made of. MS_ENOMEM. */
int ms__chain_table_make(const ms__chain_model *model, uint64_t bucket, uint64_t low_units, uint64_t units,
                         uint32_t threads, ms__chain_table *table);
void ms__chain_table_clear(ms__chain_table *table);

/* Time beyond the lower bound; false where no schedule takes m buckets. */
static inline bool ms__chain_row_at(const ms__chain_row *row, uint32_t m, uint32_t *time)
{
    if (m < row->first) {
        return false;
    }
    *time = row->times[m];
    return true;
}

/* Times of the whole chain, from the first finite entry to the last that differs from the one
 * before; more memory than that gives the last. */
typedef struct ms__chain_times {
    const uint32_t *times; /* of memory `first` and more */
    uint32_t first, length;
} ms__chain_times;

ms__chain_times ms__chain_whole(const ms__chain_table *table);

static inline bool ms__chain_times_at(const ms__chain_times *row, uint32_t m, uint32_t *time)
{
    if (row->length == 0 || m < row->first) {
        return false;
    }
    uint32_t i = m - row->first;
    *time = row->times[i < row->length ? i : row->length - 1];
    return true;
}

/* A segment to be done in m buckets while `held` units are outside it, x_s among them; or only
 * the backward of its first layer. */
typedef struct ms__chain_pending {
    uint64_t held;
    uint32_t s, t, m;
    uint32_t option;
    bool backward;
} ms__chain_pending;

/* Items that a walk of a schedule needs of its stack. */
static inline size_t ms__chain_stack_size(const ms__chain_model *model)
{
    /* Each layer is in at most one pending segment, or only its backward is. */
    return (size_t)model->count + 2;
}

/* Whether the schedule behind a finite entry of the whole chain takes no more than `units`, x_0
 * included, when nothing is rounded. MS_ESTATE for an entry without a schedule. */
int ms__chain_fits(const ms__chain_table *table, uint32_t m, uint64_t units, ms__chain_pending *stack, bool *fits);

/* The schedule behind a finite entry of the whole chain. */
int ms__chain_unfold(const ms__chain_table *table, uint32_t m, ms__chain_schedule *schedule);

static inline uint64_t ms__mul_high(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b >> 64);
}

/* Sizes to the nearest bucket; at most top + 1, which no row holds. */
static inline uint32_t ms__chain_buckets(const ms__chain_table *table, uint64_t units)
{
    uint64_t whole = ms__mul_high(units, table->inverse), rest = units - whole * table->bucket;
    while (rest >= table->bucket) {
        whole++;
        rest -= table->bucket;
    }
    uint64_t buckets = whole + (rest >= table->bucket - rest);
    return buckets > table->top ? table->top + 1 : (uint32_t)buckets;
}

/* The most that rounding can hide, whatever is held: of each place between two layers, and of
 * one sum. */
static inline uint64_t ms__chain_rounding_most(const ms__chain_model *model, uint64_t bucket)
{
    return bucket == 1 ? 0 : ms__mul_sat(model->count, ms__div_up(bucket, 2));
}

/*
 * The most that rounding to buckets can add (`up`) to what a schedule holds that takes
 * `units` beside x_0, or can hide of what a schedule holds that takes `units` rounded.
 */
uint64_t ms__chain_rounding(const ms__chain_model *model, uint64_t bucket, uint64_t units, bool up);

/* What a choice asks for in a segment: at least `start` buckets, of which all but
 * `taken` are left to the layers behind; and its own time. */
typedef struct ms__chain_move {
    uint32_t start, taken, time;
} ms__chain_move;

ms__chain_move ms__chain_save_move(const ms__chain_table *table, uint32_t s, uint32_t t,
                                   const ms__chain_choice *choice);

static inline uint32_t ms__chain_pass_time(const ms__chain_table *table, uint32_t layer)
{
    return (uint32_t)(table->model->steps[layer].pass_ns >> table->shift);
}

typedef void (*ms__chain_filler)(const ms__chain_fill *fill);

ms__chain_filler ms__chain_select_filler(void);

/* ---- a class of segments --------------------------------------------------------------- */

/* A table while it is solved. */
typedef struct ms__chain_work {
    ms__chain_table *table;
    ms__chain_filler fill;
    uint32_t *sizes;  /* [layers + 1] x_i in buckets */
    uint32_t *passed; /* [layers + 1] times of passes over the layers before */
    uint32_t *lows;   /* [layers] less memory than this isn't asked of a segment that begins there */
    uint32_t *saved;  /* [choices] in buckets */
    uint32_t *flats;  /* [classes] from this entry on all options are the fastest; at most top + 1 */
    uint32_t *zeros;  /* [blocks of a row] what is left behind a segment's last layer */
    uint32_t blocks;  /* of a row that begins at 0 */
    _Atomic size_t used; /* blocks of the pool */
} ms__chain_work;

/* What a thread needs beside. */
typedef struct ms__chain_scratch {
    ms__chain_rest *rests; /* [the most choices of a layer] */
    ms__chain_sum *sums;   /* [layers] */
} ms__chain_scratch;

/* Solves a class whose parts are solved. */
void ms__chain_solve_class(ms__chain_work *work, uint32_t class_id, const ms__chain_scratch *scratch);

/* ---- links ------------------------------------------------------------------------------ */

enum { MS__CHAIN_PRICE_ONE = 16 /* a price of 1: a transfer costs the time that it takes */ };

typedef struct ms__chain_windows {
    uint64_t write_bytes, read_bytes;
} ms__chain_windows;

/* Whether any option uses a link. */
bool ms__chain_has_transfers(const ms_chain *chain);
/* Of one transfer, one way; 0 without a link. */
uint64_t ms__chain_transfer_ns(const ms_chain *chain, const ms_chain_option *option);

/* The same chain without links: transfers are added to the options' times, each at the
 * price of its link (in sixteenths; NULL: all 1). Free with ms_chain_free(). MS_ENOMEM. */
int ms__chain_priced(const ms_chain *chain, const uint32_t *prices, ms_chain **priced);

/* What an accepted schedule takes with its transfers beside the compute. MS_ENOMEM. */
int ms__chain_overlap(const ms_chain *chain, const ms__chain_schedule *schedule, const ms__chain_windows *windows,
                      uint64_t *makespan_ns, uint64_t *peak_bytes);

/* Replaces an answer in which compute waits for every transfer by a better one, and its
 * lower bound. */
int ms__chain_links_improve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer,
                            ms_error *err);

/* ---- groups --------------------------------------------------------------------------- */

enum { MS__CHAIN_GROUPS_MOST = 1000 /* longer chains are solved as at most this many groups */ };

/* A chain of groups of `per_group` consecutive layers. */
int ms__chain_group(const ms_chain *chain, uint32_t per_group, ms_chain **groups);
/* The schedule of the groups as one of the layers. */
int ms__chain_ungroup(const ms_chain *chain, uint32_t per_group, const ms__chain_schedule *groups,
                      ms__chain_schedule *layers);

#endif
