/*
 * Entry of the `memscale` program.
 */
#include <stdio.h>

#include "memscale/base.h"

int main(void)
{
    printf("memscale %s\n", ms_version());
    return 0;
}
