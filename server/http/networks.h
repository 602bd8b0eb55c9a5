/*
 * networks.h - addresses, ranges of addresses, and what a proxy says about where a request came from. Pure functions,
 * but for the one that reads a file; fuzzed by tests/fuzz/fuzz_networks.c.
 *
 * Tests: tests/server/c/test_networks.c, tests/server/test_addresses.py.
 */
#ifndef MSS_HTTP_NETWORKS_H
#define MSS_HTTP_NETWORKS_H

#include "memscale/base.h"

struct sockaddr;

enum { MSS_ADDRESS_BYTES = 46, MSS_NETWORKS_MOST = 256 };

/* IPv6; an IPv4 address is its ::ffff:0:0/96. */
typedef struct mss_address {
    unsigned char bytes[16];
} mss_address;

/* Reads "192.0.2.1" or "2001:db8::1"; false for anything else. */
bool mss_address_read(const char *text, size_t length, mss_address *address);
/* In the usual form. */
void mss_address_write(const mss_address *address, char text[MSS_ADDRESS_BYTES]);
/* Zero for a family other than IPv4 and IPv6. */
mss_address mss_address_of(const struct sockaddr *from);
/* The network whose addresses share limits: an IPv4 address alone, or the /64 of an IPv6 address, which is one customer's. */
mss_address mss_address_bucket(const mss_address *address);

typedef struct mss_network {
    mss_address first;
    unsigned bits;
} mss_network;

typedef struct mss_networks {
    size_t count;
    mss_network items[MSS_NETWORKS_MOST];
} mss_networks;

/* Adds "192.0.2.0/24", "2001:db8::/32" or one address. MS_ECONFIG, with a text that says why, for anything else, for bits
 * behind the prefix, for "/0", which is everyone, and for more than MSS_NETWORKS_MOST. */
MS_NODISCARD int mss_networks_add(mss_networks *networks, const char *text, size_t length, ms_error *err);
/* Adds a file of them, one a line; empty lines and those that begin with # are passed over. MS_ECONFIG names the line, also
 * if the file holds none; MS_ESYSTEM. */
MS_NODISCARD int mss_networks_add_file(mss_networks *networks, const char *path, ms_error *err);
bool mss_networks_hold(const mss_networks *networks, const mss_address *address);

/*
 * The client of a request that came from `peer`, with this X-Forwarded-For. A proxy that is trusted is believed about the
 * address that it saw, the last one of the list; if that is a trusted proxy too, so is it about the one before, and so on.
 * What stands before that proves nothing. A list that is malformed there is not followed any further.
 */
mss_address mss_forwarded_client(const mss_networks *proxies, const mss_address *peer, const char *forwarded);

#endif
