/* Chooses the variant of chain_kernel.c for this processor. Called once per table. */
#include "chain/chain.h"

void ms__chain_fill_plain(const ms__chain_fill *fill);

#ifdef MS_CHAIN_X86
void ms__chain_fill_avx2(const ms__chain_fill *fill);
#endif

ms__chain_filler ms__chain_select_filler(void)
{
#ifdef MS_CHAIN_X86
    if (__builtin_cpu_supports("avx2")) {
        return ms__chain_fill_avx2;
    }
#endif
    return ms__chain_fill_plain;
}
