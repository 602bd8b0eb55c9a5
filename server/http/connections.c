#include "http/connections.h"

#include <linux/tcp.h> /* of the kernel: libc's has an older tcp_info */
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "log/log.h"

enum { COUNTERS = 65536, TEXT_BYTES = 1024 };
#define SECOND_NS UINT64_C(1000000000)

typedef enum part { HEAD, BODY, ANSWER, LATE } part;

struct mss_connection {
    mss_connections *all;
    mss_connection *before, *next;
    int socket;
    mss_address peer;
    uint16_t *counter; /* NULL: of a trusted proxy */
    part now;          /* what is waited for */
    uint64_t until_ns; /* of a head or body */
    uint64_t answered_bytes; /* received up to the last answer */
    uint32_t requests;
    mss_id request; /* of the request that has begun; else empty */
};

struct mss_connections {
    const mss_settings *settings;
    ms__mutex lock; /* guards everything below, and all connections */
    ms__cond stopping;
    ms__thread watcher;
    bool is_stopping, is_started;
    mss_connection *first;
    uint64_t refusal_told_ns;
    unsigned char salt[crypto_shorthash_KEYBYTES];
    /* Connections of the addresses whose hashes are the same; they share the limit. */
    uint16_t counters[COUNTERS];
};

/* ---- how many ----------------------------------------------------------------------- */

static uint16_t *counter_of(mss_connections *all, const mss_address *peer)
{
    mss_address bucket = mss_address_bucket(peer);
    unsigned char hash[crypto_shorthash_BYTES];
    crypto_shorthash(hash, bucket.bytes, sizeof bucket.bytes, all->salt);
    return &all->counters[hash[0] | hash[1] << 8];
}

/* It speaks for many clients. */
static bool is_trusted(const mss_connections *all, const mss_address *peer)
{
    return mss_networks_hold(&all->settings->proxies, peer) || mss_networks_hold(&all->settings->cloudflare, peer);
}

/* Under the lock. */
static bool is_refusal_to_tell(mss_connections *all)
{
    uint64_t now_ns = ms_now_ns();
    bool is_due = all->refusal_told_ns == 0 || now_ns - all->refusal_told_ns > 60 * SECOND_NS;
    all->refusal_told_ns = is_due ? now_ns : all->refusal_told_ns;
    return is_due;
}

bool mss_connections_have_room(mss_connections *all, const struct sockaddr *from)
{
    mss_address peer = mss_address_of(from);
    if (is_trusted(all, &peer)) {
        return true;
    }
    ms__mutex_lock(&all->lock);
    bool has_room = *counter_of(all, &peer) < MSS_CONNECTIONS_OF_ONE;
    bool is_to_tell = !has_room && is_refusal_to_tell(all);
    ms__mutex_unlock(&all->lock);
    if (is_to_tell) {
        char text[MSS_ADDRESS_BYTES];
        mss_address_write(&peer, text);
        mss_log_event(MS_LOG_WARNING, "connections are refused: %s has %d already", text, MSS_CONNECTIONS_OF_ONE);
    }
    return has_room;
}

/* ---- late ones ------------------------------------------------------------------------ */

static uint64_t received_bytes(int socket)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_bytes_received : 0;
}

/* Whether anything came since the last answer. The kernel counts the end of what is sent as a byte. */
static bool has_received(const mss_connection *c)
{
    return received_bytes(c->socket) > c->answered_bytes + 1;
}

static void answer_late(const mss_connection *c)
{
    static const char what[] = "The request took too long to arrive.";
    char body[TEXT_BYTES / 2], text[TEXT_BYTES];
    int bytes = snprintf(
        body, sizeof body, "{\"type\":\"about:blank\",\"title\":\"Too slow\",\"status\":408,\"detail\":\"%s\"%s%s%s}",
        what, mss_id_is(&c->request) ? ",\"instance\":\"" : "", c->request.text, mss_id_is(&c->request) ? "\"" : "");
    int length = snprintf(text, sizeof text,
                          "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/problem+json\r\n"
                          "Content-Length: %d\r\nConnection: close\r\nCache-Control: no-store\r\n"
                          "X-Content-Type-Options: nosniff\r\n\r\n%s",
                          bytes, body);
    (void)send(c->socket, text, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* A connection on which nothing has begun is closed without a word. */
static void end_if_late(mss_connection *c, uint64_t now_ns)
{
    if ((c->now != HEAD && c->now != BODY) || now_ns < c->until_ns) {
        return;
    }
    if (mss_id_is(&c->request) || has_received(c)) {
        answer_late(c);
        c->now = LATE;
    } else {
        c->now = ANSWER; /* nothing to log */
    }
    /* Both ways: then whatever the client still sends resets it. Closed for reading alone, it could go on. */
    (void)shutdown(c->socket, SHUT_RDWR);
}

static void watch(void *argument)
{
    mss_connections *all = argument;
    ms__mutex_lock(&all->lock);
    while (!all->is_stopping) {
        uint64_t now_ns = ms_now_ns();
        for (mss_connection *c = all->first; c != NULL; c = c->next) {
            end_if_late(c, now_ns);
        }
        (void)ms__cond_wait_until(&all->stopping, &all->lock, now_ns + SECOND_NS);
    }
    ms__mutex_unlock(&all->lock);
}

/* ---- one connection ---------------------------------------------------------------------- */

mss_connection *mss_connection_open(mss_connections *all, const struct sockaddr *from, int socket)
{
    mss_connection *c = ms_calloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    *c = (mss_connection){.all = all,
                          .socket = socket,
                          .peer = mss_address_of(from),
                          .now = HEAD,
                          .until_ns = ms_now_ns() + MSS_HEAD_S * SECOND_NS};
    c->counter = is_trusted(all, &c->peer) ? NULL : counter_of(all, &c->peer);
    ms__mutex_lock(&all->lock);
    c->next = all->first;
    if (all->first != NULL) {
        all->first->before = c;
    }
    all->first = c;
    if (c->counter != NULL) {
        ++*c->counter;
    }
    ms__mutex_unlock(&all->lock);
    return c;
}

static void take_out(mss_connection *c)
{
    if (c->before != NULL) {
        c->before->next = c->next;
    } else {
        c->all->first = c->next;
    }
    if (c->next != NULL) {
        c->next->before = c->before;
    }
    if (c->counter != NULL) {
        --*c->counter;
    }
}

void mss_connection_close(mss_connection *c)
{
    if (c == NULL) {
        return;
    }
    ms__mutex_lock(&c->all->lock);
    take_out(c);
    ms__mutex_unlock(&c->all->lock);
    bool is_late = c->now == LATE;
    if (is_late || (c->now == HEAD && has_received(c))) {
        char address[MSS_ADDRESS_BYTES];
        mss_address_write(&c->peer, address);
        mss_log_request_done(&(mss_log_request){.id = mss_id_new('q').text,
                                                .method = "",
                                                .route = "",
                                                .address = address,
                                                .status = is_late ? 408 : 400,
                                                .reason = is_late ? "the head was late" : "no request of HTTP"});
    }
    ms_free(c);
}

void mss_connection_begin(mss_connection *c, const mss_id *request)
{
    if (c != NULL) {
        ms__mutex_lock(&c->all->lock);
        c->request = *request;
        c->requests++;
        ms__mutex_unlock(&c->all->lock);
    }
}

static bool go_on(mss_connection *c, part next, uint64_t most_s)
{
    if (c == NULL) {
        return true;
    }
    ms__mutex_lock(&c->all->lock);
    bool is_late = c->now == LATE;
    if (!is_late) {
        c->now = next;
        c->until_ns = ms_now_ns() + most_s * SECOND_NS;
    }
    ms__mutex_unlock(&c->all->lock);
    return !is_late;
}

bool mss_connection_has_head(mss_connection *c)
{
    return go_on(c, BODY, MSS_BODY_S);
}

bool mss_connection_has_all(mss_connection *c)
{
    return go_on(c, ANSWER, 0);
}

bool mss_connection_is_last(mss_connection *c)
{
    return c != NULL && c->requests >= MSS_REQUESTS_MOST;
}

void mss_connection_end(mss_connection *c, bool is_last)
{
    if (c == NULL) {
        return;
    }
    uint64_t answered_bytes = received_bytes(c->socket);
    ms__mutex_lock(&c->all->lock);
    c->now = is_last || c->now == LATE ? ANSWER : HEAD;
    c->until_ns = ms_now_ns() + MSS_IDLE_S * SECOND_NS;
    c->request = (mss_id){""};
    c->answered_bytes = answered_bytes;
    ms__mutex_unlock(&c->all->lock);
}

/* ---- all of them ------------------------------------------------------------------------- */

int mss_connections_open(const mss_settings *settings, mss_connections **out, ms_error *err)
{
    mss_connections *all = ms_calloc(1, sizeof *all);
    if (all == NULL) {
        return ms_fail(err, MS_ENOMEM, "connections: out of memory");
    }
    all->settings = settings;
    crypto_shorthash_keygen(all->salt);
    ms__mutex_init(&all->lock);
    ms__cond_init(&all->stopping);
    int rc = ms__thread_start(&all->watcher, "mss-late", watch, all, err);
    all->is_started = rc == MS_OK;
    if (rc != MS_OK) {
        mss_connections_close(all);
        return rc;
    }
    *out = all;
    return MS_OK;
}

void mss_connections_close(mss_connections *all)
{
    if (all == NULL) {
        return;
    }
    ms__mutex_lock(&all->lock);
    all->is_stopping = true;
    ms__cond_broadcast(&all->stopping);
    ms__mutex_unlock(&all->lock);
    if (all->is_started) {
        ms__thread_join(&all->watcher);
    }
    ms__cond_destroy(&all->stopping);
    ms__mutex_destroy(&all->lock);
    ms_free(all);
}
