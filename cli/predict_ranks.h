/*
 * `memscale predict --ranks`: which ranks there are, what one of them has of the model, and what is said of it. Used by
 * cmd_predict.c only.
 * Tests: tests/cli/predict_ranks.golden.
 */
#ifndef MS_CLI_PREDICT_RANKS_H
#define MS_CLI_PREDICT_RANKS_H

#include "memscale/cluster.h"
#include "memscale/predict.h"
#include "plan/text.h"

typedef struct cli_ranks_options {
    const char *ranks, *link, *tensor, *stages, *microbatches; /* as given, or NULL */
    bool ddp, fsdp, by_sequence, mixed;
} cli_ranks_options;

/* One stage of the pipeline with the given technique at every layer; `part_ns` is its time for one microbatch, optimizer included. */
typedef struct cli_stage {
    uint64_t peak_bytes, part_ns;
} cli_stage;

typedef struct cli_ranks {
    ms_cluster cluster; /* 0 ranks: not asked */
    ms_part part;       /* that the plan is for */
    uint64_t batch;     /* sequences of one microbatch */
    ms_cluster_share share;
    cli_stage *stages;  /* [cluster.stages], if there are several */
    uint64_t layers;    /* of the part */
} cli_ranks;

void cli_ranks_free(cli_ranks *ranks);

/* Reads the options; `batch` is what each copy of the model gets in a step. CLI_OK, or the exit status after a
 * message. */
int cli_ranks_parse(const cli_ranks_options *options, uint64_t batch, cli_ranks *ranks);

/* True if layers or stages are divided, so that the graph is that of a part. */
bool cli_ranks_divide(const cli_ranks *ranks);

/* The graph of the part that takes most under `technique`, for the configuration's text. */
int cli_ranks_load(cli_ranks *ranks, const char *config_json, uint64_t seq, const ms_hardware *hardware,
                   const ms_config *config, ms_technique technique, ms_graph **graph);

/* Add what is said of the rank beside its plan. */
void cli_ranks_add_text(const cli_ranks *ranks, const ms_plan *plan, ms__text *text);
void cli_ranks_add_json(const cli_ranks *ranks, const ms_plan *plan, ms__text *text);

#endif
