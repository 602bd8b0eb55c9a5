/* Chooses the variant of chain_kernel.c for this processor. Called once per table. */
#include "plan/chain.h"

void ms__chain_both_plain(uint32_t *row, const uint32_t *left, const uint32_t *right, uint32_t add, size_t count);
void ms__chain_one_plain(uint32_t *row, const uint32_t *left, uint32_t add, size_t count);
static const ms__chain_kernels plain = {ms__chain_both_plain, ms__chain_one_plain};

#ifdef MS_CHAIN_X86
void ms__chain_both_avx2(uint32_t *row, const uint32_t *left, const uint32_t *right, uint32_t add, size_t count);
void ms__chain_one_avx2(uint32_t *row, const uint32_t *left, uint32_t add, size_t count);
static const ms__chain_kernels avx2 = {ms__chain_both_avx2, ms__chain_one_avx2};
#endif

const ms__chain_kernels *ms__chain_kernels_select(void)
{
#ifdef MS_CHAIN_X86
    if (__builtin_cpu_supports("avx2")) {
        return &avx2;
    }
#endif
    return &plain;
}
