/*
 * slots.h - finds, checks and exchanges cells of a loaded library's relocation table: the library
 * calls a function of another library through such a cell.
 *
 * Called by install.c, which knows the replacements.
 *
 * Tests: tests/c/hostmem/test_slots.c, test_fixed_addresses.c.
 */
#ifndef MS_HOSTMEM_SLOTS_H
#define MS_HOSTMEM_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "memscale/base.h"

enum { MS__GOT_SLOT_REASON_MAX = 256 };

/* The address of a function in the table. */
typedef _Atomic uintptr_t ms__got_slot_cell;

typedef struct ms__got_slot {
    ms__got_slot_cell *cell; /* NULL: not found */
    bool is_read_only;   /* the page was made read-only after relocation (RELRO) */
    uintptr_t found;     /* the cell's value when it was found */
    uintptr_t real;      /* the function that replacements call */
} ms__got_slot;

/*
 * The loaded library of this name, as an identity to compare; NULL if it is not loaded. A library
 * that was found is never unloaded.
 */
const void *ms__got_slot_library(const char *name);

/*
 * Finds the cell through which `library` calls `symbol` and checks its value. True if that is
 * the address that the dynamic linker gives for the symbol (libc's, or that of an interposer
 * loaded before it), or the library's own stub that asks the linker at the first call; `real`
 * is then that function. Also true if the cell holds `ours`; `real` then does not change.
 * Otherwise, or without a cell: false, and `reason` describes the value.
 */
bool ms__got_slot_find(const void *library, const char *symbol, uintptr_t ours, ms__got_slot *slot,
                       char reason[MS__GOT_SLOT_REASON_MAX]);

/* Writes `desired` if the cell still holds `expected`. False, with the cell unchanged, if it holds
 * another value or if its page cannot be made writable. */
bool ms__got_slot_exchange(const ms__got_slot *slot, uintptr_t expected, uintptr_t desired);

bool ms__got_slot_holds(const ms__got_slot *slot, uintptr_t address);

#endif
