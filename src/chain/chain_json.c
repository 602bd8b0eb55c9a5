/*
 * A chain read from JSON (docs/formats/chain.schema.json), strictly: every refusal names
 * its place. chain_answer.c writes what the solver answers.
 */
#include <string.h>

#include "base/json.h"
#include "memscale/chain.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum { VALUES_MOST = 8 << 20 };

void ms_chain_free(ms_chain *chain)
{
    if (chain == NULL) {
        return;
    }
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        for (uint32_t k = 0; k < chain->layers[i].option_count; k++) {
            ms_free(chain->layers[i].options[k].kind);
        }
        ms_free(chain->layers[i].options);
        ms_free(chain->layers[i].name);
    }
    for (uint32_t i = 0; i < chain->link_count; i++) {
        ms_free(chain->links[i].name);
    }
    ms_free(chain->links);
    ms_free(chain->layers);
    ms_free(chain);
}

/* ---- links --------------------------------------------------------------------------- */

/* The link's index plus 1, or 0. */
static uint32_t find_link(const ms_chain *chain, const char *name)
{
    uint32_t i = 0;
    while (i < chain->link_count && (chain->links[i].name == NULL || strcmp(chain->links[i].name, name) != 0)) {
        i++;
    }
    return i < chain->link_count ? i + 1 : 0;
}

static int read_link(const ms__json_at *at, ms_chain *chain)
{
    static const char *const names[] = {"name", "bytes_per_s"};
    const char *name;
    int rc = ms__json_only(at, names, COUNT(names));
    rc = rc != MS_OK ? rc : ms__json_string(at, "name", &name);
    if (rc == MS_OK && find_link(chain, name) != 0) {
        return ms__json_fail(at, MS_EFORMAT, "there are two links \"%.64s\"", name);
    }
    ms_chain_link *link = &chain->links[chain->link_count];
    rc = rc != MS_OK ? rc : ms__json_u64(at, "bytes_per_s", 1, INT64_MAX, &link->bytes_per_s);
    rc = rc != MS_OK ? rc : ms__json_string_copy(at, "name", &link->name);
    chain->link_count += rc == MS_OK;
    return rc;
}

static int read_links(const ms__json_at *root, ms_chain *chain)
{
    ms__json_at list, item;
    if (!ms__json_has(root, "links")) {
        return MS_OK;
    }
    uint32_t count;
    int rc;
    chain->links = ms__json_items(root, "links", MS_CHAIN_LINKS_MOST, sizeof *chain->links, &list, &count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        rc = rc != MS_OK ? rc : read_link(&item, chain);
    }
    return rc;
}

static int read_transfer(const ms__json_at *at, const ms_chain *chain, ms_chain_option *option)
{
    const char *name = NULL;
    if (!ms__json_has(at, "link") && !ms__json_has(at, "link_bytes")) {
        return MS_OK;
    }
    int rc = ms__json_string(at, "link", &name);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "link_bytes", 0, INT64_MAX, &option->link_bytes);
    if (rc == MS_OK && (option->link = find_link(chain, name)) == 0) {
        rc = ms__json_fail(at, MS_EFORMAT, "there is no link \"%.64s\"", name);
    }
    return rc;
}

/* ---- layers ----------------------------------------------------------------------------- */

static int read_option(const ms__json_at *at, const ms_chain *chain, uint64_t output_bytes, ms_chain_option *option)
{
    static const char *const names[] = {"kind",          "saved_bytes",   "fwd_ns", "bwd_ns",
                                        "fwd_tmp_bytes", "bwd_tmp_bytes", "link",   "link_bytes"};
    int rc = ms__json_only(at, names, COUNT(names));
    rc = rc != MS_OK ? rc : ms__json_string_copy(at, "kind", &option->kind);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "saved_bytes", 0, INT64_MAX, &option->saved_bytes);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "fwd_ns", 0, INT64_MAX, &option->fwd_ns);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "bwd_ns", 0, INT64_MAX, &option->bwd_ns);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "fwd_tmp_bytes", 0, INT64_MAX, &option->fwd_tmp_bytes);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "bwd_tmp_bytes", 0, INT64_MAX, &option->bwd_tmp_bytes);
    if (rc == MS_OK && option->saved_bytes < output_bytes) {
        return ms__json_fail(at, MS_EFORMAT, "saved_bytes is below the layer's output_bytes, which it includes");
    }
    return rc != MS_OK ? rc : read_transfer(at, chain, option);
}

static int read_options(const ms__json_at *at, const ms_chain *chain, ms_chain_layer *layer)
{
    ms__json_at list, item;
    int rc;
    layer->options =
        ms__json_items(at, "options", MS_CHAIN_OPTIONS_MOST, sizeof *layer->options, &list, &layer->option_count, &rc);
    if (rc == MS_OK && layer->option_count == 0) {
        rc = ms__json_fail(&list, MS_EFORMAT, "there are no options");
    }
    for (uint32_t i = 0; rc == MS_OK && i < layer->option_count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        rc = rc != MS_OK ? rc : read_option(&item, chain, layer->output_bytes, &layer->options[i]);
    }
    return rc;
}

static int read_layer(const ms__json_at *at, const ms_chain *chain, ms_chain_layer *layer)
{
    static const char *const names[] = {"name", "output_bytes", "fwd_ns", "fwd_tmp_bytes", "options"};
    int rc = ms__json_only(at, names, COUNT(names));
    rc = rc != MS_OK ? rc : ms__json_string_copy(at, "name", &layer->name);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "output_bytes", 0, INT64_MAX, &layer->output_bytes);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "fwd_ns", 0, INT64_MAX, &layer->fwd_ns);
    rc = rc != MS_OK ? rc : ms__json_u64(at, "fwd_tmp_bytes", 0, INT64_MAX, &layer->fwd_tmp_bytes);
    return rc != MS_OK ? rc : read_options(at, chain, layer);
}

static int read_layers(const ms__json_at *root, ms_chain *chain)
{
    ms__json_at list, item;
    int rc;
    chain->layers =
        ms__json_items(root, "layers", MS_CHAIN_LAYERS_MOST, sizeof *chain->layers, &list, &chain->layer_count, &rc);
    if (rc == MS_OK && chain->layer_count == 0) {
        rc = ms__json_fail(&list, MS_EFORMAT, "there are no layers");
    }
    for (uint32_t i = 0; rc == MS_OK && i < chain->layer_count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        rc = rc != MS_OK ? rc : read_layer(&item, chain, &chain->layers[i]);
    }
    return rc;
}

static int read_chain(const ms__json_at *root, ms_chain *chain)
{
    static const char *const names[] = {"version", "input_bytes", "layers", "links"};
    int rc = ms__json_version(root, 1, 1, NULL);
    rc = rc != MS_OK ? rc : ms__json_only(root, names, COUNT(names));
    rc = rc != MS_OK ? rc : ms__json_u64(root, "input_bytes", 0, INT64_MAX, &chain->input_bytes);
    rc = rc != MS_OK ? rc : read_links(root, chain);
    return rc != MS_OK ? rc : read_layers(root, chain);
}

/* ---- the document ------------------------------------------------------------------------ */

int ms_chain_parse(const char *json, ms_chain **chain, ms_error *err)
{
    const ms__json_extent most = {"layers", MS_CHAIN_LAYERS_MOST, VALUES_MOST};
    json_t *tree;
    ms__json_at root;
    int rc = ms__json_check_extent(json, "chain", &most, err);
    rc = rc != MS_OK ? rc : ms__json_parse(json, strlen(json), "chain", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_chain *made = ms_calloc(1, sizeof *made);
    rc = made == NULL ? ms_fail(err, MS_ENOMEM, "chain: out of memory") : read_chain(&root, made);
    json_decref(tree);
    if (rc != MS_OK) {
        ms_chain_free(made);
        return rc;
    }
    *chain = made;
    return MS_OK;
}
