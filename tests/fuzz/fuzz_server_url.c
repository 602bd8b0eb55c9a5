/* Any text is an address of known parts or is refused; written out, the parts are the same address. */
#include "fuzz.h"
#include "observability/server_url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size), written[2048];
    ms__server_url url, again;
    ms_error err = {0};
    int rc = ms__server_url_read(text, true, &url, &err);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
    } else {
        bool has_colon = strchr(url.host, ':') != NULL;
        snprintf(written, sizeof written, "%s://%s%s%s:%u%s", url.is_https ? "https" : "http", has_colon ? "[" : "",
                 url.host, has_colon ? "]" : "", (unsigned)url.port, url.path);
        FUZZ_CHECK(strpbrk(written, "@?#% \r\n\\") == NULL && strstr(url.path, "/../") == NULL);
        FUZZ_CHECK(ms__server_url_read(written, true, &again, NULL) == MS_OK);
        FUZZ_CHECK(strcmp(url.host, again.host) == 0 && strcmp(url.path, again.path) == 0);
        FUZZ_CHECK(url.port == again.port && url.is_https == again.is_https);
    }
    free(text);
    return 0;
}
