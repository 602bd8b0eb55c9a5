/* Addresses and tokens of server_url.h. */
#include "observability/server_url.h"

#include <stdio.h>
#include <string.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static int refuse(ms_error *err, const char *why)
{
    return ms_fail(err, MS_ECONFIG, "the server's address %s", why);
}

static const char *read_scheme(const char *text, ms__server_url *url)
{
    static const char plain[] = "http://", secure[] = "https://";
    if (strncasecmp(text, secure, strlen(secure)) == 0) {
        url->is_https = true;
        return text + strlen(secure);
    }
    return strncasecmp(text, plain, strlen(plain)) == 0 ? text + strlen(plain) : NULL;
}

/* The host's length in the text, brackets included; 0 if there is none. */
static size_t host_length(const char *text)
{
    if (text[0] != '[') {
        return strspn(text, LETTERS DIGITS ".-");
    }
    size_t inside = strspn(text + 1, "0123456789abcdefABCDEF:.");
    return inside > 0 && text[inside + 1] == ']' ? inside + 2 : 0;
}

static void copy_host(const char *text, size_t length, char *host)
{
    bool has_brackets = text[0] == '[';
    size_t count = length - (has_brackets ? 2 : 0);
    for (size_t i = 0; i < count; i++) {
        char letter = text[i + has_brackets];
        host[i] = letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
    }
    host[count] = '\0';
}

/* Reads ":8000" if it is there and moves past it; false if it is no port. */
static bool read_port(const char **text, uint16_t *port)
{
    if (**text != ':') {
        return true;
    }
    const char *digits = *text + 1;
    size_t count = strspn(digits, DIGITS);
    uint32_t value = 0;
    for (size_t i = 0; i < count && value <= UINT16_MAX; i++) {
        value = value * 10 + (uint32_t)(digits[i] - '0');
    }
    *text = digits + count;
    *port = (uint16_t)value;
    return count > 0 && value > 0 && value <= UINT16_MAX;
}

/* "." and ".." would lead elsewhere on a server that resolves them. */
static bool has_dot_segment(const char *path)
{
    for (const char *at = strstr(path, "/."); at != NULL; at = strstr(at + 1, "/.")) {
        size_t dots = strspn(at + 1, ".");
        if (dots <= 2 && (at[1 + dots] == '/' || at[1 + dots] == '\0')) {
            return true;
        }
    }
    return false;
}

static int read_path(const char *text, ms__server_url *url, ms_error *err)
{
    if (strpbrk(text, "?#") != NULL) {
        return refuse(err, "must not have a query or a fragment");
    }
    size_t length = strspn(text, LETTERS DIGITS "/._~-");
    if (text[length] != '\0' || (length > 0 && text[0] != '/')) {
        return refuse(err, "may have letters, digits and \"/._~-\" behind the host");
    }
    if (length >= sizeof url->path || has_dot_segment(text)) {
        return refuse(err, "has a path that is too long or goes up");
    }
    while (length > 0 && text[length - 1] == '/') {
        length--;
    }
    memcpy(url->path, text, length);
    url->path[length] = '\0';
    return MS_OK;
}

static bool is_this_machine(const char *host)
{
    bool is_name = strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
    bool is_number = strncmp(host, "127.", 4) == 0 && strspn(host, DIGITS ".") == strlen(host);
    return is_name || is_number;
}

int ms__server_url_read(const char *text, bool allow_http, ms__server_url *url, ms_error *err)
{
    ms__server_url read = {0};
    const char *host = read_scheme(text, &read);
    if (host == NULL) {
        return refuse(err, "must begin with https:// or http://");
    }
    if (strchr(host, '@') != NULL) {
        return refuse(err, "must not have a user or a password: the token is given apart");
    }
    size_t length = host_length(host);
    if (length == 0 || length >= sizeof read.host) {
        return refuse(err, "has no host");
    }
    copy_host(host, length, read.host);
    const char *rest = host + length;
    read.port = read.is_https ? 443 : 80;
    if (!read_port(&rest, &read.port)) {
        return refuse(err, "has a port that is not 1 to 65535");
    }
    int rc = read_path(rest, &read, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (!read.is_https && !allow_http && !is_this_machine(read.host)) {
        return refuse(err, "must begin with https://, unless it is this machine's or plain http is allowed: "
                           "over http everyone on the way can read the token");
    }
    *url = read;
    return MS_OK;
}

int ms__token_check(const char *token, ms_error *err)
{
    size_t length = strlen(token);
    if (length == 0 || length > MS__TOKEN_MOST_BYTES || strspn(token, LETTERS DIGITS "_-") != length) {
        return ms_fail(err, MS_ECONFIG,
                       "the token must be the one that the server showed: letters, digits, \"-\" and \"_\"");
    }
    return MS_OK;
}
