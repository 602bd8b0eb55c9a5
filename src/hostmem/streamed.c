/*
 * Streamed blocks and their files; and the worker, which makes blocks resident ahead of their use and drops pages that
 * other code has touched. The heap's lock guards the window, and is taken last.
 */
#include "hostmem/streamed.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/forks.h"
#include "base/os/file.h"
#include "base/os/map.h"
#include "base/os/procfs.h"
#include "base/thread.h"
#include "base/units.h"
#include "hostmem/heap.h"
#include "hostmem/install.h"

enum {
    ZERO_PIECE_BYTES = 1 << 20,
    FILL_PIECE_BYTES = 16 << 20, /* between two looks at the orders */
    ORDER_MOST = 256,            /* blocks that one order can name */
};

/* A look takes some microseconds. Code that trains touches pages at about 1 GB/s: 20 MB between two looks. Loading and
 * saving touch them at up to 10 GB/s, so looks follow each other sooner while tensors are made, and after one that found
 * too many pages. */
static const uint64_t look_ns = 20000000, busy_look_ns = 2000000;
enum { BUSY_LOOKS = 25 };
/* Files that aren't ours, such as libraries, come and go by a few MB. */
static const uint64_t unexplained_bytes = 16000000;

/* Where new blocks go. */
typedef struct target {
    ms__mutex lock; /* over what is not atomic; taken before the worker's */
    _Atomic unsigned depth;
    char directory[PATH_MAX];
    ms_error failure;
} target;

typedef struct worker {
    ms__mutex lock;
    ms__cond changed;
    bool is_running;
    uint64_t order;                       /* counts orders; a newer one ends the one in hand */
    size_t count;                         /* of the newest order */
    const void *addresses[ORDER_MOST];
    uint64_t other_file_bytes; /* resident pages of files that aren't ours; the worker's own, as the next */
    uint32_t busy_looks; /* that follow soon */
} worker;

static target the_target = {.lock = MS__MUTEX_INIT};
static worker the_worker = {.lock = MS__MUTEX_INIT};

/* ---- making a block --------------------------------------------------------- */

/* Written zeros lie in the page cache as large pages; blocks of a file that were only reserved would cost a fault and
 * a journal entry for each 4 KiB. */
static int write_zeros(const ms__file *file, uint64_t bytes, ms_error *err)
{
    static char zeros[ZERO_PIECE_BYTES]; /* not const: it takes no room in the library's file */
    int rc = MS_OK;
    for (uint64_t at = 0; at < bytes && rc == MS_OK; at += ZERO_PIECE_BYTES) {
        rc = ms__file_write(file, zeros, (size_t)ms__min_u64(bytes - at, ZERO_PIECE_BYTES), at, err);
    }
    return rc;
}

static int make_map(const char *directory, uint64_t bytes, void **out, ms_error *err)
{
    ms__file file = MS__FILE_CLOSED;
    size_t align_bytes = bytes >= MS__HUGE_PAGE_BYTES ? MS__HUGE_PAGE_BYTES : ms__page_bytes();
    int rc = ms__file_open_unnamed(directory, false, &file, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = ms__file_reserve(&file, bytes, err);
    if (rc == MS_OK) {
        rc = write_zeros(&file, bytes, err);
    }
    if (rc == MS_OK) {
        rc = ms__map_file(&file, (size_t)bytes, align_bytes, out, err);
    }
    ms__file_close(&file);
    return rc;
}

void ms__streamed_directory(char out[PATH_MAX])
{
    ms__mutex_lock(&the_target.lock);
    memcpy(out, the_target.directory, PATH_MAX);
    ms__mutex_unlock(&the_target.lock);
}

static int make_block(uint64_t bytes, void **out, ms_error *err)
{
    char directory[PATH_MAX];
    ms__streamed_directory(directory);
    int rc = make_map(directory, bytes, out, err);
    if (rc == MS_OK && !ms__heap_adopt(*out, bytes, MS__HEAP_TENSOR, false)) {
        ms__unmap(*out, (size_t)bytes);
        rc = ms_fail(err, MS_ENOMEM, "streamed: no memory for the record of a block");
    }
    return rc;
}

bool ms__streams(void)
{
    return atomic_load_explicit(&the_target.depth, memory_order_relaxed) > 0;
}

void *ms__streamed_alloc(size_t bytes)
{
    void *address = NULL;
    ms_error err;
    int rc = bytes <= SIZE_MAX / 2 ? make_block(ms__align_up(bytes, ms__page_bytes()), &address, &err)
                                   : ms_fail(&err, MS_ENOMEM, "streamed: no file can hold %zu bytes", bytes);
    if (rc != MS_OK) {
        ms__mutex_lock(&the_target.lock);
        the_target.failure = err;
        ms__mutex_unlock(&the_target.lock);
    }
    return address;
}

void ms_streamed_directory(char *out, size_t size)
{
    char directory[PATH_MAX];
    ms__streamed_directory(directory);
    snprintf(out, size, "%s", directory);
}

int ms_streamed_failure(ms_error *err)
{
    ms__mutex_lock(&the_target.lock);
    ms_error failure = the_target.failure;
    ms__mutex_unlock(&the_target.lock);
    if (err != NULL) {
        *err = failure;
    }
    return failure.code;
}

/* ---- residence --------------------------------------------------------------- */

ms__map_block *ms__streamed_block_at(const void *address)
{
    uintptr_t start;
    uint64_t bytes, serial;
    if (!ms__map_table_find(address, &start, &bytes, &serial)) {
        return NULL;
    }
    ms__map_block *block = ms__map_table_start((const void *)start);
    return block != NULL && block->streamed ? block : NULL;
}

/* Takes no lock. If the block is freed meanwhile, the kernel refuses, or fills pages of the map that is there now;
 * neither changes a byte. Asks `goes_on` before each piece. */
static void fill_block(const void *address, bool (*goes_on)(uint64_t order), uint64_t order)
{
    uintptr_t start;
    uint64_t bytes, serial;
    if (!ms__map_table_find(address, &start, &bytes, &serial)) {
        return;
    }
    for (uint64_t at = 0; at < bytes && (goes_on == NULL || goes_on(order)); at += FILL_PIECE_BYTES) {
        (void)ms__map_fill((char *)start + at, (size_t)ms__min_u64(bytes - at, FILL_PIECE_BYTES));
    }
}

typedef struct use {
    ms_streamed_blocks now, ahead;
} use;

static void use_now(ms__window *window, void *argument)
{
    const use *asked = argument;
    uint64_t ahead_bytes = 0;
    ms__window_next_round(window);
    for (size_t i = 0; i < asked->now.count; i++) {
        ms__map_block *block = ms__streamed_block_at(asked->now.addresses[i]);
        if (block != NULL) {
            (void)ms__window_use(window, block, false);
        }
    }
    /* The worker could drop parts only together with their bytes in the page cache. */
    for (size_t i = 0; i < asked->ahead.count && window->parts > 0; i++) {
        const ms__map_block *block = ms__streamed_block_at(asked->ahead.addresses[i]);
        ahead_bytes += block != NULL && !block->resident ? atomic_load(&block->bytes) : 0;
    }
    (void)ms__window_make_room(window, ahead_bytes);
}

static void keep_these(ms__window *window, void *argument)
{
    const ms_streamed_blocks *blocks = argument;
    for (ms__map_block *block = window->all; block != NULL; block = block->same_next) {
        ms__window_keep(window, block, false);
    }
    for (size_t i = 0; i < blocks->count; i++) {
        ms__map_block *block = ms__streamed_block_at(blocks->addresses[i]);
        if (block != NULL) {
            ms__window_keep(window, block, true);
        }
    }
}

static void drop_all(ms__window *window, void *argument)
{
    (void)argument;
    ms__window_empty(window);
}

static void set_window(ms__window *window, void *argument)
{
    window->most_bytes = *(const uint64_t *)argument;
    ms__window_shrink(window, window->most_bytes);
}

static void read_stats(ms__window *window, void *argument)
{
    ms_streamed_stats *stats = argument;
    stats->blocks = window->blocks;
    stats->total_bytes = window->total_bytes;
    stats->resident_bytes = window->resident_bytes;
    stats->kept_bytes = window->kept_bytes;
    stats->window_bytes = window->most_bytes;
    stats->fetched_bytes = window->fetched_bytes;
    stats->dropped_bytes = window->dropped_bytes;
}

/* ---- the worker ---------------------------------------------------------------- */

static bool is_newest(uint64_t order)
{
    ms__mutex_lock(&the_worker.lock);
    bool is = the_worker.order == order;
    ms__mutex_unlock(&the_worker.lock);
    return is;
}

typedef struct admission {
    const void *address;
    bool is_admitted;
} admission;

static void admit(ms__window *window, void *argument)
{
    admission *asked = argument;
    ms__map_block *block = ms__streamed_block_at(asked->address);
    window->is_asynchronous = true;
    asked->is_admitted = block != NULL && !block->resident && ms__window_use(window, block, true);
    window->is_asynchronous = false;
}

/* The block may have been dropped while it was filled: then its pages are dropped again. */
static void recheck(ms__window *window, void *argument)
{
    const admission *asked = argument;
    const ms__map_block *block = ms__streamed_block_at(asked->address);
    window->is_asynchronous = true;
    if (block != NULL) {
        ms__window_recheck(window, block);
    }
    window->is_asynchronous = false;
}

static void carry_out(uint64_t order, const void *const *addresses, size_t count)
{
    for (size_t i = 0; i < count && is_newest(order); i++) {
        admission asked = {.address = addresses[i]};
        ms__heap_visit_window(admit, &asked);
        if (asked.is_admitted) {
            fill_block(addresses[i], is_newest, order);
            ms__heap_visit_window(recheck, &asked);
        }
    }
}

static void sweep(ms__window *window, void *argument)
{
    (void)argument;
    window->is_asynchronous = true;
    ms__window_sweep(window);
    window->is_asynchronous = false;
}

/* Drops pages that other code has touched, if they exceed the window. */
static void look(void)
{
    ms__resident resident;
    ms_streamed_stats stats;
    ms__heap_visit_window(read_stats, &stats);
    if (ms__resident_read(&resident, NULL) != MS_OK) {
        return;
    }
    /* Files that weren't ours may have been unmapped since. */
    the_worker.other_file_bytes = ms__min_u64(the_worker.other_file_bytes, resident.file_bytes);
    uint64_t allowed_bytes = ms__max_u64(stats.window_bytes, stats.resident_bytes);
    uint64_t expected_bytes = ms__add_sat(ms__add_sat(the_worker.other_file_bytes, allowed_bytes), unexplained_bytes);
    if (resident.file_bytes <= expected_bytes) {
        the_worker.busy_looks -= the_worker.busy_looks > 0;
        return;
    }
    the_worker.busy_looks = BUSY_LOOKS;
    ms__heap_visit_window(sweep, NULL);
    /* The rest belongs to blocks that may stay, or isn't ours. */
    if (ms__resident_read(&resident, NULL) == MS_OK && resident.file_bytes > expected_bytes) {
        the_worker.other_file_bytes = resident.file_bytes - stats.resident_bytes;
    }
}

/* Waits for an order newer than `*order` until the next look is due, and copies it; `*count` is 0 if there is none.
 * False if no block is left and no new one can come: the worker ends. */
static bool next_order(uint64_t *order, const void **addresses, size_t *count)
{
    ms_streamed_stats stats;
    ms__mutex_lock(&the_worker.lock);
    if (the_worker.order == *order) {
        bool is_busy = the_worker.busy_looks > 0 || ms__streams();
        uint64_t wait_ns = is_busy ? busy_look_ns : look_ns;
        (void)ms__cond_wait_until(&the_worker.changed, &the_worker.lock, ms_now_ns() + wait_ns);
    }
    *count = the_worker.order == *order ? 0 : the_worker.count;
    *order = the_worker.order;
    memcpy(addresses, the_worker.addresses, *count * sizeof *addresses);
    ms__heap_visit_window(read_stats, &stats); /* after the wait: blocks may have been made meanwhile */
    the_worker.is_running = stats.blocks > 0 || ms__streams();
    bool goes_on = the_worker.is_running;
    ms__mutex_unlock(&the_worker.lock);
    return goes_on;
}

static void work(void *argument)
{
    (void)argument;
    uint64_t order = 0;
    const void *addresses[ORDER_MOST];
    size_t count;
    while (next_order(&order, addresses, &count)) {
        carry_out(order, addresses, count);
        look();
    }
}

/* Under the worker's lock. */
static int start_worker(ms_error *err)
{
    ms__resident resident;
    ms__thread thread = {0};
    if (the_worker.is_running) {
        return MS_OK;
    }
    int rc = ms__resident_read(&resident, err);
    if (rc == MS_OK) {
        the_worker.other_file_bytes = resident.file_bytes;
        rc = ms__thread_start(&thread, "ms-streamed", work, NULL, err);
    }
    if (rc == MS_OK) {
        ms__thread_detach(&thread);
        the_worker.is_running = true;
    }
    return rc;
}

static void before_fork(void)
{
    ms__mutex_lock(&the_target.lock);
    ms__mutex_lock(&the_worker.lock);
}

static void after_fork_in_parent(void)
{
    ms__mutex_unlock(&the_worker.lock);
    ms__mutex_unlock(&the_target.lock);
}

static void after_fork_in_child(void)
{
    the_worker.is_running = false;
    ms__cond_init(&the_worker.changed);
    after_fork_in_parent();
}

static bool is_fork_covered;

static void prepare_worker(void)
{
    ms__cond_init(&the_worker.changed);
    is_fork_covered = ms__hear_of_forks(before_fork, after_fork_in_parent, after_fork_in_child);
}

static bool can_have_worker(void)
{
    static ms__once once = MS__ONCE_INIT;
    ms__once_run(&once, prepare_worker);
    return is_fork_covered;
}

bool ms__streamed_watch(void)
{
    if (!can_have_worker()) {
        return false;
    }
    ms__mutex_lock(&the_worker.lock);
    int rc = start_worker(NULL);
    ms__mutex_unlock(&the_worker.lock);
    return rc == MS_OK;
}

/* ---- public -------------------------------------------------------------------- */

static int check_directory(const char *directory, ms_error *err)
{
    ms__filesystem filesystem;
    int rc = ms__filesystem_of(directory, &filesystem, err);
    if (rc == MS_OK && filesystem.is_memory) {
        return ms_fail(err, MS_ECONFIG, "streamed: %s is on %s, which is memory itself; name a directory on a disk",
                       directory, filesystem.type);
    }
    ms__file probe = MS__FILE_CLOSED;
    if (rc == MS_OK) {
        rc = ms__file_open_unnamed(directory, false, &probe, err);
    }
    ms__file_close(&probe);
    return rc;
}

/* Under the target's lock. */
static int begin_first(const char *directory, ms_error *err)
{
    if (ms__install_means() != MS_HOSTMEM_SLOTS) {
        return ms_fail(err, MS_ENOTSUP, "streamed: torch's CPU allocator could not be taken over");
    }
    bool is_covered = can_have_worker();
    if (!is_covered || strlen(directory) >= sizeof the_target.directory) {
        return ms_fail(err, is_covered ? MS_ECONFIG : MS_ENOMEM, "streamed: cannot use %s", directory);
    }
    int rc = check_directory(directory, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__mutex_lock(&the_worker.lock);
    rc = start_worker(err);
    /* Set before the worker's first look: it would end if nothing streams. */
    atomic_store(&the_target.depth, rc == MS_OK);
    ms__cond_signal(&the_worker.changed); /* for a look soon */
    ms__mutex_unlock(&the_worker.lock);
    if (rc == MS_OK) {
        snprintf(the_target.directory, sizeof the_target.directory, "%s", directory);
        the_target.failure = (ms_error){.code = MS_OK};
    }
    return rc;
}

int ms_streamed_begin(const char *directory, ms_error *err)
{
    int rc = MS_OK;
    ms__mutex_lock(&the_target.lock);
    if (!ms__streams()) {
        rc = begin_first(directory, err);
    } else if (strcmp(directory, the_target.directory) != 0) {
        rc = ms_fail(err, MS_ESTATE, "streamed: tensors already stream into %s", the_target.directory);
    } else {
        atomic_fetch_add(&the_target.depth, 1);
    }
    ms__mutex_unlock(&the_target.lock);
    return rc;
}

void ms_streamed_end(void)
{
    ms__mutex_lock(&the_target.lock);
    if (ms__streams()) {
        atomic_fetch_sub(&the_target.depth, 1);
    }
    ms__mutex_unlock(&the_target.lock);
}

void ms_streamed_get_stats(ms_streamed_stats *stats)
{
    ms__heap_visit_window(read_stats, stats);
}

void ms_streamed_set_window(uint64_t window_bytes)
{
    ms__heap_visit_window(set_window, &window_bytes);
}

typedef struct sum {
    ms_streamed_blocks blocks;
    bool parts_only;
    uint64_t bytes;
} sum;

static void add_bytes(ms__window *window, void *argument)
{
    sum *self = argument;
    ms__window_next_round(window); /* so that a block named twice counts once */
    for (size_t i = 0; i < self->blocks.count; i++) {
        ms__map_block *block = ms__streamed_block_at(self->blocks.addresses[i]);
        if (block != NULL && block->round != window->round) {
            bool counts = block->part || !self->parts_only;
            self->bytes += counts ? atomic_load_explicit(&block->bytes, memory_order_relaxed) : 0;
            block->round = window->round;
        }
    }
}

uint64_t ms_streamed_bytes(ms_streamed_blocks blocks)
{
    sum total = {.blocks = blocks};
    ms__heap_visit_window(add_bytes, &total);
    return total.bytes;
}

uint64_t ms_streamed_checkpoint_bytes(ms_streamed_blocks blocks)
{
    sum total = {.blocks = blocks, .parts_only = true};
    ms__heap_visit_window(add_bytes, &total);
    return total.bytes;
}

void ms_streamed_keep(ms_streamed_blocks blocks)
{
    ms__heap_visit_window(keep_these, &blocks);
}

/* Ends the order in hand. */
static void give_order(ms_streamed_blocks ahead)
{
    ms__mutex_lock(&the_worker.lock);
    the_worker.order++;
    the_worker.count = ms__min_u64(ahead.count, ORDER_MOST);
    for (size_t i = 0; i < the_worker.count; i++) {
        the_worker.addresses[i] = ahead.addresses[i];
    }
    ms__cond_signal(&the_worker.changed);
    ms__mutex_unlock(&the_worker.lock);
}

void ms_streamed_use(ms_streamed_blocks now, ms_streamed_blocks ahead)
{
    use asked = {.now = now, .ahead = ahead};
    ms__heap_visit_window(use_now, &asked);
    for (size_t i = 0; i < now.count; i++) {
        fill_block(now.addresses[i], NULL, 0);
    }
    give_order(ahead);
}

void ms_streamed_drop(void)
{
    give_order((ms_streamed_blocks){.addresses = NULL, .count = 0});
    ms__heap_visit_window(drop_all, NULL);
}
