/* Any text is a sound graph or is refused; a graph passes its own check, is copied and
 * written as a text that reads back as itself. */
#include "fuzz.h"
#include "memscale/graph.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    ms_graph *graph;
    ms_error err = {0};
    int rc = ms_graph_parse(text, &graph, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    FUZZ_CHECK(ms_graph_check(graph, NULL) == MS_OK);
    ms_graph *copy = ms_graph_copy(graph, NULL);
    FUZZ_CHECK(copy != NULL);
    char *once = ms_graph_to_json(graph);
    char *twice = ms_graph_to_json(copy);
    FUZZ_CHECK(once != NULL && twice != NULL && strcmp(once, twice) == 0);
    ms_graph_free(graph);
    ms_graph_free(copy);
    FUZZ_CHECK(ms_graph_parse(once, &graph, NULL) == MS_OK);
    ms_graph_free(graph);
    ms_free(once);
    ms_free(twice);
    return 0;
}
