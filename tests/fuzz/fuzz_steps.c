/* Any bytes are a batch of steps or are refused; a batch that was read is written as one that reads the same. */
#include "fuzz.h"
#include "store/steps.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mss_steps steps = {0}, again = {0};
    ms_error err = {0};
    size_t count = size > 0 ? data[0] : 0;
    int rc = mss_steps_unpack(data + (size > 0), size - (size > 0), count, &steps, &err);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        FUZZ_CHECK(steps.count == 0);
    } else {
        unsigned char *packed;
        size_t bytes;
        FUZZ_CHECK(steps.count == count);
        FUZZ_CHECK(mss_steps_pack(&steps, &packed, &bytes, NULL) == MS_OK);
        FUZZ_CHECK(mss_steps_unpack(packed, bytes, count, &again, NULL) == MS_OK);
        FUZZ_CHECK(count == 0 || memcmp(steps.items, again.items, count * sizeof steps.items[0]) == 0);
        ms_free(packed);
    }
    MS__ARRAY_FREE(&steps);
    MS__ARRAY_FREE(&again);
    return 0;
}
