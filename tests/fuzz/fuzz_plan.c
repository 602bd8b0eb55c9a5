/* Any text is a plan or is refused; a plan is written as a text that reads back
 * as itself, and can be shown and explained with any numbers. */
#include "fuzz.h"
#include "memscale/plan.h"

static void check_text(char *text)
{
    FUZZ_CHECK(text != NULL && text[0] != '\0');
    ms_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    ms_plan *plan;
    ms_error err = {0};
    int rc = ms_plan_parse(text, &plan, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    char *once = ms_plan_to_json(plan);
    check_text(ms_plan_table(plan, NULL));
    for (int64_t i = -1; i <= (int64_t)plan->entry_count && i < 100; i++) {
        check_text(ms_plan_explain(plan, i));
    }
    ms_plan_free(plan);
    FUZZ_CHECK(once != NULL && ms_plan_parse(once, &plan, NULL) == MS_OK);
    char *twice = ms_plan_to_json(plan);
    FUZZ_CHECK(twice != NULL && strcmp(once, twice) == 0);
    ms_plan_free(plan);
    ms_free(once);
    ms_free(twice);
    return 0;
}
