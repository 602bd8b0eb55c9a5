/*
 * Calls the OpenMP library that the process has already loaded, if any. It neither loads nor links one.
 */
#include <dlfcn.h>
#include <string.h>

#include "memscale/base.h"

uint32_t ms_team_threads(void)
{
    int (*most)(void) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    if (found == NULL) {
        return 0;
    }
    memcpy(&most, &found, sizeof found);
    int threads = most();
    return threads > 0 ? (uint32_t)threads : 0;
}
