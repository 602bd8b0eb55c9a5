/*
 * The inner loops of the chain solver's table. Compiled once for every processor and once
 * with AVX2, under the names that MS_CHAIN_BOTH and MS_CHAIN_ONE give; chain_select.c
 * picks one. Integers: the result is the same to the bit.
 */
#include <stddef.h>
#include <stdint.h>

void MS_CHAIN_BOTH(uint32_t *row, const uint32_t *left, const uint32_t *right, uint32_t add, size_t count);
void MS_CHAIN_ONE(uint32_t *row, const uint32_t *left, uint32_t add, size_t count);

void MS_CHAIN_BOTH(uint32_t *row, const uint32_t *left, const uint32_t *right, uint32_t add, size_t count)
{
    uint32_t *restrict out = row;
    for (size_t i = 0; i < count; i++) {
        uint32_t time = left[i] + right[i] + add;
        out[i] = time < out[i] ? time : out[i];
    }
}

void MS_CHAIN_ONE(uint32_t *row, const uint32_t *left, uint32_t add, size_t count)
{
    uint32_t *restrict out = row;
    for (size_t i = 0; i < count; i++) {
        uint32_t time = left[i] + add;
        out[i] = time < out[i] ? time : out[i];
    }
}
