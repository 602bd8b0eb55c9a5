/* Any bytes are the beginning of a safetensors file or are refused; tensors lie inside the file, one after another. */
#include "fuzz.h"
#include "memscale/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ms_checkpoint *checkpoint = NULL;
    ms_error err = {0};
    int rc = ms_checkpoint_parse("shard", data, size, size, &checkpoint, &err);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return 0;
    }
    uint64_t end = 0;
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++) {
        const ms_checkpoint_tensor *tensor = ms_checkpoint_tensor_at(checkpoint, i);
        FUZZ_CHECK(tensor->offset_bytes >= end && tensor->size_bytes <= size - tensor->offset_bytes);
        end = tensor->offset_bytes + tensor->size_bytes;
    }
    ms_checkpoint_free(checkpoint);
    return 0;
}
