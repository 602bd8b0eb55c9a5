/* Any text is a config or is refused; a config is written as a text that reads
 * back as itself. */
#include "fuzz.h"
#include "memscale/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    ms_config config;
    ms_error err = {0};
    int rc = ms_config_parse(text, &config, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    char *once = ms_config_to_json(&config);
    FUZZ_CHECK(once != NULL);
    FUZZ_CHECK(ms_config_parse(once, &config, NULL) == MS_OK);
    char *twice = ms_config_to_json(&config);
    FUZZ_CHECK(twice != NULL && strcmp(once, twice) == 0);
    ms_free(once);
    ms_free(twice);
    return 0;
}
