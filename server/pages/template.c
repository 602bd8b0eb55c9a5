#include "pages/template.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "http/uri.h"

enum { DEPTH_MOST = 8, NAME_BYTES = 48 };

typedef struct rendering {
    MS__ARRAY(char) out;
    const char *inner;
    const json_t *scopes[DEPTH_MOST];
    size_t depth;
    int rc;
} rendering;

static void put(rendering *r, const char *text, size_t length)
{
    if (r->rc != MS_OK) {
        return;
    }
    size_t needed = r->out.count + length + 1;
    size_t room = needed > r->out.capacity ? needed + r->out.capacity : needed;
    r->rc = MS__ARRAY_RESERVE(&r->out, room);
    if (r->rc == MS_OK) {
        memcpy(r->out.items + r->out.count, text, length);
        r->out.count += length;
        r->out.items[r->out.count] = '\0';
    }
}

static void put_escaped(rendering *r, const char *text)
{
    for (; *text != '\0'; text++) {
        const char *escaped = *text == '<'    ? "&lt;"
                              : *text == '>'  ? "&gt;"
                              : *text == '&'  ? "&amp;"
                              : *text == '"'  ? "&quot;"
                              : *text == '\'' ? "&#39;"
                                              : NULL;
        put(r, escaped != NULL ? escaped : text, escaped != NULL ? strlen(escaped) : 1);
    }
}

/* What a URL may hold in a value stays, everything else is its bytes in hexadecimal: nothing left to escape. */
static void put_for_query(rendering *r, const char *text)
{
    for (; text != NULL && *text != '\0'; text++) {
        char coded[MSS_URI_BYTE_BYTES];
        mss_uri_write_byte((unsigned char)*text, coded);
        put(r, coded, strlen(coded));
    }
}

static const json_t *look_up(const rendering *r, const char *name)
{
    for (size_t i = r->depth; i-- > 0;) {
        const json_t *found = json_object_get(r->scopes[i], name);
        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

static void put_value(rendering *r, const json_t *value)
{
    char number[32];
    if (json_is_string(value)) {
        put_escaped(r, json_string_value(value));
    } else if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        put(r, number, strlen(number));
    }
}

static bool is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* The closing tag of the section that begins at `from`; NULL if there is none. */
static const char *find_end(const char *from, const char *name)
{
    char opening[2][NAME_BYTES + 8], closing[NAME_BYTES + 8];
    snprintf(opening[0], sizeof opening[0], "{{#%s}}", name);
    snprintf(opening[1], sizeof opening[1], "{{^%s}}", name);
    snprintf(closing, sizeof closing, "{{/%s}}", name);
    for (size_t depth = 1; (from = strstr(from, "{{")) != NULL; from += 2) {
        depth +=
            strncmp(from, opening[0], strlen(opening[0])) == 0 || strncmp(from, opening[1], strlen(opening[1])) == 0;
        if (strncmp(from, closing, strlen(closing)) == 0 && --depth == 0) {
            return from;
        }
    }
    return NULL;
}

static void render(rendering *r, const char *text, const char *end);

static void render_in(rendering *r, const json_t *scope, const char *text, const char *end)
{
    if (r->depth == DEPTH_MOST) {
        r->rc = MS_EFORMAT;
        return;
    }
    r->scopes[r->depth++] = scope;
    render(r, text, end);
    r->depth--;
}

static void render_section(rendering *r, const json_t *value, const char *text, const char *end)
{
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            render_in(r, json_array_get(value, i), text, end);
        }
    } else if (!is_empty(value)) {
        render_in(r, value, text, end);
    }
}

/* Renders one tag; returns the address behind it, NULL if the template is wrong. */
static const char *render_tag(rendering *r, const char *tag)
{
    char name[NAME_BYTES];
    char kind = strchr("#^>%", tag[2]) != NULL ? tag[2] : ' ';
    const char *from = tag + (kind == ' ' ? 2 : 3);
    size_t length = strcspn(from, "}");
    if (length == 0 || length >= sizeof name || strncmp(from + length, "}}", 2) != 0) {
        return NULL;
    }
    memcpy(name, from, length);
    name[length] = '\0';
    const char *body = from + length + 2;
    if (kind == '>') {
        if (r->inner != NULL) {
            render(r, r->inner, r->inner + strlen(r->inner));
        }
        return body;
    }
    const json_t *value = look_up(r, name);
    if (kind == ' ') {
        put_value(r, value);
        return body;
    }
    if (kind == '%') {
        put_for_query(r, json_string_value(value));
        return body;
    }
    const char *close = find_end(body, name);
    if (close == NULL) {
        return NULL;
    }
    if (kind == '#') {
        render_section(r, value, body, close);
    } else if (is_empty(value)) {
        render(r, body, close);
    }
    return close + length + 5;
}

static void render(rendering *r, const char *text, const char *end)
{
    while (text < end && r->rc == MS_OK) {
        const char *tag = strstr(text, "{{");
        tag = tag == NULL || tag > end ? end : tag;
        put(r, text, (size_t)(tag - text));
        text = tag == end ? end : render_tag(r, tag);
        if (text == NULL) {
            r->rc = MS_EFORMAT;
            return;
        }
    }
}

int mss_template_render(const char *text, const char *inner, const json_t *data, char **html, ms_error *err)
{
    rendering r = {.inner = inner};
    render_in(&r, data, text, text + strlen(text));
    put(&r, "", 0);
    if (r.rc != MS_OK) {
        MS__ARRAY_FREE(&r.out);
        return ms_fail(err, r.rc, "a template can't be rendered");
    }
    *html = r.out.items;
    return MS_OK;
}
