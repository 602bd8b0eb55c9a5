/* forks.h on POSIX. */
#include "base/forks.h"

#include <pthread.h>

#include "base/fault.h"

bool ms__hear_of_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    return !ms__fault(MS_FAULT_SYSTEM, NULL) && pthread_atfork(before, in_parent, in_child) == 0;
}
