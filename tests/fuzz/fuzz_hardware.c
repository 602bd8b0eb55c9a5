/* Any text is a hardware description or is refused; a description is written as a
 * text that reads back as itself. */
#include "fuzz.h"
#include "memscale/hardware.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ms_hardware hardware;
    char *text = fuzz_text(data, size);
    ms_error err = {0};
    int rc = ms_hardware_parse(text, &hardware, &err);
    free(text);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    FUZZ_CHECK(hardware.device < (int32_t)hardware.gpu_count && hardware.gpu_count <= MS_GPU_MAX);
    char *once = ms_hardware_to_json(&hardware);
    FUZZ_CHECK(once != NULL);
    FUZZ_CHECK(ms_hardware_parse(once, &hardware, NULL) == MS_OK);
    char *twice = ms_hardware_to_json(&hardware);
    FUZZ_CHECK(twice != NULL && strcmp(once, twice) == 0);
    ms_free(once);
    ms_free(twice);
    return 0;
}
