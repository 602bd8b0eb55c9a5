/*
 * Which of the storages that a call saves are dropped under a selective technique: the
 * plan's slots, found again by order and bytes. A call that saves something else than the
 * traced one loses the thread for a few slots at most; what is not recognised is kept.
 * Called for each tensor that autograd saves in such a call.
 */
#include "execute/execute_internal.h"

enum { LOOK_AHEAD = 8 }; /* slots that a call may have saved less than the traced one */

/* ---- selections ------------------------------------------------------------- */

static void clear_selection(ms_selection *selection)
{
    ms_free(selection->slot_bytes);
    ms_free(selection->dropped);
    memset(selection, 0, sizeof *selection);
}

static int copy_selection(const ms_selection *from, ms_selection *to)
{
    to->slot_bytes = ms_calloc(from->slot_count, sizeof *to->slot_bytes);
    to->dropped = ms_calloc(from->slot_count, 1);
    if (to->slot_bytes == NULL || to->dropped == NULL) {
        clear_selection(to);
        return MS_ENOMEM;
    }
    to->slot_count = from->slot_count;
    if (from->slot_count > 0) {
        memcpy(to->slot_bytes, from->slot_bytes, from->slot_count * sizeof *to->slot_bytes);
        memcpy(to->dropped, from->dropped, from->slot_count);
    }
    return MS_OK;
}

void ms__selections_drop(ms_execute *execute)
{
    for (uint32_t i = 0; i < execute->selection_count; i++) {
        clear_selection(&execute->selections[i]);
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
        rc = copy_selection(&plan->selections[i], &execute->selections[i]);
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
    int rc = copy_selection(&execute->selections[selection - 1], &choice->own);
    choice->selection = rc == MS_OK ? &choice->own : NULL;
    return rc;
}

void ms__choice_end(ms__choice *choice)
{
    clear_selection(&choice->own);
    choice->selection = NULL;
    MS__ARRAY_FREE(&choice->seen);
}

/* Whether the next storage, of these bytes, is one of those to be dropped. */
static bool next_is_dropped(ms__choice *choice, uint64_t bytes)
{
    const ms_selection *selection = choice->selection;
    if (selection == NULL) {
        return true;
    }
    for (uint32_t i = choice->next_slot; i < selection->slot_count && i < choice->next_slot + LOOK_AHEAD; i++) {
        if (selection->slot_bytes[i] == bytes) {
            choice->next_slot = i + 1;
            return selection->dropped[i] != 0;
        }
    }
    return false;
}

int ms_frame_choose(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t bytes, bool *is_dropped,
                    ms_error *err)
{
    ms__choice *choice = &frame->choice;
    *is_dropped = false;
    for (size_t i = choice->seen.count; i-- > 0;) {
        if ((choice->seen.items[i] & ~(uintptr_t)1) == (identity & ~(uintptr_t)1)) {
            *is_dropped = (choice->seen.items[i] & 1) != 0;
            return MS_OK;
        }
    }
    uintptr_t *slot = MS__ARRAY_PUSH(&choice->seen);
    if (slot == NULL) {
        return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", ms_execute_layer_name(execute, frame->layer));
    }
    *is_dropped = next_is_dropped(choice, bytes);
    *slot = (identity & ~(uintptr_t)1) | *is_dropped;
    return MS_OK;
}
