/* The table of draws.h. Fused attention draws the numbers of its dropout inside one operator. On a CPU, attention with
 * dropout is not fused: its dropout is a separate operator. */
#include <stdlib.h>

#include "trace/draws.h"
#include "trace/operand.h"

/* Sorted by name (strcmp), for bsearch. */
static const char *const random_operators[] = {
    "_fused_dropout", "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_",       "log_normal_",
    "native_dropout", "normal",    "normal_",    "poisson", "rand",         "rand_like",        "randint",
    "randint_like",   "randn",     "randn_like", "random_", "randperm",     "rrelu_with_noise", "rrelu_with_noise_",
    "uniform",        "uniform_",
};

static int compare_name(const void *key, const void *item)
{
    return ms__operator_compare(key, *(const char *const *)item);
}

uint64_t ms__draws(const char *name, const ms_operand *outputs, size_t output_count)
{
    bool is_random = bsearch(name, random_operators, sizeof random_operators / sizeof random_operators[0],
                             sizeof random_operators[0], compare_name) != NULL;
    return is_random && output_count > 0 ? ms__operand_elements(&outputs[0]) : 0;
}
