/* Any text is an address, a range or none; any X-Forwarded-For and Host is read, and believed no further than it may be. */
#include "fuzz.h"
#include "http/networks.h"
#include "http/uri.h"

static mss_networks networks_of(const char *one, const char *other)
{
    mss_networks made = {0};
    FUZZ_CHECK(mss_networks_add(&made, one, strlen(one), NULL) == MS_OK);
    FUZZ_CHECK(mss_networks_add(&made, other, strlen(other), NULL) == MS_OK);
    return made;
}

/* What is written reads as the same. */
static void check_address(const char *text, size_t length)
{
    char written[MSS_ADDRESS_BYTES];
    mss_address read, again;
    if (mss_address_read(text, length, &read)) {
        mss_address_write(&read, written);
        FUZZ_CHECK(mss_address_read(written, strlen(written), &again) && memcmp(&read, &again, sizeof read) == 0);
    }
}

/* A range holds its first address, and isn't everyone. */
static void check_range(const char *text, size_t length)
{
    mss_networks networks = {0};
    ms_error err = {0};
    int rc = mss_networks_add(&networks, text, length, &err);
    if (rc != MS_OK) {
        fuzz_check_refusal(rc, &err);
        FUZZ_CHECK(networks.count == 0);
        return;
    }
    FUZZ_CHECK(networks.items[0].bits > 0 && networks.items[0].bits <= 128);
    FUZZ_CHECK(mss_networks_hold(&networks, &networks.items[0].first));
}

/* A stranger is its own address; a proxy's client is an address of the list, or the proxy. */
static void check_forwarded(const char *text)
{
    static const char stranger_text[] = "192.0.2.1", proxy_text[] = "127.0.0.1";
    mss_networks proxies = networks_of("127.0.0.0/8", "2001:db8::/32");
    mss_address stranger, proxy;
    char written[MSS_ADDRESS_BYTES];
    FUZZ_CHECK(mss_address_read(stranger_text, sizeof stranger_text - 1, &stranger));
    FUZZ_CHECK(mss_address_read(proxy_text, sizeof proxy_text - 1, &proxy));
    mss_address client = mss_forwarded_client(&proxies, &stranger, text);
    FUZZ_CHECK(memcmp(&client, &stranger, sizeof client) == 0);
    client = mss_forwarded_client(&proxies, &proxy, text);
    mss_address_write(&client, written);
    FUZZ_CHECK(written[0] != '\0');
}

/* A host that isn't ours by its letters is not ours. */
static void check_host(const char *host)
{
    if (mss_host_is_ours(host, "https://runs.example.com", "127.0.0.1")) {
        FUZZ_CHECK(strlen(host) == strlen("runs.example.com"));
    }
    if (mss_host_is_ours(host, NULL, "192.0.2.1")) {
        size_t length = strcspn(host, ":");
        FUZZ_CHECK(host[0] == '[' || length == strlen("localhost") || length == strlen("127.0.0.1"));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    check_address(text, size);
    check_range(text, size);
    check_forwarded(text);
    check_host(text);
    free(text);
    return 0;
}
