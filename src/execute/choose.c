/*
 * The plan's decisions on single storages that a call saves: a selective technique drops some,
 * bit packing packs some. The plan's slots name them, by order and bytes. If a call saves other
 * storages than the traced one, it misses at most a few slots; unrecognised storages are kept. A plan
 * also serves smaller inputs: if a call's first storage is smaller than the first slot, slots are taken
 * by order alone. Called for each tensor that autograd saves in such a call.
 */
#include "execute/execute_internal.h"

enum { LOOK_AHEAD = 8 }; /* slots of the trace that a call may skip */

/* ---- selections ------------------------------------------------------------- */

static void selection_clear(ms_selection *selection)
{
    ms_free(selection->slot_bytes);
    ms_free(selection->dropped);
    ms_free(selection->two_valued);
    memset(selection, 0, sizeof *selection);
}

static int selection_copy(const ms_selection *from, ms_selection *to)
{
    to->slot_bytes = ms_calloc(from->slot_count, sizeof *to->slot_bytes);
    to->dropped = ms_calloc(from->slot_count, 1);
    to->two_valued = ms_calloc(from->two_valued_count, sizeof *to->two_valued);
    if (to->slot_bytes == NULL || to->dropped == NULL || to->two_valued == NULL) {
        selection_clear(to);
        return MS_ENOMEM;
    }
    to->slot_count = from->slot_count;
    if (from->slot_count > 0) {
        memcpy(to->slot_bytes, from->slot_bytes, from->slot_count * sizeof *to->slot_bytes);
        memcpy(to->dropped, from->dropped, from->slot_count);
    }
    to->two_valued_count = from->two_valued_count;
    if (from->two_valued_count > 0) {
        memcpy(to->two_valued, from->two_valued, from->two_valued_count * sizeof *to->two_valued);
    }
    return MS_OK;
}

void ms__selections_drop(ms_execute *execute)
{
    for (uint32_t i = 0; i < execute->selection_count; i++) {
        selection_clear(&execute->selections[i]);
    }
    ms_free(execute->selections);
    execute->selections = NULL;
    execute->selection_count = 0;
}

int ms__selections_copy(ms_execute *execute, const ms_plan *plan)
{
    execute->selections = ms_calloc(plan->selection_count, sizeof *execute->selections);
    int rc = execute->selections != NULL ? MS_OK : MS_ENOMEM;
    for (uint32_t i = 0; rc == MS_OK && i < plan->selection_count; i++) {
        rc = selection_copy(&plan->selections[i], &execute->selections[i]);
        execute->selection_count = rc == MS_OK ? i + 1 : i;
    }
    if (rc != MS_OK) {
        ms__selections_drop(execute);
    }
    return rc;
}

/* ---- a frame's choice --------------------------------------------------------- */

int ms__choice_begin(const ms_execute *execute, uint32_t selection, ms__choice *choice)
{
    if (selection == 0 || selection > execute->selection_count) {
        return MS_OK;
    }
    int rc = selection_copy(&execute->selections[selection - 1], &choice->own);
    choice->selection = rc == MS_OK ? &choice->own : NULL;
    return rc;
}

void ms__choice_end(ms__choice *choice)
{
    selection_clear(&choice->own);
    choice->selection = NULL;
    MS__ARRAY_FREE(&choice->seen);
}

bool ms__selection_packs(const ms_execute *execute, uint32_t selection)
{
    if (selection == 0 || selection > execute->selection_count) {
        return false;
    }
    const ms_selection *named = &execute->selections[selection - 1];
    for (uint32_t i = 0; i < named->two_valued_count; i++) {
        if (named->two_valued[i].packed) {
            return true;
        }
    }
    return false;
}

/* The next slot for a storage of these bytes, or of fewer if `may_be_larger`; UINT32_MAX if there is none. The host
 * may leave out storages below `least_bytes`. */
static uint32_t choice_find_slot(ms__choice *choice, uint64_t bytes, uint64_t least_bytes, bool may_be_larger)
{
    const ms_selection *selection = choice->selection;
    uint32_t looked = 0;
    for (uint32_t i = choice->next_slot; selection != NULL && i < selection->slot_count && looked < LOOK_AHEAD; i++) {
        if (selection->slot_bytes[i] == bytes || (may_be_larger && selection->slot_bytes[i] > bytes)) {
            choice->next_slot = i + 1;
            return i;
        }
        looked += selection->slot_bytes[i] >= least_bytes;
    }
    return UINT32_MAX;
}

/* Whether a call's first storage is smaller than the first slot that the host does not leave out. */
static bool choice_is_smaller(const ms_selection *selection, uint64_t bytes, uint64_t least_bytes)
{
    uint32_t first = 0;
    while (first < selection->slot_count && selection->slot_bytes[first] < least_bytes) {
        first++;
    }
    return first < selection->slot_count && bytes < selection->slot_bytes[first];
}

static uint32_t choice_next_slot(ms__choice *choice, uint64_t bytes, uint64_t least_bytes)
{
    if (choice->selection != NULL && choice->seen.count == 1) {
        choice->by_order = choice_is_smaller(choice->selection, bytes, least_bytes);
    }
    return choice_find_slot(choice, bytes, least_bytes, choice->by_order);
}

static const ms__seen *choice_find_seen(const ms__choice *choice, uintptr_t identity)
{
    for (size_t i = choice->seen.count; i-- > 0;) {
        if (choice->seen.items[i].identity == identity) {
            return &choice->seen.items[i];
        }
    }
    return NULL;
}

int ms_frame_choose(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t bytes, bool *is_dropped,
                    ms_error *err)
{
    ms__choice *choice = &frame->choice;
    bool is_selective = ms_technique_of((ms_technique)frame->technique)->set > 0;
    *is_dropped = false;
    if (choice->selection == NULL && !is_selective) {
        return MS_OK;
    }
    const ms__seen *seen = choice_find_seen(choice, identity);
    if (seen == NULL) {
        ms__seen *made = MS__ARRAY_PUSH(&choice->seen);
        if (made == NULL) {
            return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", ms_execute_layer_name(execute, frame->layer));
        }
        made->identity = identity;
        made->slot = choice_next_slot(choice, bytes, is_selective ? 0 : execute->min_bytes);
        seen = made;
    }
    bool all = is_selective && choice->selection == NULL;
    *is_dropped = all || (is_selective && seen->slot != UINT32_MAX && choice->selection->dropped[seen->slot] != 0);
    return MS_OK;
}

ms__bits ms__choice_bits(const ms__choice *choice, uintptr_t identity)
{
    const ms__seen *seen = choice->selection != NULL ? choice_find_seen(choice, identity) : NULL;
    for (uint32_t i = 0; seen != NULL && i < choice->selection->two_valued_count; i++) {
        const ms_two_valued *one = &choice->selection->two_valued[i];
        if (one->slot == seen->slot) {
            return one->packed ? MS__BITS_PACKED : MS__BITS_STAYS;
        }
    }
    return MS__BITS_UNKNOWN;
}
