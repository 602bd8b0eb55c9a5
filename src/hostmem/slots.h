/*
 * slots.h - the cells of a loaded library's relocation table through which it calls
 * a function of another library: found, judged and exchanged.
 *
 * Called by install.c. Knows nothing of what the replacements do.
 */
#ifndef MS_HOSTMEM_SLOTS_H
#define MS_HOSTMEM_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "memscale/base.h"

enum { MS__GOT_SLOT_REASON_MAX = 256 };

/* The address of a function, as it lies in the table. */
typedef _Atomic uintptr_t ms__got_slot_cell;

typedef struct ms__got_slot {
    ms__got_slot_cell *cell; /* NULL: not found */
    bool is_read_only;   /* the page was made read-only once relocated (RELRO) */
    uintptr_t found;     /* what the cell held when it was looked up */
    uintptr_t real;      /* the function that calls go through to */
} ms__got_slot;

/*
 * The library of this name that is loaded already (it is not loaded by this, and is
 * kept loaded for ever once found), as an identity to compare, or NULL.
 */
const void *ms__got_slot_library(const char *name);

/*
 * Finds the cell through which `library` calls `symbol` and judges what it holds:
 * the address that the dynamic linker gives for the symbol (libc's, or that of an
 * interposer loaded in front of it), or the library's own stub that asks the linker
 * at the first call. Then `real` is that function and the answer is true. Anything
 * else, or no such cell: false, and `reason` says what is there. A cell that holds
 * `ours` counts too; `real` is then left as it is.
 */
bool ms__got_slot_find(const void *library, const char *symbol, uintptr_t ours, ms__got_slot *slot,
                       char reason[MS__GOT_SLOT_REASON_MAX]);

/* Puts `desired` where `expected` still is. False, with the cell as it was, if it holds
 * something else by now or its page cannot be made writable. */
bool ms__got_slot_exchange(const ms__got_slot *slot, uintptr_t expected, uintptr_t desired);

bool ms__got_slot_holds(const ms__got_slot *slot, uintptr_t address);

#endif
