/*
 * Marks: records of a saved tensor's values, with which a replay is compared. Until one replay of a layer has been
 * compared, a mark has a checksum of every byte, and sixteen elements. Afterwards it has only the elements, which take
 * less time than the operator that made them. The elements also distinguish rounding differences from other values.
 */
#include <math.h>
#include <string.h>

#include "base/checksum.h"
#include "execute/execute_internal.h"

/* ---- elements ------------------------------------------------------------ */

typedef enum number_kind { NUMBER_BITS, NUMBER_DOUBLE, NUMBER_FLOAT, NUMBER_BFLOAT16, NUMBER_HALF } number_kind;

/* `tolerance`: how far from each other two runs may round, as a part of the largest element. */
typedef struct dtype_row {
    const char *name;
    uint32_t bytes, part_bytes; /* an element; what is sampled of it: of a complex number, one part */
    number_kind kind;
    double tolerance;
} dtype_row;

static const dtype_row dtype_rows[] = {
    {"torch.float32", 4, 4, NUMBER_FLOAT, 1e-4},   {"torch.bfloat16", 2, 2, NUMBER_BFLOAT16, 0.05},
    {"torch.bool", 1, 1, NUMBER_BITS, 0},          {"torch.int64", 8, 8, NUMBER_BITS, 0},
    {"torch.float64", 8, 8, NUMBER_DOUBLE, 1e-10}, {"torch.float16", 2, 2, NUMBER_HALF, 0.01},
    {"torch.uint8", 1, 1, NUMBER_BITS, 0},         {"torch.int8", 1, 1, NUMBER_BITS, 0},
    {"torch.int32", 4, 4, NUMBER_BITS, 0},         {"torch.int16", 2, 2, NUMBER_BITS, 0},
    {"torch.complex64", 8, 4, NUMBER_FLOAT, 1e-4}, {"torch.complex128", 16, 8, NUMBER_DOUBLE, 1e-10},
    {"torch.float8_e4m3fn", 1, 1, NUMBER_BITS, 0}, {"torch.float8_e5m2", 1, 1, NUMBER_BITS, 0},
};

static const dtype_row *dtype_of(const char *name)
{
    for (size_t i = 0; i < sizeof dtype_rows / sizeof dtype_rows[0]; i++) {
        if (strcmp(dtype_rows[i].name, name) == 0) {
            return &dtype_rows[i];
        }
    }
    return NULL;
}

static double half_value(uint64_t bits)
{
    int exponent = (int)(bits >> 10 & 0x1f);
    double fraction = (double)(bits & 0x3ff), sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == 0x1f) {
        return fraction != 0.0 ? (double)NAN : sign * (double)INFINITY;
    }
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024.0, exponent - 25));
}

static double value_of(number_kind kind, uint64_t bits)
{
    double wide;
    float narrow;
    uint32_t word = kind == NUMBER_BFLOAT16 ? (uint32_t)bits << 16 : (uint32_t)bits;
    switch (kind) {
    case NUMBER_DOUBLE:
        memcpy(&wide, &bits, sizeof wide);
        return wide;
    case NUMBER_FLOAT:
    case NUMBER_BFLOAT16:
        memcpy(&narrow, &word, sizeof narrow);
        return (double)narrow;
    case NUMBER_HALF:
        return half_value(bits);
    case NUMBER_BITS:
        break;
    }
    return (double)NAN;
}

/* ---- marks --------------------------------------------------------------- */

typedef struct tensor_bytes {
    const unsigned char *address;
    const int64_t *size, *stride;
    uint32_t rank;
    const dtype_row *dtype;
} tensor_bytes;

static uint64_t element_count(const tensor_bytes *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        count *= (uint64_t)tensor->size[i];
    }
    return count;
}

static uint64_t element_bits(const tensor_bytes *tensor, uint64_t index, uint32_t turn)
{
    int64_t at = 0;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        at += (int64_t)(index % (uint64_t)tensor->size[i]) * tensor->stride[i];
        index /= (uint64_t)tensor->size[i];
    }
    const dtype_row *dtype = tensor->dtype;
    uint32_t parts = dtype->bytes / dtype->part_bytes;
    uint64_t bits = 0;
    memcpy(&bits, tensor->address + at * (int64_t)dtype->bytes + (size_t)(turn % parts) * dtype->part_bytes,
           dtype->part_bytes);
    return bits;
}

/* One in each part of the tensor, at a place that no row's length divides. */
static uint64_t sample_index(uint64_t count, uint32_t sample)
{
    uint64_t part = count / MS__MARK_SAMPLES;
    return part * sample + (sample + 1) * UINT64_C(0x9E3779B97F4A7C15) % part;
}

static void mark_samples(const tensor_bytes *tensor, ms__mark *mark)
{
    uint64_t count = element_count(tensor);
    bool is_small = count <= MS__MARK_SAMPLES;
    mark->sample_count = (uint8_t)(is_small ? count : MS__MARK_SAMPLES);
    for (uint32_t i = 0; i < mark->sample_count; i++) {
        mark->samples[i] = element_bits(tensor, is_small ? i : sample_index(count, i), i);
    }
}

/* The dimensions in the order of memory, without those of one element and of stride 0, joined if nothing lies
 * between. Gives their number. */
static uint32_t dimensions_in_memory(const tensor_bytes *tensor, int64_t *size, int64_t *stride)
{
    uint32_t rank = 0;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->size[i] == 1 || tensor->stride[i] == 0) {
            continue;
        }
        uint32_t at = rank++;
        for (; at > 0 && stride[at - 1] < tensor->stride[i]; at--) {
            size[at] = size[at - 1];
            stride[at] = stride[at - 1];
        }
        size[at] = tensor->size[i];
        stride[at] = tensor->stride[i];
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < rank; i++) {
        bool joins = kept > 0 && stride[kept - 1] == size[i] * stride[i];
        size[joins ? kept - 1 : kept] = joins ? size[kept - 1] * size[i] : size[i];
        stride[joins ? kept - 1 : kept] = stride[i];
        kept += !joins;
    }
    return kept;
}

static uint64_t sum_of_bytes(const tensor_bytes *tensor)
{
    int64_t size[MS_RECORD_RANK_MAX], stride[MS_RECORD_RANK_MAX], index[MS_RECORD_RANK_MAX] = {0};
    uint32_t rank = dimensions_in_memory(tensor, size, stride);
    ms__checksum_fn checksum = ms__checksum_select();
    size_t bytes = tensor->dtype->bytes;
    bool is_run = rank > 0 && stride[rank - 1] == 1;
    size_t run_bytes = is_run ? bytes * (size_t)size[--rank] : bytes;
    const unsigned char *at = tensor->address;
    uint64_t sum = 0;
    for (;;) {
        sum = (sum ^ checksum(at, run_bytes)) * UINT64_C(0x9E3779B97F4A7C15);
        uint32_t i = rank;
        for (; i > 0; i--) {
            at += stride[i - 1] * (int64_t)bytes;
            if (++index[i - 1] < size[i - 1]) {
                break;
            }
            at -= size[i - 1] * stride[i - 1] * (int64_t)bytes;
            index[i - 1] = 0;
        }
        if (i == 0) {
            return sum;
        }
    }
}

static bool bytes_of_slot(const ms_frame *frame, const ms__slot *slot, const ms_contents *contents,
                          tensor_bytes *tensor)
{
    static const int64_t no_sizes[1];
    *tensor = (tensor_bytes){.address = contents->address,
                             .size = slot->rank > 0 ? &frame->sizes.items[slot->size_at] : no_sizes,
                             .stride = contents->stride,
                             .rank = slot->rank,
                             .dtype = dtype_of(slot->dtype)};
    return contents->address != NULL && tensor->dtype != NULL && element_count(tensor) > 0;
}

static void mark_fill(const tensor_bytes *tensor, bool is_whole, ms__mark *mark)
{
    mark->is_whole = is_whole;
    mark->sum = is_whole ? sum_of_bytes(tensor) : 0;
    mark_samples(tensor, mark);
}

void ms_frame_mark(ms_execute *execute, ms_frame *frame, uint32_t slot, const ms_contents *contents)
{
    tensor_bytes tensor;
    ms__slot *item = slot < frame->slots.count ? &frame->slots.items[slot] : NULL;
    if (item == NULL || item->mark != 0 || !bytes_of_slot(frame, item, contents, &tensor)) {
        return;
    }
    ms__mark *mark = MS__ARRAY_PUSH(&frame->marks); /* without memory it is not compared */
    if (mark != NULL) {
        mark_fill(&tensor, !ms__layer_is_proven(execute, frame->layer), mark);
        mark->is_late = contents->is_late;
        item->mark = (uint32_t)frame->marks.count;
    }
}

bool ms_frame_is_marked(const ms_frame *frame, uint32_t slot, bool *is_late)
{
    uint32_t mark = slot < frame->slots.count ? frame->slots.items[slot].mark : 0;
    *is_late = mark != 0 && frame->marks.items[mark - 1].is_late;
    return mark != 0;
}

/* ---- the comparison --------------------------------------------------------- */

typedef enum likeness { LIKE_SAME, LIKE_ROUNDED, LIKE_NOTHING } likeness;

static bool both_alike(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static likeness compare_samples(const dtype_row *dtype, const ms__mark *saved, const ms__mark *now)
{
    if (memcmp(saved->samples, now->samples, saved->sample_count * sizeof saved->samples[0]) == 0) {
        return LIKE_SAME;
    }
    double largest = 0.0;
    for (uint32_t i = 0; i < saved->sample_count; i++) {
        double value = fabs(value_of(dtype->kind, saved->samples[i]));
        largest = isfinite(value) && value > largest ? value : largest;
    }
    for (uint32_t i = 0; i < saved->sample_count; i++) {
        double a = value_of(dtype->kind, saved->samples[i]), b = value_of(dtype->kind, now->samples[i]);
        bool is_close = dtype->kind != NUMBER_BITS && (both_alike(a, b) || fabs(a - b) <= dtype->tolerance * largest);
        if (saved->samples[i] != now->samples[i] && !is_close) {
            return LIKE_NOTHING;
        }
    }
    return LIKE_ROUNDED;
}

static likeness compare_marks(const dtype_row *dtype, const ms__mark *saved, const ms__mark *now)
{
    if (saved->is_whole && saved->sum == now->sum) {
        return LIKE_SAME;
    }
    likeness like = compare_samples(dtype, saved, now);
    return saved->is_whole && like == LIKE_SAME ? LIKE_ROUNDED : like;
}

static int fail_other_values(ms_execute *execute, const ms_frame *frame, uint32_t slot, ms_error *err)
{
    return ms_fail(err, MS_EREPLAY,
                   "layer %s (call %u): saved tensor %u (%s) has other values when the layer is recomputed than it had "
                   "in forward, and no gradient was made from them; the layer depends on more than its arguments, "
                   "parameters, buffers and what its code names, or one of these changed before backward. Run the step "
                   "again: from the next forward on the layer is not recomputed",
                   ms_execute_layer_name(execute, frame->layer), frame->call, slot, frame->slots.items[slot].dtype);
}

static void tell_rounded(ms_execute *execute, const ms_frame *frame)
{
    if (!ms__layer_is_held(execute, frame->layer)) {
        ms_log(MS_LOG_WARNING,
               "layer %s: it gives other last bits, or a few other elements, when it is recomputed; from the next "
               "forward on it is not recomputed",
               ms_execute_layer_name(execute, frame->layer));
    }
}

int ms_frame_compare(ms_execute *execute, ms_frame *frame, uint32_t slot, const ms_contents *contents, ms_error *err)
{
    tensor_bytes tensor;
    const ms__slot *item = slot < frame->slots.count ? &frame->slots.items[slot] : NULL;
    if (item == NULL || item->mark == 0 || !bytes_of_slot(frame, item, contents, &tensor)) {
        return MS_OK;
    }
    const ms__mark *saved = &frame->marks.items[item->mark - 1];
    ms__mark now;
    mark_fill(&tensor, saved->is_whole, &now);
    likeness like = compare_marks(tensor.dtype, saved, &now);
    if (like == LIKE_ROUNDED) {
        tell_rounded(execute, frame);
    }
    if (like != LIKE_SAME) {
        ms_execute_hold(execute, frame->layer);
    }
    return like == LIKE_NOTHING ? fail_other_values(execute, frame, slot, err) : MS_OK;
}
