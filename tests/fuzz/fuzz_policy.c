/* Any text is a trained policy or is refused; a sealed policy reads back and chooses. */
#include "fuzz.h"
#include "memscale/policy.h"

static void choose(const ms_policy *policy)
{
    const uint64_t ends[] = {0, 1000, UINT64_MAX};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        ms_strategy_context context;
        for (int f = 0; f < MS_FEATURE_COUNT; f++) {
            context.value[f] = ends[i];
        }
        FUZZ_CHECK((unsigned)ms_policy_choose(policy, &context).mode < MS_MODE_COUNT);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    ms_policy *policy = NULL;
    char *artifact = NULL;
    ms_error err = {0};
    int rc = ms_policy_parse(text, &policy, &err);
    if (rc == MS_OK) {
        choose(policy);
        ms_policy_free(policy);
    } else {
        fuzz_check_refusal(rc, &err);
    }
    rc = ms_policy_seal(text, &artifact, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    FUZZ_CHECK(ms_policy_parse(artifact, &policy, &err) == MS_OK);
    choose(policy);
    ms_policy_free(policy);
    ms_free(artifact);
    return 0;
}
