/*
 * What is asked of an operand of a torch operator, by the files that price operators.
 */
#ifndef MS_CORE_OPERAND_H
#define MS_CORE_OPERAND_H

#include "base/units.h"
#include "memscale/trace.h"

/* 1 for a scalar. Saturates. */
static inline uint64_t ms__operand_elements(const ms_operand *operand)
{
    uint64_t product = 1;
    for (uint32_t i = 0; i < operand->rank; i++) {
        product = ms__mul_sat(product, operand->size[i]);
    }
    return product;
}

#endif
