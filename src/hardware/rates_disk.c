/*
 * Measures the write and read rates of a directory's disk in the way of the file backend: an unnamed file, direct I/O, two
 * threads, 8 MB blocks. Called by the hardware probe if its cache lacks the disk.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/os/file.h"
#include "base/os/map.h"
#include "base/thread.h"
#include "base/units.h"
#include "hardware/rates.h"

/* Rates of a SATA SSD, for descriptions made without measuring. */
#define DEFAULT_WRITE_BYTES_PER_S UINT64_C(500000000)
#define DEFAULT_READ_BYTES_PER_S UINT64_C(500000000)

enum { WORKERS = 2, BLOCK_BYTES = 8 << 20 };

void ms__rates_default_disk(ms_disk *disk)
{
    disk->write_bytes_per_s = DEFAULT_WRITE_BYTES_PER_S;
    disk->read_bytes_per_s = DEFAULT_READ_BYTES_PER_S;
}

/* Writing or reading of one file. Workers take the next block until none is left or the time is over. The first block is
 * taken even if the time is over, so that a stalled machine still gives a rate. */
typedef struct transfer {
    const ms__file *file;
    bool is_write;
    uint32_t block_count;
    uint64_t deadline_ns;
    atomic_uint next_block;
    atomic_uint done_blocks;
} transfer;

typedef struct worker {
    transfer *job;
    ms__thread thread;
    char *block;
    int rc;
    ms_error error;
} worker;

static void worker_main(void *argument)
{
    worker *me = argument;
    transfer *job = me->job;
    while (me->rc == MS_OK && (ms_now_ns() < job->deadline_ns || atomic_load(&job->next_block) == 0)) {
        uint32_t index = atomic_fetch_add(&job->next_block, 1);
        if (index >= job->block_count) {
            return;
        }
        uint64_t offset = (uint64_t)index * BLOCK_BYTES;
        me->rc = job->is_write ? ms__file_write(job->file, me->block, BLOCK_BYTES, offset, &me->error)
                               : ms__file_read(job->file, me->block, BLOCK_BYTES, offset, &me->error);
        atomic_fetch_add(&job->done_blocks, me->rc == MS_OK);
    }
}

/* Runs the workers; `*rate` is bytes per second, `*blocks` the number of blocks moved. */
static int run_transfer(transfer *job, char *memory, uint64_t limit_ns, uint64_t *rate, uint32_t *blocks, ms_error *err)
{
    worker workers[WORKERS];
    int rc = MS_OK;
    uint64_t begun_ns = ms_now_ns();
    job->deadline_ns = begun_ns + limit_ns;
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.job = job, .block = memory + (size_t)i * BLOCK_BYTES};
        if (rc == MS_OK) {
            rc = ms__thread_start(&workers[i].thread, "ms-measure", worker_main, &workers[i], err);
        }
    }
    for (int i = 0; i < WORKERS; i++) {
        ms__thread_join(&workers[i].thread);
        if (rc == MS_OK && workers[i].rc != MS_OK) {
            rc = workers[i].rc;
            if (err != NULL) {
                *err = workers[i].error;
            }
        }
    }
    if (rc == MS_OK && job->is_write && !job->file->is_direct) {
        fdatasync(job->file->fd); /* bytes in the page cache are not yet written */
    }
    if (rc == MS_OK) {
        uint64_t elapsed_ns = ms__max_u64(ms_now_ns() - begun_ns, 1);
        *blocks = atomic_load(&job->done_blocks);
        *rate = ms__mul_div((uint64_t)*blocks * BLOCK_BYTES, UINT64_C(1000000000), elapsed_ns);
    }
    return rc;
}

static int measure_file(const ms__file *file, char *memory, uint64_t file_bytes, uint64_t limit_ns, ms_disk *disk,
                        ms_error *err)
{
    uint32_t written = 0;
    uint32_t read = 0;
    uint64_t write_rate = 0;
    uint64_t read_rate = 0;
    transfer out = {
        .file = file,
        .is_write = true,
        .block_count = (uint32_t)(file_bytes / BLOCK_BYTES),
    };
    int rc = run_transfer(&out, memory, limit_ns, &write_rate, &written, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (!file->is_direct) {
        posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    /* Every taken block was written, so the file has no holes. */
    transfer in = {.file = file, .block_count = written};
    rc = run_transfer(&in, memory, limit_ns, &read_rate, &read, err);
    if (rc == MS_OK) {
        disk->write_bytes_per_s = ms__max_u64(write_rate, 1);
        disk->read_bytes_per_s = ms__max_u64(read_rate, 1);
    }
    return rc;
}

int ms__rates_measure_disk(ms_disk *disk, uint64_t file_bytes, uint64_t limit_ns, ms_error *err)
{
    ms__file file = MS__FILE_CLOSED;
    void *memory = NULL;
    size_t memory_bytes = (size_t)WORKERS * BLOCK_BYTES;
    file_bytes = ms__max_u64(file_bytes, memory_bytes);
    int rc = ms__map(memory_bytes, MS__HUGE_PAGE_BYTES, &memory, err);
    if (rc != MS_OK) {
        return rc;
    }
    /* Not zeros: some disks and file systems do not store them. */
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < memory_bytes / sizeof state; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ((uint64_t *)memory)[i] = state;
    }
    rc = ms__file_open_unnamed(disk->dir, disk->direct_io, &file, err);
    if (rc == MS_OK) {
        rc = measure_file(&file, memory, file_bytes, limit_ns, disk, err);
    }
    ms__file_close(&file);
    ms__unmap(memory, memory_bytes);
    return rc;
}
