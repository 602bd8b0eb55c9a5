#include "http/networks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_BITS = 128, FOUR_BITS = 96, LINE_BYTES = 1024, SHOWN_BYTES = 50 };

static const unsigned char four_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* ---- addresses --------------------------------------------------------------------- */

static bool is_four(const mss_address *address)
{
    return memcmp(address->bytes, four_prefix, sizeof four_prefix) == 0;
}

bool mss_address_read(const char *text, size_t length, mss_address *address)
{
    char copy[MSS_ADDRESS_BYTES];
    if (length >= sizeof copy || memchr(text, '\0', length) != NULL) {
        return false;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    memcpy(address->bytes, four_prefix, sizeof four_prefix);
    return inet_pton(AF_INET, copy, address->bytes + sizeof four_prefix) == 1 ||
           inet_pton(AF_INET6, copy, address->bytes) == 1;
}

void mss_address_write(const mss_address *address, char text[MSS_ADDRESS_BYTES])
{
    const unsigned char *bytes = address->bytes;
    bool is_written = is_four(address) ? inet_ntop(AF_INET, bytes + sizeof four_prefix, text, MSS_ADDRESS_BYTES) != NULL
                                       : inet_ntop(AF_INET6, bytes, text, MSS_ADDRESS_BYTES) != NULL;
    if (!is_written) {
        text[0] = '\0';
    }
}

mss_address mss_address_of(const struct sockaddr *from)
{
    mss_address address = {{0}};
    if (from->sa_family == AF_INET) {
        memcpy(address.bytes, four_prefix, sizeof four_prefix);
        memcpy(address.bytes + sizeof four_prefix, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        memcpy(address.bytes, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, sizeof address.bytes);
    }
    return address;
}

mss_address mss_address_bucket(const mss_address *address)
{
    mss_address bucket = *address;
    if (!is_four(address)) {
        memset(bucket.bytes + 8, 0, 8);
    }
    return bucket;
}

/* ---- ranges ------------------------------------------------------------------------- */

/* Whether both begin with the same bits. */
static bool has_prefix(const mss_address *address, const mss_address *prefix, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;
    unsigned mask = 0xff00U >> rest & 0xff;
    return memcmp(address->bytes, prefix->bytes, whole) == 0 &&
           (rest == 0 || ((address->bytes[whole] ^ prefix->bytes[whole]) & mask) == 0);
}

static bool is_end_of(const mss_address *address, unsigned bits)
{
    for (unsigned i = bits; i < ALL_BITS; i++) {
        if (address->bytes[i / 8] >> (7 - i % 8) & 1) {
            return false;
        }
    }
    return true;
}

/* "24" as a number of bits of a family; 0 if it is none, which "/0" is not either. */
static unsigned read_bits(const char *text, size_t length, unsigned most)
{
    unsigned bits = 0;
    bool is_number = length >= 1 && length <= 3 && text[0] != '0';
    for (size_t i = 0; is_number && i < length; i++) {
        is_number = text[i] >= '0' && text[i] <= '9';
        bits = 10 * bits + (unsigned)(text[i] - '0');
    }
    return is_number && bits <= most ? bits : 0;
}

/* How much of a text a message shows. */
static int printable(const char *text, size_t length)
{
    size_t shown = 0;
    while (shown < length && shown < SHOWN_BYTES && text[shown] >= ' ' && text[shown] < 0x7f) {
        shown++;
    }
    return (int)shown;
}

int mss_networks_add(mss_networks *networks, const char *text, size_t length, ms_error *err)
{
    const char *slash = memchr(text, '/', length);
    size_t address_length = slash != NULL ? (size_t)(slash - text) : length;
    int shown = printable(text, length);
    mss_network network;
    if (!mss_address_read(text, address_length, &network.first)) {
        return ms_fail(err, MS_ECONFIG, "\"%.*s\" is no address and no range of addresses", shown, text);
    }
    bool is_v4 = memchr(text, '.', address_length) != NULL && memchr(text, ':', address_length) == NULL;
    unsigned before = is_v4 ? FOUR_BITS : 0, most = ALL_BITS - before, bits = most;
    if (slash != NULL) {
        bits = read_bits(slash + 1, length - address_length - 1, most);
    }
    network.bits = before + bits;
    if (bits == 0) {
        return ms_fail(err, MS_ECONFIG, "\"%.*s\": the range needs 1 to %u bits", shown, text, most);
    }
    if (!is_end_of(&network.first, network.bits)) {
        return ms_fail(err, MS_ECONFIG, "\"%.*s\": the address has bits behind the prefix", shown, text);
    }
    if (networks->count == MSS_NETWORKS_MOST) {
        return ms_fail(err, MS_ECONFIG, "more than %d ranges of addresses", MSS_NETWORKS_MOST);
    }
    networks->items[networks->count++] = network;
    return MS_OK;
}

static int add_line(mss_networks *networks, const char *line, ms_error *err)
{
    size_t from = strspn(line, " \t"), length = strlen(line);
    while (length > from && strchr(" \t\r\n", line[length - 1]) != NULL) {
        length--;
    }
    return length == from || line[from] == '#' ? MS_OK : mss_networks_add(networks, line + from, length - from, err);
}

int mss_networks_add_file(mss_networks *networks, const char *path, ms_error *err)
{
    char line[LINE_BYTES];
    ms_error why = {0};
    size_t before = networks->count;
    FILE *file = fopen(path, "re");
    int rc = file != NULL ? MS_OK : ms_fail_errno(err, MS_ESYSTEM, errno, "%s", path);
    for (unsigned number = 1; rc == MS_OK && fgets(line, sizeof line, file) != NULL; number++) {
        if (add_line(networks, line, &why) != MS_OK) {
            rc = ms_fail(err, why.code, "%s, line %u: %s", path, number, why.text);
        }
    }
    if (rc == MS_OK && ferror(file)) {
        rc = ms_fail_errno(err, MS_ESYSTEM, errno, "%s", path);
    }
    if (rc == MS_OK && networks->count == before) {
        rc = ms_fail(err, MS_ECONFIG, "%s: there is no range of addresses in it", path);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return rc;
}

bool mss_networks_hold(const mss_networks *networks, const mss_address *address)
{
    for (size_t i = 0; i < networks->count; i++) {
        if (has_prefix(address, &networks->items[i].first, networks->items[i].bits)) {
            return true;
        }
    }
    return false;
}

/* ---- what a proxy says ---------------------------------------------------------------- */

mss_address mss_forwarded_client(const mss_networks *proxies, const mss_address *peer, const char *forwarded)
{
    mss_address client = *peer, seen;
    size_t end = strlen(forwarded);
    while (end > 0 && mss_networks_hold(proxies, &client)) {
        size_t from = end, next;
        while (from > 0 && forwarded[from - 1] != ',') {
            from--;
        }
        next = from > 0 ? from - 1 : 0;
        while (from < end && (forwarded[from] == ' ' || forwarded[from] == '\t')) {
            from++;
        }
        while (end > from && (forwarded[end - 1] == ' ' || forwarded[end - 1] == '\t')) {
            end--;
        }
        if (!mss_address_read(forwarded + from, end - from, &seen)) {
            break;
        }
        client = seen;
        end = next;
    }
    return client;
}
