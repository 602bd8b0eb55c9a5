/*
 * `memscale hardware`: the description of this machine, or a saved one, as a table or as JSON.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "commands.h"
#include "common.h"
#include "hardware/isa.h"
#include "inputs.h"
#include "memscale/hardware.h"
#include "options.h"

static const char help[] = "Usage: memscale hardware [--json] [--card NAME] [--disk-dir DIR] [--no-cache]\n"
                           "       memscale hardware [--json] [--card NAME] --from FILE\n"
                           "       memscale hardware --cards\n"
                           "\n"
                           "Shows the machine as plans see it: processors, memory and its limits, the\n"
                           "disk tier, GPUs. Rates are measured once (about a second, a temporary file of\n"
                           "256 MB), rounded to two digits and kept in $XDG_CACHE_HOME/memscale or\n"
                           "~/.cache/memscale.\n"
                           "\n"
                           "  --json          print the JSON document (docs/formats/hardware.schema.json)\n"
                           "  --disk-dir DIR  the directory of the disk tier, which must exist; chosen if not\n"
                           "                  given\n"
                           "  --no-cache      measure again, and keep the new rates\n"
                           "  --from FILE     show a saved description instead of this machine\n"
                           "  --card NAME     with this GPU in the place of the machine's own: its memory as\n"
                           "                  frameworks see it, four fifths of its datasheet's rates\n"
                           "  --cards         list the known GPUs\n"
                           "\n"
                           "Examples:\n"
                           "  memscale hardware\n"
                           "  memscale hardware --disk-dir /scratch --json > machine.json\n"
                           "  memscale hardware --from machine.json\n"
                           "  memscale hardware --card rtx-4090 --json > machine.json\n"
                           "\n"
                           "Exit status: 0, 1 if the machine can't be described, 2 for a wrong option,\n"
                           "directory or file.\n";

/* ---- the table ---------------------------------------------------------- */

static void print_rate(const char *what, uint64_t bytes_per_s, const char *separator)
{
    printf("%s %s/s%s", what, ms__text_bytes(bytes_per_s).text, separator);
}

static void print_cpu(const ms_cpu *cpu)
{
    printf("CPU     %s, %u usable", cpu->name, (unsigned)cpu->usable_cpus);
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((cpu->isa & bit) != 0 && ms__isa_name(bit) != NULL) {
            printf(", %s", ms__isa_name(bit));
        }
    }
    printf("\n        matrix products %.1f GFLOP/s, ", (double)cpu->matmul_flops_per_s / 1e9);
    print_rate("element-wise", cpu->stream_bytes_per_s, "");
    if (cpu->evaluations_per_s > 0) {
        printf(", functions %.2f G/s", (double)cpu->evaluations_per_s / 1e9);
    }
    printf("\n        ");
    if (cpu->pack_bytes_per_s > 0) {
        print_rate("masks to bits", cpu->pack_bytes_per_s, ", ");
        print_rate("and back", cpu->unpack_bytes_per_s, ", ");
    }
    print_rate("fresh pages", cpu->fault_bytes_per_s, ", ");
    print_rate("checksums", cpu->checksum_bytes_per_s, "\n");
}

static void print_ram(const ms_ram *ram)
{
    printf("RAM     %s, ", ms__text_bytes(ram->total_bytes).text);
    printf("%s available\n", ms__text_bytes(ram->available_bytes).text);
    if (ram->limit_bytes == UINT64_MAX) {
        printf("        no control group limit, ");
    } else {
        printf("        limit %s by %s,\n        ", ms__text_bytes(ram->limit_bytes).text, ram->limit_source);
    }
    if (ram->memlock_bytes == UINT64_MAX) {
        printf("any amount may be locked\n");
    } else {
        printf("%s may be locked\n", ms__text_bytes(ram->memlock_bytes).text);
    }
}

static void print_disk(const ms_disk *disk)
{
    if (disk->dir[0] == '\0') {
        printf("Disk    off: %s\n", disk->refusal);
        return;
    }
    printf("Disk    %s\n        %s, %s, %s free\n        ", disk->dir, disk->filesystem,
           disk->direct_io ? "direct I/O" : "no direct I/O", ms__text_bytes(disk->free_bytes).text);
    print_rate("write", disk->write_bytes_per_s, ", ");
    print_rate("read", disk->read_bytes_per_s, "\n");
}

static void print_gpu(const ms_gpu *gpu)
{
    printf("%s, %s, compute %u.%u, %u copy engines\n        ", gpu->name, ms__text_bytes(gpu->total_bytes).text,
           (unsigned)gpu->compute_major, (unsigned)gpu->compute_minor, (unsigned)gpu->copy_engines);
    printf("matrix products %.1f GFLOP/s, ", (double)gpu->matmul_flops_per_s / 1e9);
    print_rate("memory", gpu->stream_bytes_per_s, "\n        ");
    print_rate("to host", gpu->to_host_bytes_per_s, ", ");
    print_rate("from host", gpu->from_host_bytes_per_s, "\n");
}

static void print_gpus(const ms_hardware *hardware)
{
    if (hardware->gpu_count == 0) {
        printf("GPU     none\n");
    }
    for (uint32_t i = 0; i < hardware->gpu_count; i++) {
        printf("GPU %-2u  ", (unsigned)i);
        print_gpu(&hardware->gpu[i]);
    }
}

static void print_table(const ms_hardware *hardware)
{
    print_cpu(&hardware->cpu);
    print_ram(&hardware->ram);
    print_disk(&hardware->disk);
    print_gpus(hardware);
    ms__unit_text room = ms__text_bytes(ms_hardware_device_bytes(hardware));
    if (ms_hardware_host_is_device(hardware)) {
        printf("Trains  on the CPU, in at most %s\n", room.text);
    } else {
        printf("Trains  on GPU %d, in at most %s\n", (int)hardware->device, room.text);
    }
}

/* ---- the command -------------------------------------------------------- */

static int load_description(const char *path, ms_hardware *hardware)
{
    ms_error err;
    char *text;
    int rc = cli_read_text(path, &text, &err);
    if (rc == MS_OK) {
        rc = ms_hardware_parse(text, hardware, &err);
    }
    ms_free(text);
    return cli_file_status("hardware", "--from", path, rc, &err);
}

static int probe_machine(const ms_hardware_options *options, ms_hardware *hardware)
{
    static const char field[] = "disk_offload_dir: ";
    ms_error err;
    int rc = options->disk_dir != NULL ? cli_check_directory(options->disk_dir, &err) : MS_OK;
    if (rc == MS_OK) {
        rc = ms_hardware_probe(options, hardware, &err);
    }
    if (rc == MS_ECONFIG && strncmp(err.text, field, strlen(field)) == 0) {
        return cli_usage_error("hardware", "--disk-dir: %s", err.text + strlen(field));
    }
    return rc == MS_OK ? CLI_OK : cli_fail(&err);
}

static int out_of_memory(void)
{
    ms_error err;
    ms_fail(&err, MS_ENOMEM, "out of memory");
    return cli_fail(&err);
}

static int list_cards(ms_hardware *hardware)
{
    for (size_t i = 0; ms_hardware_card_name(i) != NULL; i++) {
        ms_error err;
        if (ms_hardware_use_card(hardware, ms_hardware_card_name(i), &err) != MS_OK) {
            return cli_fail(&err);
        }
        printf("%s\n        ", ms_hardware_card_name(i));
        print_gpu(ms_hardware_gpu(hardware));
    }
    return CLI_OK;
}

static int show_hardware(const ms_hardware *hardware, bool as_json)
{
    if (!as_json) {
        print_table(hardware);
        return CLI_OK;
    }
    return cli_print_made(ms_hardware_to_json(hardware));
}

int cmd_hardware(int argc, char **argv)
{
    bool as_json = false, lists = false;
    const char *from = NULL, *card = NULL;
    ms_hardware_options options = {0};
    const cli_option table[] = {
        {"--json", &as_json, NULL},
        {"--disk-dir", NULL, &options.disk_dir},
        {"--no-cache", &options.no_cache, NULL},
        {"--from", NULL, &from},
        {"--card", NULL, &card},
        {"--cards", &lists, NULL},
    };
    int status = cli_parse(argc, argv, table, sizeof table / sizeof table[0], help);
    if (status != CLI_GO_ON) {
        return status;
    }
    if (from != NULL && (options.disk_dir != NULL || options.no_cache)) {
        return cli_usage_error("hardware", "--from excludes --disk-dir and --no-cache");
    }
    ms_hardware *hardware = ms_calloc(1, sizeof *hardware);
    if (hardware == NULL) {
        return out_of_memory();
    }
    if (lists) {
        status = list_cards(hardware);
    } else {
        status = from != NULL ? load_description(from, hardware) : probe_machine(&options, hardware);
        status = status == CLI_OK && card != NULL ? cli_use_card("hardware", "--card", card, hardware) : status;
        status = status == CLI_OK ? show_hardware(hardware, as_json) : status;
    }
    ms_free(hardware);
    return status;
}
