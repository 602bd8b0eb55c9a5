/*
 * template.h - makes HTML from a template and a JSON object, in a subset of Mustache:
 *   {{name}}               the value, escaped
 *   {{%name}}              the value, escaped for a link's query
 *   {{#name}}...{{/name}}  for each item of a list, or once if the value is true
 *   {{^name}}...{{/name}}  if the value is empty, false or missing
 *   {{>page}}              in a layout: the page
 * Names are looked up from the innermost object outwards. Nothing is ever unescaped, so that no page can run
 * what a user wrote.
 */
#ifndef MSS_PAGES_TEMPLATE_H
#define MSS_PAGES_TEMPLATE_H

#include <jansson.h>

#include "memscale/base.h"

/* The page; free it with ms_free(). `inner` (may be NULL) replaces {{>page}}. MS_EFORMAT if a section of the
 * template doesn't close; MS_ENOMEM. */
MS_NODISCARD int mss_template_render(const char *text, const char *inner, const json_t *data, char **html,
                                     ms_error *err);

#endif
