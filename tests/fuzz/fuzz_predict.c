/* Any text is a Hugging Face configuration or is refused; the result is a sound graph. */
#include "fuzz.h"
#include "memscale/predict.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    ms_graph *graph = NULL;
    ms_error err = {0};
    int rc = ms_predict_hf_graph(text, 2, 8, &graph, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    FUZZ_CHECK(ms_graph_check(graph, NULL) == MS_OK);
    ms_graph_free(graph);
    return 0;
}
