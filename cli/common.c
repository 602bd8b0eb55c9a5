/* Messages and output of the commands; see common.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common.h"

int cli_fail(const ms_error *err)
{
    fprintf(stderr, "memscale: %s\n", err->text);
    return CLI_FAILED;
}

int cli_usage_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("memscale: ", stderr);
    vfprintf(stderr, fmt, args);
    fputs("\nTry \"memscale --help\".\n", stderr);
    va_end(args);
    return CLI_USAGE;
}

static int output_failed(void)
{
    fprintf(stderr, "memscale: writing the output: %s\n", strerror(errno));
    return CLI_FAILED;
}

int cli_print(const char *text)
{
    return fputs(text, stdout) >= 0 ? CLI_OK : output_failed();
}

int cli_finish(int status)
{
    return fflush(stdout) == 0 && fclose(stdout) == 0 ? status : output_failed();
}
