/* Any line is of some kind; what is taken as a step becomes a batch that reads back the same. */
#include "fuzz.h"
#include "observability/run_log.h"

static void check_step(const ms__step *step)
{
    json_t *tree;
    ms__json_at root, columns, list;
    uint64_t number = 0;
    char *text = ms__batch_text(step, 1, 1);
    FUZZ_CHECK(text != NULL);
    FUZZ_CHECK(ms__json_parse(text, strlen(text), "batch", &tree, &root, NULL) == MS_OK);
    FUZZ_CHECK(ms__json_object(&root, "columns", &columns) == MS_OK);
    FUZZ_CHECK(ms__json_array(&columns, "step", &list) == MS_OK);
    FUZZ_CHECK(ms__json_item_u64(&list, 0, 1, MS__STEP_VALUE_MOST, &number) == MS_OK);
    FUZZ_CHECK(number == step->value[MS__STEP_NUMBER]);
    json_decref(tree);
    ms_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t blocks = ms_memory_live_blocks();
    ms__line line;
    FUZZ_CHECK(ms__line_read((const char *)data, size, &line, NULL) == MS_OK);
    FUZZ_CHECK((line.tree != NULL) == (line.kind == MS__LINE_BEGIN || line.kind == MS__LINE_END));
    if (line.kind == MS__LINE_STEP) {
        check_step(&line.step);
    }
    json_decref(line.tree);
    FUZZ_CHECK(ms_memory_live_blocks() == blocks);
    return 0;
}
