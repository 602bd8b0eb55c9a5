/*
 * Finds the processor's instruction sets: on x86 by CPUID; aarch64 always has NEON. Keeps no state.
 */
#include "hardware/isa.h"

#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* Register sets that the operating system saves at a task switch (XCR0). */
enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };

static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool register_has(uint32_t word, unsigned bit)
{
    return (word >> bit & 1) != 0;
}

uint32_t ms__isa_detect(void)
{
    uint32_t a, b, c, d, isa = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !register_has(c, 27) || !register_has(c, 28)) {
        return 0; /* no XGETBV or no AVX */
    }
    bool fma = register_has(c, 12);
    uint64_t state = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return 0;
    }
    uint32_t subleaf_count = a;
    if ((state & STATE_AVX) == STATE_AVX && fma && register_has(b, 5)) {
        isa |= MS_ISA_AVX2;
    }
    bool avx512 = (state & STATE_AVX512) == STATE_AVX512 && register_has(b, 16);
    if (avx512) {
        isa |= MS_ISA_AVX512F;
    }
    if (avx512 && register_has(c, 11)) {
        isa |= MS_ISA_AVX512_VNNI;
    }
    if ((state & STATE_AMX) == STATE_AMX && register_has(d, 22)) {
        isa |= MS_ISA_AMX_BF16;
    }
    if (subleaf_count >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && avx512 && register_has(a, 5)) {
        isa |= MS_ISA_AVX512_BF16;
    }
    return isa;
}

static bool is_of_intel(void)
{
    uint32_t most, name[3];
    return __get_cpuid(0, &most, &name[0], &name[2], &name[1]) && memcmp(name, "GenuineIntel", sizeof name) == 0;
}

uint32_t ms__isa_of_products(uint32_t isa)
{
    return is_of_intel() ? isa : isa & ~(uint32_t)MS_ISA_AVX512F;
}

#elif defined(__aarch64__)

uint32_t ms__isa_detect(void)
{
    return MS_ISA_NEON;
}

#else

uint32_t ms__isa_detect(void)
{
    return 0;
}

#endif

#if !defined(__x86_64__) && !defined(__i386__)

uint32_t ms__isa_of_products(uint32_t isa)
{
    return isa;
}

#endif

static const struct {
    uint32_t bit;
    const char *name;
} isa_names[] = {
#define ISA_ROW(id, bit, text) {1u << (bit), text},
    MS_ISA_TABLE(ISA_ROW)
#undef ISA_ROW
};

const char *ms__isa_name(uint32_t bit)
{
    for (size_t i = 0; i < sizeof isa_names / sizeof isa_names[0]; i++) {
        if (isa_names[i].bit == bit) {
            return isa_names[i].name;
        }
    }
    return NULL;
}

uint32_t ms__isa_from_name(const char *name)
{
    for (size_t i = 0; i < sizeof isa_names / sizeof isa_names[0]; i++) {
        if (strcmp(isa_names[i].name, name) == 0) {
            return isa_names[i].bit;
        }
    }
    return 0;
}
