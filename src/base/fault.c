/*
 * The state of the fault points. Only tests arm them.
 */
#include "base/fault.h"

typedef struct fault_state {
    _Atomic uint64_t nth;
    _Atomic uint64_t passed;
    _Atomic int system_errno;
} fault_state;

_Atomic uint32_t ms__fault_armed;
static fault_state states[MS_FAULT_COUNT];

static bool kind_is_valid(ms_fault kind)
{
    return (unsigned)kind < MS_FAULT_COUNT;
}

void ms_fault_arm(ms_fault kind, uint64_t nth, int system_errno)
{
    if (!kind_is_valid(kind)) {
        return;
    }
    uint32_t bit = UINT32_C(1) << kind;
    atomic_fetch_and(&ms__fault_armed, ~bit);
    if (nth == 0) {
        return;
    }
    atomic_store(&states[kind].nth, nth);
    atomic_store(&states[kind].passed, 0);
    atomic_store(&states[kind].system_errno, system_errno);
    atomic_fetch_or(&ms__fault_armed, bit);
}

void ms_fault_disarm_all(void)
{
    atomic_store(&ms__fault_armed, 0);
}

uint64_t ms_fault_passed(ms_fault kind)
{
    return kind_is_valid(kind) ? atomic_load(&states[kind].passed) : 0;
}

bool ms__fault_count(ms_fault kind, int *system_errno)
{
    if ((atomic_load(&ms__fault_armed) & (UINT32_C(1) << kind)) == 0) {
        return false;
    }
    uint64_t call = atomic_fetch_add(&states[kind].passed, 1) + 1;
    if (call != atomic_load(&states[kind].nth)) {
        return false;
    }
    if (system_errno != NULL) {
        *system_errno = atomic_load(&states[kind].system_errno);
    }
    return true;
}
