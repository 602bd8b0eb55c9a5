/*
 * From a Hugging Face configuration to a graph: runs the family's step on a tape and finishes the trace. config.c
 * reads the configuration.
 */
#include "memscale/predict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/units.h"
#include "predict/models.h"

static const uint64_t size_most = UINT64_C(1) << 24; /* sequences, tokens */

typedef struct family_row {
    const char *class; /* of the model */
    void (*write)(ms__tape *tape, const ms__model *model);
} family_row;

static const family_row families[MS__FAMILIES] = {
    [MS__LLAMA] = {"LlamaForCausalLM", ms__write_decoder}, [MS__MISTRAL] = {"MistralForCausalLM", ms__write_decoder},
    [MS__QWEN2] = {"Qwen2ForCausalLM", ms__write_decoder}, [MS__QWEN3] = {"Qwen3ForCausalLM", ms__write_decoder},
    [MS__GPT2] = {"GPT2LMHeadModel", ms__write_gpt2},      [MS__BERT] = {"BertForMaskedLM", ms__write_bert},
};

/* ---- shared by the families ------------------------------------------------------------- */

void ms__enter_layer(ms__tape *tape, const char *prefix, uint64_t index, size_t inputs, const ms__value *values)
{
    char name[64];
    uint32_t node;
    snprintf(name, sizeof name, "%s%" PRIu64, prefix, index);
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_enter(tape->trace, name, 0, &node, tape->err));
    }
    for (size_t i = 0; i < inputs && tape->rc == MS_OK; i++) {
        ms__fail_tape(tape, ms_trace_input(tape->trace, ms__key_of(tape, values[i]), NULL, tape->err));
    }
}

void ms__leave_layer(ms__tape *tape, bool last)
{
    if (tape->rc == MS_OK && !last) {
        uint32_t node = ms_trace_current(tape->trace);
        ms__fail_tape(tape, ms_trace_flag(tape->trace, node, MS_NODE_CHAINED, tape->err));
    }
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_leave(tape->trace, tape->err));
    }
}

/* `seen` in another shape, as an operand. */
static ms__value seen_as(ms__tape *tape, ms__value seen, ms__shape shape)
{
    ms__value alias = ms__alias(tape, seen, shape);
    ms__drop(tape, alias);
    return alias;
}

void ms__look_for_packing(ms__tape *tape, const ms__model *m, ms__value positions)
{
    ms__shape ids = MS__SHAPE(m->batch, m->seq), column = MS__SHAPE(m->batch, 1), row = MS__SHAPE(m->batch);
    ms__value first = ms__constant(tape, column, 8, seen_as(tape, positions, column), 0);
    ms__value led = ms__constant(tape, MS__SHAPE(m->batch, m->seq + 1), 8, first, seen_as(tape, positions, ids));
    ms__value steps = ms__constant(tape, ids, 8, seen_as(tape, led, ids), seen_as(tape, led, ids));
    ms__drop(tape, led);
    ms__value jumps = ms__constant(tape, ids, 1, steps, 0), texts = ms__constant(tape, ids, 8, jumps, 0);
    ms__drop(tape, ms__fresh(tape, ids, 8)); /* a running sum converts its operand first */
    ms__drop(tape, jumps);
    ms__value alone = ms__constant(tape, row, 1, seen_as(tape, texts, row), 0);
    ms__value all = ms__constant(tape, (ms__shape){.rank = 0}, 1, alone, 0);
    ms__drop(tape, alone);
    ms__drop(tape, all);
    ms__drop(tape, first);
    ms__drop(tape, steps);
    ms__drop(tape, texts);
}

static void set_phase(ms__tape *tape, ms_trace_phase phase)
{
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_set_phase(tape->trace, phase, tape->err));
    }
}

static void set_output(ms__tape *tape, ms__value value)
{
    if (tape->rc == MS_OK) {
        ms__fail_tape(tape, ms_trace_role(tape->trace, ms__key_of(tape, value), 0, MS_STORAGE_OUTPUT, tape->err));
    }
}

void ms__finish_step(ms__tape *tape, ms__value logits, ms__value loss)
{
    set_output(tape, loss);
    set_output(tape, logits);
    set_phase(tape, MS_TRACE_LOSS);
    ms__drop(tape, logits);
    set_phase(tape, MS_TRACE_BACKWARD);
    ms__backward(tape, loss);
    set_phase(tape, MS_TRACE_DONE);
    ms__drop(tape, loss);
}

void ms__finish_stage(ms__tape *tape, const ms__model *m, ms__value out)
{
    ms__value seed = ms__received(tape, ms__shape_at(tape, out), m->microbatches, false);
    set_output(tape, out);
    set_phase(tape, MS_TRACE_LOSS);
    ms__value held = ms__alias(tape, out, ms__shape_at(tape, out));
    ms__drop(tape, out);
    set_phase(tape, MS_TRACE_BACKWARD);
    ms__backward_from(tape, held, seed);
    set_phase(tape, MS_TRACE_DONE);
    ms__drop(tape, held);
}

/* ---- the graph -------------------------------------------------------------------------------- */

/* The schedule holds a stage's output until its backward, and adds each microbatch's gradients to those before. */
static void set_schedule(ms_graph *graph, const ms_part *part)
{
    uint32_t after = part->stages - part->stage - 1;
    graph->loop.observed = graph->loop.outputs_held = graph->loop.gradients_live_in_forward = true;
    graph->loop.gradients_needed = true;
    ms_graph_pend(graph, after < part->microbatches ? after : part->microbatches - 1);
}

static ms_part_traffic traffic_of(const ms__tape *tape, const ms__model *m, const ms_part *part)
{
    uint64_t ranks = part->tensor_ranks;
    uint64_t tokens = m->seq / (m->by_sequence ? ranks : 1),
             neighbours = (part->stage > 0) + (part->stage + 1 < part->stages);
    uint64_t stream = ms__mul_sat(ms__mul_sat(m->batch, tokens), ms__mul_sat(m->width, tape->real_bytes));
    return (ms_part_traffic){.tensor_bytes = ms__mul_div(tape->moved_bytes, ranks - 1, ranks),
                             .stage_bytes = ms__mul_sat(stream, neighbours)};
}

static int write_step(const ms__model *m, const ms_part *part, ms_graph **graph, ms_part_traffic *traffic,
                      ms_error *err)
{
    const family_row *row = &families[m->family];
    ms__tape tape = {.err = err, .differentiates = true, .ranks = m->shares, .real_bytes = part->is_half ? 2 : 4};
    char signature[160];
    snprintf(signature, sizeof signature,
             "input_ids:int64[%" PRIu64 ",%" PRIu64 "],labels:int64[%" PRIu64 ",%" PRIu64 "]%s", m->batch, m->seq,
             m->batch, m->seq, m->uses_cache ? ",use_cache=False" : "");
    int rc = ms_trace_new(row->class, signature, "static", &tape.trace, err);
    if (rc == MS_OK) {
        row->write(&tape, m);
        rc = tape.rc;
    }
    if (rc == MS_OK) {
        rc = ms_trace_finish(tape.trace, graph, err);
    }
    if (rc == MS_OK) {
        *traffic = traffic_of(&tape, m, part);
    }
    if (rc == MS_OK && part->stages > 1) {
        set_schedule(*graph, part);
    }
    ms__tape_clear(&tape);
    return rc;
}

int ms_predict_hf_part(const char *config_json, uint64_t batch, uint64_t seq, const ms_part *part, ms_graph **graph,
                       ms_part_traffic *traffic, ms_error *err)
{
    json_t *tree;
    ms__json_at root;
    ms__model model = {.batch = batch, .seq = seq};
    if (batch == 0 || batch > size_most || seq == 0 || seq > size_most) {
        return ms_fail(err, MS_EINVAL, "batch and seq must be 1 to %" PRIu64, size_most);
    }
    int rc = ms__json_parse(config_json, strlen(config_json), "model", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = ms__read_model(&root, &model);
    json_decref(tree);
    if (rc == MS_OK) {
        rc = ms__divide_model(&model, part, err);
    }
    return rc == MS_OK ? write_step(&model, part, graph, traffic, err) : rc;
}

int ms_predict_hf_graph(const char *config_json, uint64_t batch, uint64_t seq, ms_graph **graph, ms_error *err)
{
    static const ms_part whole = {.tensor_ranks = 1, .stages = 1, .microbatches = 1};
    ms_part_traffic none;
    return ms_predict_hf_part(config_json, batch, seq, &whole, graph, &none, err);
}
