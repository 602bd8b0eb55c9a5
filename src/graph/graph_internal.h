/*
 * Internals of graphs, shared by the files of src/graph and the tracer.
 * Tests: tests/c/graph/test_graph.c.
 */
#ifndef MS_GRAPH_GRAPH_INTERNAL_H
#define MS_GRAPH_GRAPH_INTERNAL_H

#include "base/json.h"
#include "memscale/graph.h"

/* The largest number in a document: JSON integers are signed. */
#define MS__GRAPH_NUMBER_MAX ((uint64_t)INT64_MAX)
enum { MS__GRAPH_VERSION = 1 /* of the document */ };

/* Name of an enumerator as documents write it; NULL out of range. */
const char *ms__event_name(uint32_t kind);
const char *ms__storage_role_name(uint32_t role);
const char *ms__node_kind_name(uint32_t kind);

/* The `index`-th flag of a node: its bit and name; false past the last one. */
bool ms__node_flag_at(size_t index, uint32_t *bit, const char **name);

/* Frees the parts of the profile or node, not the struct itself. */
void ms__profile_clear(ms_profile *profile);
/* After MS_ENOMEM `to` holds a part of the copy; free it with ms__profile_clear(). */
int ms__profile_copy(const ms_profile *from, ms_profile *to);
/* True if both have the same program, over storages of the same bytes. */
bool ms__profile_equal(const ms_profile *a, const ms_profile *b);
void ms__node_clear(ms_node *node);

/* graph_json.c: the tables that write these also read them. */
int ms__graph_read_residents(const ms__json_at *root, ms_residents *residents);
int ms__graph_read_loop(const ms__json_at *root, ms_loop *loop);
/* Reads item `index` of an array: an ms_precision. */
int ms__graph_read_precision(const ms__json_at *item, size_t index, uint32_t *precision);
int ms__graph_read_storage(const ms__json_at *object, ms_storage *storage);

/* graph_makers.c: checks that a profile's makers are within bounds, and that each output is made once, in forward,
 * after its maker's inputs. */
int ms__makers_check(const ms_profile *profile, uint32_t index, ms_error *err);
/* Writes the member "makers" of a profile, unless it is empty. */
void ms__makers_put(ms__json_writer *writer, json_t *profile, const ms_profile *from);
int ms__makers_read(const ms__json_at *object, ms_profile *profile);
bool ms__makers_equal(const ms_profile *a, const ms_profile *b);

/* graph_pairs.c: the same for the optional members that list storages with bytes. */
int ms__pairs_check(const ms_profile *profile, uint32_t index, ms_error *err);
void ms__pairs_put(ms__json_writer *writer, json_t *profile, const ms_profile *from);
int ms__pairs_read(const ms__json_at *object, ms_profile *profile);
bool ms__pairs_equal(const ms_profile *a, const ms_profile *b);
int ms__pairs_copy(const ms_profile *from, ms_profile *to); /* MS_ENOMEM */
void ms__pairs_clear(ms_profile *profile);

/* The layer whose first output is, as the same object, the node's first argument; NULL if there is none. `storage`:
 * the output's local number in that layer. */
const ms_node *ms__chain_before(const ms_graph *graph, const ms_node *node, uint32_t *storage);

/* Sets first_node and last_node of all storages, after events of valid profiles have changed. MS_EFORMAT: the events
 * contradict each other; MS_ENOMEM. */
int ms__graph_place_storages(ms_graph *graph, ms_error *err);

/* The part of ms_graph_check() that needs valid profiles and nodes. */
int ms__graph_check_step(const ms_graph *graph, ms_error *err);

#endif
