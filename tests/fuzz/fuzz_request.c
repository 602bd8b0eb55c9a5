/* Any target, form or cookie header is read or refused; what was read is text, and its path is one of ours. Any text may be
 * typed as a code. */
#include "auth/secret.h"
#include "fuzz.h"
#include "http/uri.h"

static void check_pairs(const char *text, size_t length)
{
    mss_pairs pairs;
    ms_error err = {0};
    int rc = mss_pairs_read(text, length, &pairs, &err);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        return;
    }
    size_t total = 0;
    for (size_t i = 0; i < pairs.count; i++) {
        total += strlen(pairs.names[i]) + strlen(pairs.values[i]);
    }
    FUZZ_CHECK(pairs.count <= MSS_PAIRS_MOST && total <= length);
    mss_pairs_free(&pairs);
}

/* Reading a code again changes nothing. */
static void check_code(const char *text)
{
    mss_typed_code code, again;
    mss_code_read(text, &code);
    mss_code_read(code.text, &again);
    FUZZ_CHECK(strcmp(code.text, again.text) == 0 && strpbrk(code.text, " -ABCilo") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size), path[MSS_PATH_BYTES], cookie[16];
    char parameters[MSS_PARAMETERS_MOST][MSS_PARAMETER_BYTES];
    const char *query = NULL;
    ms_error err = {0};
    check_pairs(text, strlen(text));
    check_pairs(text, size);
    check_code(text);
    if (mss_cookie_get(text, "ms", cookie, sizeof cookie)) {
        FUZZ_CHECK(strlen(cookie) > 0 && strstr(text, cookie) != NULL);
    }
    int rc = mss_target_split(text, path, &query, &err);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
    } else {
        FUZZ_CHECK(path[0] == '/' && strstr(path, "..") != path + 1 && strpbrk(path, "%\\?") == NULL);
        check_pairs(query, strlen(query));
        if (mss_path_matches("/runs/{run}/compare/{other}", path, parameters)) {
            FUZZ_CHECK(strchr(parameters[0], '/') == NULL && parameters[1][0] != '\0');
        }
    }
    free(text);
    return 0;
}
