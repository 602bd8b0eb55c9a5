/*
 * The tracer's state: recorded by trace.c and its neighbours, turned into a graph by trace_finish.c.
 * Private to src/trace. Tests: tests/c/trace/test_trace.c.
 */
#ifndef MS_TRACE_TRACE_INTERNAL_H
#define MS_TRACE_TRACE_INTERNAL_H

#include "base/array.h"
#include "base/keymap.h"
#include "memscale/trace.h"

/* Kind of a withdrawn event. */
#define TRACE_VOID_EVENT ((uint32_t)MS_EVENT_COUNT)
#define TRACE_NO_NODE UINT32_MAX
#define TRACE_NO_LIFE UINT32_MAX

/* One storage from birth to death; several may have the same address, one after another. */
typedef struct trace_life {
    uint64_t bytes;
    uint32_t role;   /* ms_storage_role */
    uint32_t holds;  /* saves not released */
    bool freed;
    bool in_step;    /* it has an ALLOC, or belongs to the batch */
    uint32_t writes; /* by operators that write in place */
    uint32_t makers; /* operators that could recompute it */
    uint32_t values_at;   /* 1 + `writes` when it last had few values; 0: never. At that time: */
    uint32_t values;      /* number of values, 1 or 2 */
    uint32_t value_bytes; /* of an element */
    bool are_truths;      /* elements of torch's bool */
    uint64_t untouched_bytes;
    bool is_final;        /* a gradient with a FINAL event, in backward of this node: */
    uint32_t final_node;
    size_t final_index;
} trace_life;

/* The values that an operator writes to a storage: see trace_values.c. */
typedef struct trace_write {
    /* any; one; two; a function of its first operand's values; the first operand's values and one more */
    enum { WRITE_ANYTHING, WRITE_ONE_VALUE, WRITE_TWO_VALUES, WRITE_MAPS_VALUES, WRITE_ADDS_VALUE } kind;
    bool in_place;
    bool are_truths;           /* torch's bool: two values, for any operands */
    uint64_t bytes;            /* written */
    uint32_t value_bytes;      /* of an element */
    uint32_t read_value_bytes; /* of an element of its first operand */
} trace_write;

/* An operand of a maker, and its number of writes before the maker ran. */
typedef struct trace_operand {
    uint32_t life;
    uint32_t writes;
} trace_operand;

/* A node's save of a life, for any number of saved tensors. */
typedef struct trace_save {
    uint32_t node;
    uint32_t life;
    uint32_t tokens; /* packed and not released */
    uint32_t copies; /* living storages that replace it in backward */
    bool needed;
    bool dropped;        /* its DROP is recorded */
    bool drop_backward;  /* the DROP is in the backward program */
    uint32_t drop_index; /* of the DROP in its program */
} trace_save;

/* A marked cross entropy. */
typedef struct trace_loss {
    uint32_t node;
    uint32_t life; /* of its logits */
} trace_loss;

/* A linear layer that may make logits. */
typedef struct trace_head {
    uint32_t node;
    uint32_t life; /* of its output */
    size_t index;  /* of its event in the node's forward program, withdrawn until the head is used */
    bool used;
} trace_head;

/* A sum of two gradients that may be written over the first: see trace_sums.c. */
typedef struct trace_sum {
    enum { SUM_NONE, SUM_EXPECTED, SUM_MADE } state;
    uint32_t first; /* the first gradient's life */
    /* Set when the sum is made: */
    uint32_t life;
    uint64_t key;
    uint64_t peak_bytes; /* before the sum */
    uint32_t node;       /* the node whose backward has the sum's ALLOC */
    size_t index;        /* of that ALLOC */
} trace_sum;

/* `storage` of these events is a life, not a local number. */
typedef MS__ARRAY(ms_event) trace_program;

typedef struct trace_node {
    char *name;
    uint32_t kind;
    uint32_t call;
    uint32_t flags;
    bool has_input;
    trace_program forward;
    trace_program backward;
    MS__ARRAY(uint32_t) inputs; /* lives, each once */
    MS__ARRAY(ms_maker) makers; /* see trace_makers.c */
    MS__ARRAY(trace_operand) operands;
} trace_node;

struct ms_trace {
    char *model;
    char *signature;
    char *source;
    ms_trace_phase phase;
    bool finished;
    bool loss_outside;

    ms__keymap keys;    /* address -> its current meaning, see KEY_... */
    ms__keymap save_of; /* node << 32 | life -> index into saves */
    MS__ARRAY(trace_life) lives;
    MS__ARRAY(trace_save) saves;
    MS__ARRAY(trace_node) nodes;
    MS__ARRAY(trace_loss) losses;
    MS__ARRAY(trace_head) heads;

    bool on_several_devices;
    uint64_t moved_bytes;   /* of the next operator */
    bool layer_open;        /* the last node is an open layer */
    bool root_open;         /* the last node is a root node that takes more events */
    uint32_t backward_from; /* the node in which backward began */
    uint32_t backward_node; /* the current node of backward */
    MS__ARRAY(uint32_t) old_gradients; /* lives from before the step */

    ms_event last_work; /* of the last operator */
    bool has_large_product;
    ms__keymap convolutions, half_products; /* hash of operator and shapes -> 1 */
    uint32_t threads;
    uint64_t libc_buffer_bytes; /* of the operator that takes most */
    trace_write last_write;
    trace_sum sum;

    uint64_t live_bytes;
    uint64_t peak_bytes;

    ms_residents residents;
    uint64_t optimizer_elements; /* of trainable parameters */
    uint64_t largest_trainable_bytes;
    uint64_t expected_state_bytes; /* 0: not known */
    uint64_t made_state_bytes;     /* before the step */
    bool optimizer_seen;
    trace_program optimizer; /* ALLOC and FREE of its step */
    uint64_t optimizer_state_bytes;
    uint64_t optimizer_transient_bytes;
    uint64_t optimizer_stream_bytes;
    bool gradients_releasable;
    bool gradients_released;
    bool gradients_needed;
    bool state_streamed;
};

/* The top two bits of an address's value in `keys` are its meaning, the rest is an index. */
#define KEY_LIFE (0ULL << 62)
#define KEY_RESIDENT (1ULL << 62) /* parameter or buffer; its index has the bits RESIDENT_... */
#define RESIDENT_TRAINABLE 1ULL
#define RESIDENT_WRITTEN 2ULL     /* an operator of the step wrote to it */
#define KEY_COPY (2ULL << 62)     /* replaces a save in backward */
#define KEY_KIND (3ULL << 62)
#define KEY_INDEX (~KEY_KIND)

static inline bool ms__trace_in_forward(const ms_trace *trace)
{
    return trace->phase == MS_TRACE_FORWARD || trace->phase == MS_TRACE_LOSS;
}

/* Of `hash` and one number more. */
static inline uint64_t ms__trace_hash(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
    return hash ^ (hash >> 29);
}

static inline uint32_t ms__trace_last_node(const ms_trace *trace)
{
    return (uint32_t)trace->nodes.count - 1;
}

/* trace.c */
int ms__trace_no_memory(ms_error *err);
int ms__trace_check_open(const ms_trace *trace, ms_error *err);
/* The node of an event of forward. Between layers the first event that is neither FREE nor DROP opens a root
 * node. */
int ms__trace_forward_node(ms_trace *trace, uint32_t event_kind, uint32_t *node, ms_error *err);
/* Opens a root node if there is no node. */
int ms__trace_have_node(ms_trace *trace, ms_error *err);
int ms__trace_push(trace_program *program, ms_event event, ms_error *err);
/* Records an event in the current node or the optimizer. */
int ms__trace_record(ms_trace *trace, ms_event event, ms_error *err);
/* trace_storages.c: the meaning of an address. */
bool ms__trace_find_life(const ms_trace *trace, uint64_t key, uint32_t *life);
/* True for a parameter or buffer; `*written`: the step has written to it. */
bool ms__trace_is_resident(const ms_trace *trace, uint64_t key, bool *written);
int ms__trace_resident_written(ms_trace *trace, uint64_t key, ms_error *err);
int ms__trace_put_key(ms_trace *trace, uint64_t key, uint64_t value, ms_error *err);
/* Subtracts the life from live bytes if it is freed and not saved. */
void ms__trace_release_life(ms_trace *trace, uint32_t index);
/* trace_sums.c. sum_born(): a storage was born, and the last event is its ALLOC. sum_ends(): an event other than WORK
 * follows. sum_replaces(): the last holder of a life beside autograd is gone; if the sum takes over its storage,
 * `*replaced` is true and its FREE is not recorded. */
void ms__trace_sum_born(ms_trace *trace, uint64_t key, uint32_t life, uint64_t peak_before);
void ms__trace_sum_ends(ms_trace *trace);
int ms__trace_sum_replaces(ms_trace *trace, uint32_t dying, bool *replaced, ms_error *err);
/* trace_saved.c: records the DROP of a save in a program of its node. In forward, if the node is not the last one, the
 * DROP goes to its backward program, so that the storage does not end too early. */
int ms__trace_drop_save(ms_trace *trace, uint32_t index, ms_error *err);
/* trace_values.c. write_of(): the values that an operator writes, by its name and operands. note_write(): a life
 * was written to, and the write is counted. note_result(): the last operator made the life from `source` (NULL:
 * unknown). is_two_valued(): the life now has at most two values. */
trace_write ms__trace_write_of(const char *name, const ms_operand *inputs, size_t input_count,
                               const ms_operand *outputs, size_t output_count);
void ms__trace_note_write(trace_life *life, const trace_write *write);
void ms__trace_note_result(const ms_trace *trace, const trace_life *source, trace_life *made);
bool ms__trace_is_two_valued(const trace_life *life);
/* trace_makers.c: keeps only makers that lead to the node's saves and whose operands were not written to. On entry
 * `needed` has a zero for each life; afterwards it is undefined. */
void ms__trace_thin_makers(ms_trace *trace, trace_node *node, uint8_t *needed);

#endif
