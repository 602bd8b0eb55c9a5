/*
 * Elements and names of a torch operator's operands, for the tables of flops.c, draws.c and evaluations.c.
 * Tests: tests/c/trace/test_flops.c.
 */
#ifndef MS_TRACE_OPERAND_H
#define MS_TRACE_OPERAND_H

#include <string.h>

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

/* "aten.addmm.default" -> "addmm", 5. A bare name has no dot. */
static inline const char *ms__operator_name(const char *name, size_t *length)
{
    const char *dot = strchr(name, '.');
    if (dot != NULL) {
        name = dot + 1;
    }
    *length = strcspn(name, ".");
    return name;
}

/* As strcmp(): compares a name as torch prints it with a bare name. */
static inline int ms__operator_compare(const char *printed, const char *known)
{
    size_t length;
    const char *name = ms__operator_name(printed, &length);
    int side = strncmp(name, known, length);
    return side != 0 ? side : -(known[length] != '\0');
}

#endif
