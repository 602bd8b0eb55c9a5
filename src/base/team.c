/*
 * The OpenMP library that the process has loaded, if any, asked without loading or linking one.
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
