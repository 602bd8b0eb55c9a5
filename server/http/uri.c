#include "http/uri.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes one character of `from`; returns the number of bytes read, 0 if it is malformed. */
static size_t decode_one(const char *from, size_t length, char *to)
{
    *to = from[0] == '+' ? ' ' : from[0];
    size_t taken = 1;
    if (from[0] == '%') {
        int high = length > 2 ? digit_of(from[1]) : -1, low = length > 2 ? digit_of(from[2]) : -1;
        if (high < 0 || low < 0) {
            return 0;
        }
        *to = (char)(high << 4 | low);
        taken = 3;
    }
    unsigned char c = (unsigned char)*to;
    return (c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f ? 0 : taken;
}

static bool is_utf8(const char *text)
{
    json_t *string = json_string(text);
    json_decref(string);
    return string != NULL;
}

/* Decodes into `to` and adds a NUL. Returns the address behind the NUL; NULL if the text is malformed. */
static char *decode(const char *from, size_t length, char *to)
{
    const char *begin = to;
    for (size_t at = 0, taken; at < length; at += taken, to++) {
        taken = decode_one(from + at, length - at, to);
        if (taken == 0) {
            return NULL;
        }
    }
    *to = '\0';
    return is_utf8(begin) ? to + 1 : NULL;
}

int mss_pairs_read(const char *text, size_t length, mss_pairs *pairs, ms_error *err)
{
    *pairs = (mss_pairs){.text = ms_malloc(2 * length + 2)};
    if (pairs->text == NULL) {
        return ms_fail(err, MS_ENOMEM, "form: out of memory");
    }
    char *to = pairs->text;
    for (size_t at = 0; at < length;) {
        const char *pair = text + at, *end = memchr(pair, '&', length - at);
        size_t pair_length = end != NULL ? (size_t)(end - pair) : length - at;
        const char *equals = memchr(pair, '=', pair_length);
        size_t name_length = equals != NULL ? (size_t)(equals - pair) : pair_length;
        size_t value_at = equals != NULL ? name_length + 1 : pair_length;
        at += pair_length + 1;
        if (pair_length == 0) {
            continue;
        }
        char *value = decode(pair, name_length, to);
        char *next = value != NULL ? decode(pair + value_at, pair_length - value_at, value) : NULL;
        if (next == NULL || pairs->count == MSS_PAIRS_MOST || mss_pairs_get(pairs, to) != NULL) {
            mss_pairs_free(pairs);
            return ms_fail(err, MS_EFORMAT, "malformed, repeated or too many fields");
        }
        pairs->names[pairs->count] = to;
        pairs->values[pairs->count++] = value;
        to = next;
    }
    return MS_OK;
}

void mss_pairs_free(mss_pairs *pairs)
{
    ms_free(pairs->text);
    *pairs = (mss_pairs){0};
}

const char *mss_pairs_get(const mss_pairs *pairs, const char *name)
{
    for (size_t i = 0; i < pairs->count; i++) {
        if (strcmp(pairs->names[i], name) == 0) {
            return pairs->values[i];
        }
    }
    return NULL;
}

void mss_uri_write_byte(unsigned char byte, char coded[MSS_URI_BYTE_BYTES])
{
    bool is_plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                    (byte != '\0' && strchr("-._~", byte) != NULL);
    snprintf(coded, MSS_URI_BYTE_BYTES, is_plain ? "%c" : "%%%02X", byte);
}

static bool is_path_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("/._~-", c) != NULL);
}

int mss_target_split(const char *target, char path[MSS_PATH_BYTES], const char **query, ms_error *err)
{
    size_t length = strcspn(target, "?");
    bool is_plain = length > 0 && length < MSS_PATH_BYTES && target[0] == '/';
    for (size_t i = 0; is_plain && i < length; i++) {
        is_plain = is_path_byte(target[i]) && !(target[i] == '/' && (target[i + 1] == '/' || target[i + 1] == '.'));
    }
    if (!is_plain) {
        return ms_fail(err, MS_EFORMAT, "a path that no page has");
    }
    memcpy(path, target, length);
    path[length] = '\0';
    *query = target + length + (target[length] == '?');
    return MS_OK;
}

bool mss_path_matches(const char *pattern, const char *path, char parameters[][MSS_PARAMETER_BYTES])
{
    size_t found = 0;
    while (*pattern != '\0') {
        if (*pattern != '{') {
            if (*pattern++ != *path++) {
                return false;
            }
            continue;
        }
        size_t length = strcspn(path, "/");
        if (length == 0 || length >= MSS_PARAMETER_BYTES || found == MSS_PARAMETERS_MOST) {
            return false;
        }
        memcpy(parameters[found], path, length);
        parameters[found++][length] = '\0';
        path += length;
        pattern += strcspn(pattern, "}") + 1;
    }
    return *path == '\0';
}

bool mss_cookie_get(const char *header, const char *name, char *value, size_t room)
{
    size_t name_length = strlen(name);
    for (const char *at = header; *at != '\0';) {
        at += strspn(at, "; ");
        size_t length = strcspn(at, ";");
        if (length > name_length && strncmp(at, name, name_length) == 0 && at[name_length] == '=') {
            size_t value_length = length - name_length - 1;
            if (value_length == 0 || value_length >= room) {
                return false;
            }
            memcpy(value, at + name_length + 1, value_length);
            value[value_length] = '\0';
            return true;
        }
        at += length;
    }
    return false;
}

static bool is_loopback_name(const char *host, size_t length)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == length && strncasecmp(names[i], host, length) == 0) {
            return true;
        }
    }
    return false;
}

bool mss_host_is_ours(const char *host, const char *public_url, const char *listen_address)
{
    if (public_url != NULL) {
        return strcasecmp(host, strstr(public_url, "://") + 3) == 0;
    }
    const char *port = strrchr(host, ':');
    size_t length = port != NULL && strchr(port, ']') == NULL ? (size_t)(port - host) : strlen(host);
    bool is_address = strlen(listen_address) == length && strncmp(listen_address, host, length) == 0;
    return is_address || is_loopback_name(host, length);
}
