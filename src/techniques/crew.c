/* crew.h over the threads of base. */
#include "techniques/crew.h"

enum { HELPERS_MAX = 255 };

void ms__crew_run(uint32_t threads, const char *name, ms__thread_body body, void *argument)
{
    ms__thread helpers[HELPERS_MAX];
    uint32_t started = 0;
    while (started + 1 < threads && started < HELPERS_MAX) {
        helpers[started] = (ms__thread){0};
        if (ms__thread_start(&helpers[started], name, body, argument, NULL) != MS_OK) {
            break;
        }
        started++;
    }
    body(argument);
    for (uint32_t i = 0; i < started; i++) {
        ms__thread_join(&helpers[i]);
    }
}
