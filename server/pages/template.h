/*
 * template.h - HTML from a template and a JSON object, in a small part of Mustache: {{name}} escaped,
 * {{#name}}...{{/name}} for each item of a list, or once for what is true, {{^name}}...{{/name}} for what
 * is empty or missing. Names are looked up from the innermost object outwards. There is no unescaped
 * form, so that a page can't be made to run what a user wrote; a layout includes its page by {{>page}}.
 */
#ifndef MSS_PAGES_TEMPLATE_H
#define MSS_PAGES_TEMPLATE_H

#include <jansson.h>

#include "memscale/base.h"

/* The page, to be freed with ms_free(). `inner` stands for {{>page}}; may be NULL. MS_EFORMAT for a template
 * whose sections don't close, MS_ENOMEM. */
MS_NODISCARD int mss_template_render(const char *text, const char *inner, const json_t *data, char **html,
                                     ms_error *err);

#endif
