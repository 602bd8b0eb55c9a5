/*
 * A library that allocates and frees as torch's CPU allocator does: through its own slots for
 * posix_memalign and free. Built several times, with the bindings that real libraries have; with
 * FAKE_WITHOUT_SLOTS it has no slots.
 */
#include <stdlib.h>

#define FAKE_API __attribute__((visibility("default")))

FAKE_API int fake_alloc_aligned(void **out, size_t alignment, size_t bytes);
FAKE_API void fake_free(void *block);

#if defined(FAKE_WITHOUT_SLOTS)
int fake_alloc_aligned(void **out, size_t alignment, size_t bytes)
{
    (void)alignment;
    *out = malloc(bytes);
    return *out == NULL;
}

void fake_free(void *block)
{
    (void)!realloc(block, 0);
}
#else
int fake_alloc_aligned(void **out, size_t alignment, size_t bytes)
{
    return posix_memalign(out, alignment, bytes);
}

void fake_free(void *block)
{
    free(block);
}
#endif
