/*
 * The choice of pieces to compress on their way to the tier; codec.h does the work. A piece
 * is compressed if the link's time saved, down and up, exceeds the codec's processor time,
 * both ways. Both are measured: the options have the link's rates, the codec's cost is measured
 * when the engine opens and updated with each piece, and a sample predicts a piece's size.
 *
 * A compressed piece takes whole blocks at the beginning of its own place in the extent. It
 * has two checksums: of the compressed bytes, checked before decompression, and of the result.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/units.h"
#include "offload/engine.h"

/* The unit of link_ns. */
#define COMPRESSION_UNIT_BYTES (UINT64_C(1) << 20)
#define NS_PER_S UINT64_C(1000000000)
#define GB_BYTES UINT64_C(1000000000)

enum {
    /* The data for measuring the codec, once per engine: a millisecond. */
    TRIAL_NUMBERS = 1 << 16,
    TRIAL_BYTES = TRIAL_NUMBERS * sizeof(float),
    /* An engine compresses nothing if pieces would have to shrink below this part to gain time:
     * few tensors do, and sampling the others costs time. */
    LEAST_GAIN = 2,
    /* Smaller pieces gain a block at most. */
    PIECE_LEAST_BYTES = 16 << 10
};

/* Bytes written before the second log line reports the result. */
#define TELL_AFTER_BYTES (UINT64_C(256) << 20)

static uint64_t processor_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t cost_of(const ms__codec_cost *cost, uint64_t bytes)
{
    return ms__mul_div(bytes, cost->ns, ms__max_u64(cost->bytes, 1));
}

/* ---- the engine's decision --------------------------------------------------------- */

/* Numbers as layers compute them: sums of several, so that small ones are frequent. */
static void make_trial(float *numbers)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < TRIAL_NUMBERS; i++) {
        int32_t sum = 0;
        for (int j = 0; j < 4; j++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += (int32_t)(state >> 40) - (1 << 23);
        }
        numbers[i] = (float)sum / (float)(1 << 23);
    }
}

static void try_codec(ms__compression *compression, ms__codec *codec, float *numbers, unsigned char *compressed)
{
    ms__codec_view view;
    make_trial(numbers);
    uint64_t begun_ns = processor_ns();
    ms__codec_look(codec, numbers, TRIAL_BYTES, &view);
    uint64_t compressed_bytes = ms__codec_compress(codec, &view, numbers, TRIAL_BYTES, compressed, TRIAL_BYTES);
    compression->down = (ms__codec_cost){TRIAL_BYTES, ms__max_u64(processor_ns() - begun_ns, 1)};
    begun_ns = processor_ns();
    (void)ms__codec_decompress(codec, compressed, compressed_bytes, numbers, TRIAL_BYTES);
    compression->up = (ms__codec_cost){TRIAL_BYTES, ms__max_u64(processor_ns() - begun_ns, 1)};
}

static int measure_codec(ms__compression *compression, ms_error *err)
{
    ms__codec *codec = NULL;
    int rc = ms__codec_open(&codec, err);
    if (rc != MS_OK) {
        return rc;
    }
    unsigned char *memory = ms_malloc(2 * TRIAL_BYTES);
    if (memory == NULL) {
        ms__codec_close(codec);
        return ms_fail(err, MS_ENOMEM, "no memory to measure compression");
    }
    float *numbers = (float *)(void *)memory;
    try_codec(compression, codec, numbers, memory + TRIAL_BYTES); /* warm-up: zstd allocates */
    try_codec(compression, codec, numbers, memory + TRIAL_BYTES);
    ms_free(memory);
    ms__codec_close(codec);
    return MS_OK;
}

static ms_compression compression_requested(const ms_offload *engine, const ms_offload_options *options)
{
    if (engine->backend->device_memory) {
        return MS_COMPRESSION_NEVER;
    }
    if (options->compression != MS_COMPRESSION_AUTO || options->tier != MS_TIER_DISK) {
        return options->compression == MS_COMPRESSION_ALWAYS ? MS_COMPRESSION_ALWAYS : MS_COMPRESSION_NEVER;
    }
    const char *environment = getenv("MEMSCALE_DISK_COMPRESSION");
    if (environment != NULL && strcmp(environment, "always") == 0) {
        return MS_COMPRESSION_ALWAYS;
    }
    bool is_known = options->write_bytes_per_s != 0 && options->read_bytes_per_s != 0;
    bool is_refused = environment != NULL && strcmp(environment, "never") == 0;
    return is_known && !is_refused ? MS_COMPRESSION_AUTO : MS_COMPRESSION_NEVER;
}

static void log_decision(const ms_offload *engine, const ms_offload_options *options)
{
    const ms__compression *compression = &engine->compression;
    const char *decision = compression->is_on ? "pieces are compressed if that saves time" : "nothing is compressed";
    uint64_t per_gb_ns = ms__add_sat(cost_of(&compression->down, GB_BYTES), cost_of(&compression->up, GB_BYTES));
    if (compression->is_always) {
        ms_log(MS_LOG_INFO, "%s: every piece that gets smaller is compressed", engine->backend->place);
        return;
    }
    ms_log(MS_LOG_INFO,
           "%s: %s: the link moves %s/s down and %s/s up, the codec takes %s of "
           "processor time per GB",
           engine->backend->place, decision, ms__text_bytes(options->write_bytes_per_s).text,
           ms__text_bytes(options->read_bytes_per_s).text, ms__text_ns(per_gb_ns).text);
}

int ms__compression_open(ms_offload *engine, const ms_offload_options *options, ms_error *err)
{
    ms__compression *compression = &engine->compression;
    ms_compression wish = compression_requested(engine, options);
    if (wish == MS_COMPRESSION_NEVER) {
        return MS_OK;
    }
    ms_error refusal = {0};
    int rc = measure_codec(compression, &refusal);
    if (rc == MS_ENOTSUP) {
        ms_log(MS_LOG_INFO, "%s: nothing is compressed: %s", engine->backend->place, refusal.text);
        return MS_OK;
    }
    if (rc != MS_OK) {
        if (err != NULL) {
            *err = refusal;
        }
        return rc;
    }
    compression->is_always = wish == MS_COMPRESSION_ALWAYS;
    if (!compression->is_always) {
        compression->link_ns = ms__add_sat(ms__mul_div(COMPRESSION_UNIT_BYTES, NS_PER_S, options->write_bytes_per_s),
                                           ms__mul_div(COMPRESSION_UNIT_BYTES, NS_PER_S, options->read_bytes_per_s));
    }
    uint64_t codec_ns = ms__add_sat(cost_of(&compression->down, COMPRESSION_UNIT_BYTES),
                                    cost_of(&compression->up, COMPRESSION_UNIT_BYTES));
    compression->is_on = compression->is_always || codec_ns < compression->link_ns / LEAST_GAIN;
    log_decision(engine, options);
    return MS_OK;
}

/* ---- pieces ------------------------------------------------------------------------- */

static bool compression_pays(ms_offload *engine, uint64_t bytes, uint64_t expected_bytes)
{
    ms__compression *compression = &engine->compression;
    if (expected_bytes >= bytes || compression->is_always) {
        return expected_bytes < bytes;
    }
    ms__mutex_lock(&engine->lock);
    uint64_t spent_ns = ms__add_sat(cost_of(&compression->down, bytes), cost_of(&compression->up, bytes));
    ms__mutex_unlock(&engine->lock);
    return spent_ns < ms__mul_div(bytes - expected_bytes, compression->link_ns, COMPRESSION_UNIT_BYTES);
}

bool ms__compression_may(const ms_offload *engine, uint64_t bytes)
{
    return engine->compression.is_on && bytes >= PIECE_LEAST_BYTES;
}

void ms__compression_compress(ms__worker *worker, ms__job *job)
{
    ms_offload *engine = worker->engine;
    ms__piece *piece = &job->ticket->pieces[job->piece];
    uint64_t block_bytes = engine->backend->block_bytes;
    ms__codec_view view;
    if (!ms__compression_may(engine, job->bytes)) {
        return;
    }
    uint64_t begun_ns = processor_ns();
    ms__codec_look(worker->codec, job->memory, job->bytes, &view);
    if (!compression_pays(engine, job->bytes, view.expected_bytes)) {
        return;
    }
    uint64_t compressed_bytes =
        ms__codec_compress(worker->codec, &view, job->memory, job->bytes, job->bounce, job->io.bytes - block_bytes);
    job->codec_ns = ms__max_u64(processor_ns() - begun_ns, 1);
    if (compressed_bytes == 0) {
        return; /* the sample predicted too much */
    }
    job->io.bytes = ms__align_up(compressed_bytes, block_bytes);
    memset(job->bounce + compressed_bytes, 0, job->io.bytes - compressed_bytes);
    job->io.memory = job->bounce;
    job->moved_bytes = job->io.bytes;
    piece->compressed_bytes = (uint32_t)compressed_bytes;
    piece->compressed_checksum = engine->checksum != NULL ? engine->checksum(job->bounce, compressed_bytes) : 0;
}

bool ms__compression_decompress(ms__worker *worker, ms__job *job, unsigned char *to)
{
    const ms_offload *engine = worker->engine;
    const ms__piece *piece = &job->ticket->pieces[job->piece];
    uint64_t begun_ns = processor_ns();
    if (engine->checksum != NULL &&
        engine->checksum(job->bounce, piece->compressed_bytes) != piece->compressed_checksum) {
        return false;
    }
    bool is_whole = ms__codec_decompress(worker->codec, job->bounce, piece->compressed_bytes, to, job->bytes);
    job->codec_ns = ms__max_u64(processor_ns() - begun_ns, 1);
    return is_whole && (engine->checksum == NULL || engine->checksum(to, job->bytes) == piece->checksum);
}

bool ms__compression_count(ms_offload *engine, const ms__job *job)
{
    ms__compression *compression = &engine->compression;
    ms__codec_cost *cost = job->io.direction == MS__WRITE ? &compression->down : &compression->up;
    uint32_t compressed_bytes = job->ticket->pieces[job->piece].compressed_bytes;
    cost->bytes += job->bytes;
    cost->ns += job->codec_ns;
    if (job->io.direction == MS__WRITE && compressed_bytes != 0) {
        engine->stats.compressed_bytes += job->bytes;
        engine->stats.compressed_into_bytes += compressed_bytes;
    }
    bool is_to_tell = !compression->is_told && engine->stats.written_bytes >= TELL_AFTER_BYTES;
    compression->is_told |= is_to_tell;
    return is_to_tell;
}

void ms__compression_report(ms_offload *engine)
{
    ms__mutex_lock(&engine->lock);
    ms_offload_stats stats = engine->stats;
    ms__codec_cost down = engine->compression.down;
    ms__mutex_unlock(&engine->lock);
    ms_log(MS_LOG_INFO, "%s: of the first %s moved, %s were compressed into %s, at %s of processor time per GB",
           engine->backend->place, ms__text_bytes(stats.stored_bytes).text, ms__text_bytes(stats.compressed_bytes).text,
           ms__text_bytes(stats.compressed_into_bytes).text, ms__text_ns(cost_of(&down, GB_BYTES)).text);
}
