/*
 * The list of operators that can recompute single tensors with the same bits, shared by the tracer and the executor.
 * An operator outside the list never runs again by itself: its results are kept, or its whole layer is recomputed.
 */
#include <stdlib.h>
#include <string.h>

#include "memscale/trace.h"

/* Sorted (strcmp), for bsearch. Their results depend on their operands only, not on grad mode or random state, and
 * they write to no operand. Element-wise operators are not listed: torch tags them. Fused attention is not, because it
 * may draw random numbers. */
static const char *const names[] = {
    "_fused_rms_norm",
    "_log_softmax",
    "_softmax",
    "_to_copy",
    "addmm",
    "amax",
    "amin",
    "avg_pool2d",
    "baddbmm",
    "bmm",
    "cat",
    "clone",
    "cumsum",
    "gather",
    "index_select",
    "linalg_vector_norm",
    "logsumexp",
    "mean",
    "mm",
    "native_group_norm",
    "native_layer_norm",
    "stack",
    "sum",
    "var_mean",
};

static int compare_name(const void *key, const void *item)
{
    return strcmp(key, *(const char *const *)item);
}

/* "aten.addmm.default" -> "addmm". Other namespaces are refused: their kernels are unknown. */
static bool bare_name(const char *name, char *bare, size_t size)
{
    static const char prefix[] = "aten.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return false;
    }
    name += sizeof prefix - 1;
    size_t length = strcspn(name, ".");
    if (length == 0 || length >= size) {
        return false;
    }
    memcpy(bare, name, length);
    bare[length] = '\0';
    return true;
}

/* Sorted. Operators that view or copy their operand, or work on each row by itself. */
static const char *const seen_names[] = {
    "_to_copy",
    "_unsafe_view",
    "alias",
    "chunk",
    "clone",
    "detach",
    "expand",
    "mean",
    "native_layer_norm",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "sum",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
};
static const char *const product_names[] = {"addmm", "linear", "mm"};

#define LISTED(bare, list) (bsearch(bare, list, sizeof list / sizeof list[0], sizeof list[0], compare_name) != NULL)

ms_row_kind ms_operator_row_kind(const char *name, bool is_pointwise)
{
    char bare[96];
    if (!bare_name(name, bare, sizeof bare)) {
        return MS_ROWS_MIX;
    }
    if (LISTED(bare, product_names)) {
        return MS_ROWS_PRODUCT;
    }
    if (LISTED(bare, seen_names)) {
        return MS_ROWS_SEEN;
    }
    return is_pointwise ? MS_ROWS_EACH : MS_ROWS_MIX;
}

bool ms_operator_is_maker(const char *name, bool is_pointwise)
{
    char bare[96];
    if (!bare_name(name, bare, sizeof bare) || bare[strlen(bare) - 1] == '_') {
        return false;
    }
    /* Tagged element-wise, but their values are undefined: they read nothing. */
    if (strncmp(bare, "empty", 5) == 0 || strncmp(bare, "new_empty", 9) == 0) {
        return false;
    }
    return is_pointwise || bsearch(bare, names, sizeof names / sizeof names[0], sizeof names[0], compare_name) != NULL;
}
