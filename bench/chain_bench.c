/*
 * How long the chain solver takes and how much memory, by the length of the chain, the
 * kinds of layers and the budget. Run: chain_bench [threads].
 *
 * "cpu" is the processor time of all threads, "memory" the most that the library had
 * allocated beyond the chain (touched or not), "above" what the schedule takes beyond
 * the fastest options, "at" its peak as a share of the budget.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "memscale/chain.h"

enum { OPTIONS = 3 };

typedef struct shape {
    const char *name;
    uint32_t layers, types;
    bool in_runs; /* each type a run of its own, else they take turns */
} shape;

static const shape shapes[] = {
    {"7, all differ", 7, 7, false},
    {"30, all differ", 30, 30, false},
    {"100, all differ", 100, 100, false},
    {"100, 1 kind", 100, 1, false},
    {"300, all differ", 300, 300, false},
    {"300, 8 kinds in turn", 300, 8, false},
    {"1000, 1 kind", 1000, 1, false},
    {"1000, 8 kinds in turn", 1000, 8, false},
    {"1000, 8 kinds in runs", 1000, 8, true},
    {"1000, all differ", 1000, 1000, false},
    {"65536, 8 kinds in turn", 65536, 8, false},
};

static uint64_t next_number(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t between(uint64_t *state, uint64_t least, uint64_t most)
{
    return least + next_number(state) % (most - least + 1);
}

static void fill_layer(ms_chain_layer *layer, uint64_t input_bytes, uint64_t seed)
{
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int i = 0; i < 8; i++) {
        next_number(&state);
    }
    uint64_t kept = between(&state, 200000000, 400000000);
    layer->output_bytes = between(&state, 20000000, 40000000);
    layer->fwd_ns = between(&state, 3000000, 30000000);
    layer->fwd_tmp_bytes = between(&state, 0, 50000000);
    layer->option_count = OPTIONS;
    layer->options = calloc(OPTIONS, sizeof *layer->options);
    for (uint64_t k = 0; k < OPTIONS; k++) {
        layer->options[k] = (ms_chain_option){
            .saved_bytes = layer->output_bytes + kept / (k + 1),
            .fwd_ns = layer->fwd_ns,
            .bwd_ns = 2 * layer->fwd_ns + layer->fwd_ns * k / 6,
            .fwd_tmp_bytes = layer->fwd_tmp_bytes,
            .bwd_tmp_bytes = input_bytes + 10000000,
        };
    }
}

static void make_chain(const shape *of, ms_chain *chain)
{
    chain->input_bytes = 30000000;
    chain->layer_count = of->layers;
    chain->layers = calloc(of->layers, sizeof *chain->layers);
    for (uint32_t i = 0; i < of->layers; i++) {
        uint32_t type = of->in_runs ? i * of->types / of->layers : i % of->types;
        fill_layer(&chain->layers[i], 30000000, type + 1);
    }
}

static void free_chain(ms_chain *chain)
{
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        free(chain->layers[i].options);
    }
    free(chain->layers);
}

static double processor_ms(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return 1e3 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-3 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Resident bytes at their highest since the last call with `reset`. */
static double peak_resident_mb(bool reset)
{
    char line[128];
    unsigned long kilobytes = 0;
    FILE *file = fopen(reset ? "/proc/self/clear_refs" : "/proc/self/status", reset ? "w" : "r");
    if (file == NULL) {
        return 0;
    }
    if (reset) {
        fputs("5", file);
    }
    while (!reset && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "VmHWM: %lu", &kilobytes);
    }
    fclose(file);
    return (double)kilobytes / 1024;
}

static void solve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer)
{
    ms_error err;
    if (ms_chain_solve(chain, budget_bytes, threads, answer, &err) != MS_OK) {
        fprintf(stderr, "chain_bench: %s\n", err.text);
        exit(1);
    }
}

static void measure(const shape *of, const ms_chain *chain, uint64_t least, uint64_t most, uint32_t percent,
                    uint32_t threads)
{
    ms_chain_answer answer = {0};
    uint64_t budget_bytes = least + (most - least) / 100 * percent;
    peak_resident_mb(true);
    double cpu = processor_ms();
    uint64_t start = ms_now_ns();
    solve(chain, budget_bytes, threads, &answer);
    double wall = (double)(ms_now_ns() - start) * 1e-6;
    cpu = processor_ms() - cpu;
    printf("%-24s %5u%% %7u %9.1f %9.1f %9.1f %8.2f%% %8.3f\n", of->name, percent, answer.buckets, wall, cpu,
           peak_resident_mb(false), 100 * ((double)answer.makespan_ns / (double)answer.lower_bound_ns - 1),
           (double)answer.peak_bytes / (double)budget_bytes);
    ms_chain_answer_clear(&answer);
}

int main(int argc, char **argv)
{
    static const uint32_t percents[] = {2, 10, 30, 60, 95};
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    printf("%-24s %6s %7s %9s %9s %9s %9s %8s\n", "chain", "budget", "buckets", "wall ms", "cpu ms", "memory MB",
           "above", "at");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        ms_chain chain = {0};
        ms_chain_answer none, all;
        make_chain(&shapes[i], &chain);
        solve(&chain, 0, threads, &none);
        solve(&chain, UINT64_MAX - 1, threads, &all);
        for (size_t p = 0; p < sizeof percents / sizeof percents[0]; p++) {
            measure(&shapes[i], &chain, none.smallest_budget_bytes, all.peak_bytes, percents[p], threads);
        }
        ms_chain_answer_clear(&none);
        ms_chain_answer_clear(&all);
        free_chain(&chain);
    }
    return 0;
}
