/*
 * GPUs by name, for plans for another machine. Peak rates are from the vendors' datasheets and papers:
 *   T4, L4, A100, H100, H200   NVIDIA's "Tensor Core GPU" datasheet of each (H100 and H200: the SXM module)
 *   B200                       NVIDIA DGX B200 datasheet, an eighth of its figures
 *   RTX 3090, 4090, 5090       NVIDIA's whitepapers on GA102, Ada and RTX Blackwell, appendix of the card
 *   MI300X                     AMD Instinct MI300X data sheet
 * NVLink and Infinity Fabric are stated there too, for both directions together.
 * The FP32 rate is that of the vector units: torch computes FP32 products on them unless TF32 is allowed.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "memscale/hardware.h"

/*
 * Frameworks see less memory than a card has. If ECC takes a sixteenth of its GDDR6, torch reports 14.56 to 14.76 of a
 * T4's 16 GiB; without ECC, 23.64 of 24 (RTX 4090), 31.37 of 32 (RTX 5090), 79.11 of 80 (H100).
 */
enum { SEEN_PERCENT = 98, SEEN_WITH_ECC_PERCENT = 91 };

/* The probe assumes the same of this machine's cards (device/cuda_probe.c). */
enum { EFFICIENCY_PERCENT = 80, COPY_ENGINES = 2, COMPUTE_MAJOR_WITH_BF16 = 8 };

typedef struct known_card {
    const char *name, *title;
    uint32_t compute_major, compute_minor;
    uint32_t gib, seen_percent;
    uint32_t gflops;       /* FP32, 1e9 a second */
    uint32_t half_gflops;  /* FP16 with FP32 sums, dense; BF16 too if the card computes it */
    uint32_t memory_gb_s;  /* 1e9 bytes a second */
    uint32_t pcie_version; /* of 16 lanes */
    uint32_t peer_gb_s;    /* to the other cards of its host, all links in one direction; 0: over PCIe */
} known_card;

static const known_card cards[] = {
    {"t4", "NVIDIA T4", 7, 5, 16, SEEN_WITH_ECC_PERCENT, 8100, 65000, 320, 3, 0},
    {"l4", "NVIDIA L4", 8, 9, 24, SEEN_WITH_ECC_PERCENT, 30300, 121000, 300, 4, 0},
    {"rtx-3090", "NVIDIA GeForce RTX 3090", 8, 6, 24, SEEN_PERCENT, 35600, 71000, 936, 4, 0},
    {"rtx-4090", "NVIDIA GeForce RTX 4090", 8, 9, 24, SEEN_PERCENT, 82600, 165200, 1008, 4, 0},
    {"rtx-5090", "NVIDIA GeForce RTX 5090", 12, 0, 32, SEEN_PERCENT, 104800, 209500, 1792, 5, 0},
    {"a100-40gb", "NVIDIA A100 SXM 40GB", 8, 0, 40, SEEN_PERCENT, 19500, 312000, 1555, 4, 300},
    {"a100-80gb", "NVIDIA A100 SXM 80GB", 8, 0, 80, SEEN_PERCENT, 19500, 312000, 2039, 4, 300},
    {"h100", "NVIDIA H100 SXM 80GB", 9, 0, 80, SEEN_PERCENT, 67000, 989400, 3350, 5, 450},
    {"h200", "NVIDIA H200 SXM", 9, 0, 141, SEEN_PERCENT, 67000, 989000, 4800, 5, 450},
    {"b200", "NVIDIA B200", 10, 0, 180, SEEN_PERCENT, 75000, 2250000, 8000, 5, 900},
    {"mi300x", "AMD Instinct MI300X", 9, 4, 192, SEEN_PERCENT, 163400, 1307400, 5300, 5, 448},
};

enum { CARD_COUNT = sizeof cards / sizeof cards[0] };

/* The rate of pinned copies in one direction over 16 lanes: 12 GB/s for PCIe 3.0, doubled by each later version. */
static uint64_t link_bytes_per_s(const known_card *card)
{
    return UINT64_C(12000000000) << (card->pcie_version - 3);
}

static ms_gpu gpu_of(const known_card *card)
{
    ms_gpu gpu = {.kind = MS_DEVICE_UNSTATED, .copy_engines = COPY_ENGINES};
    snprintf(gpu.name, sizeof gpu.name, "%s", card->title);
    gpu.total_bytes = gpu.free_bytes = ms__mul_div((uint64_t)card->gib << 30, card->seen_percent, 100);
    gpu.compute_major = card->compute_major;
    gpu.compute_minor = card->compute_minor;
    gpu.matmul_flops_per_s = ms_round_2_digits(UINT64_C(10000000) * EFFICIENCY_PERCENT * card->gflops);
    gpu.fp16_flops_per_s = ms_round_2_digits(UINT64_C(10000000) * EFFICIENCY_PERCENT * card->half_gflops);
    gpu.bf16_flops_per_s = card->compute_major >= COMPUTE_MAJOR_WITH_BF16 ? gpu.fp16_flops_per_s : 0;
    gpu.stream_bytes_per_s = ms_round_2_digits(UINT64_C(10000000) * EFFICIENCY_PERCENT * card->memory_gb_s);
    gpu.to_host_bytes_per_s = gpu.from_host_bytes_per_s = link_bytes_per_s(card);
    return gpu;
}

/* Whether two names differ only in case and punctuation: "RTX 4090", "rtx4090". */
static bool is_same_name(const char *a, const char *b)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    for (;; a++, b++) {
        a += strcspn(a, letters);
        b += strcspn(b, letters);
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) {
            return false;
        }
        if (*a == '\0') {
            return true;
        }
    }
}

uint64_t ms_hardware_peer_bytes_per_s(const ms_hardware *hardware)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    for (size_t i = 0; gpu != NULL && i < CARD_COUNT; i++) {
        if (cards[i].peer_gb_s > 0 && strcmp(gpu->name, cards[i].title) == 0) {
            return UINT64_C(10000000) * EFFICIENCY_PERCENT * cards[i].peer_gb_s;
        }
    }
    return gpu != NULL ? ms__min_u64(gpu->to_host_bytes_per_s, gpu->from_host_bytes_per_s) : 0;
}

const char *ms_hardware_card_name(size_t i)
{
    return i < CARD_COUNT ? cards[i].name : NULL;
}

static int fail_unknown(const char *name, ms_error *err)
{
    char known[256] = "";
    size_t length = 0;
    for (size_t i = 0; i < CARD_COUNT; i++) {
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%s", i == 0 ? "" : ", ", cards[i].name);
    }
    return ms_fail(err, MS_ENOTSUP, "%.64s is not one of %s", name, known);
}

int ms_hardware_use_card(ms_hardware *hardware, const char *name, ms_error *err)
{
    for (size_t i = 0; i < CARD_COUNT; i++) {
        if (is_same_name(name, cards[i].name)) {
            hardware->gpu[0] = gpu_of(&cards[i]);
            hardware->gpu_count = 1;
            return ms_hardware_set_process(hardware, 0, 0, err);
        }
    }
    return fail_unknown(name, err);
}
