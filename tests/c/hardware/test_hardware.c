/* The hardware description: a written one reads back the same, faults are named by their place, and this machine
 * can be described. */
#include <unistd.h>

#include "base/os/file.h"
#include "base/os/procfs.h"
#include "hardware/isa.h"
#include "hardware/matmul_kernel.h"
#include "hardware/probe.h"
#include "memscale/hardware.h"
#include "test_common.h"

/* Large: not on the stack of every test. */
static ms_hardware machine;
static char *example;

static int load_example(void **state)
{
    (void)state;
    size_t length;
    return ms__file_read_text(test_data("hardware/data/hardware_gpu.json"), 1 << 20, &example, &length, NULL);
}

static int free_example(void **state)
{
    (void)state;
    ms_free(example);
    return 0;
}

static void two_digits_are_kept(void **state)
{
    (void)state;
    static const uint64_t rows[][2] = {
        {0, 0},
        {7, 7},
        {99, 99},
        {100, 100},
        {104, 100},
        {105, 110},
        {1949, 1900},
        {1950, 2000},
        {994999, 990000},
        {995000, 1000000},
        {123456789012, 120000000000},
        {UINT64_MAX, UINT64_C(18000000000000000000)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(ms_round_2_digits(rows[i][0]), rows[i][1]);
        assert_int_equal(ms_round_2_digits(rows[i][1]), rows[i][1]);
    }
}

static void every_card_of_the_catalogue_can_be_trained_on(void **state)
{
    (void)state;
    ms_error err;
    size_t count = 0;
    for (; ms_hardware_card_name(count) != NULL; count++) {
        assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
        assert_ms_ok(ms_hardware_use_card(&machine, ms_hardware_card_name(count), &err), err);
        const ms_gpu *gpu = ms_hardware_gpu(&machine);
        assert_non_null(gpu);
        assert_int_equal(machine.gpu_count, 1);
        assert_in_range(gpu->total_bytes, UINT64_C(15000000000), UINT64_C(210000000000));
        assert_int_equal(gpu->total_bytes, ms_hardware_device_bytes(&machine));
        assert_true(gpu->copy_engines > 0 && gpu->to_host_bytes_per_s >= UINT64_C(12000000000));
        assert_in_range(gpu->matmul_flops_per_s, UINT64_C(6000000000000), UINT64_C(140000000000000));
        assert_int_equal(machine.process.baseline_bytes, 0);
        char *text = ms_hardware_to_json(&machine);
        assert_non_null(text);
        assert_ms_ok(ms_hardware_parse(text, &machine, &err), err);
        ms_free(text);
    }
    assert_int_equal(count, 11);
    assert_ms_ok(ms_hardware_use_card(&machine, "RTX 4090", &err), err);
    assert_string_equal(ms_hardware_gpu(&machine)->name, "NVIDIA GeForce RTX 4090");
    assert_ms_fails(ms_hardware_use_card(&machine, "rtx-409", &err), MS_ENOTSUP, err, "rtx-409 is not one of t4, l4, ");
    assert_ms_fails(ms_hardware_use_card(&machine, "", &err), MS_ENOTSUP, err, "is not one of");
    assert_string_equal(ms_hardware_gpu(&machine)->name, "NVIDIA GeForce RTX 4090");
}

static void a_saved_description_reads_back_byte_for_byte(void **state)
{
    (void)state;
    ms_error err;
    assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
    char *text = ms_hardware_to_json(&machine);
    assert_string_equal(text, example);
    ms_free(text);
    assert_int_equal(machine.cpu.isa, MS_ISA_AVX2 | MS_ISA_AVX512F);
    assert_int_equal(machine.ram.limit_bytes, 4500000000);
    assert_true(machine.ram.memlock_bytes == UINT64_MAX);
    assert_int_equal(machine.gpu_count, 1);
    assert_int_equal(machine.gpu[0].from_host_bytes_per_s, 13000000000);
}

static void the_device_bounds_the_bytes_of_training(void **state)
{
    (void)state;
    ms_error err;
    assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
    assert_int_equal(ms_hardware_device_bytes(&machine), 24000000000);
    machine.device = -1;
    assert_int_equal(ms_hardware_device_bytes(&machine), 4500000000);
    machine.ram.limit_bytes = UINT64_MAX;
    assert_int_equal(ms_hardware_device_bytes(&machine), 33554432000);
}

/* `from`, which occurs in the example, replaced by `to`. */
static char *edited(const char *from, const char *to)
{
    const char *at = strstr(example, from);
    assert_non_null(at);
    size_t size = strlen(example) + strlen(to) + 1;
    char *text = ms_malloc(size);
    snprintf(text, size, "%.*s%s%s", (int)(at - example), example, to, at + strlen(from));
    return text;
}

static void faults_are_named_by_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        int code;
        const char *text;
    } rows[] = {
        {"\"version\": 1", "\"version\": 2", MS_EVERSION, "hardware: $.version: 2"},
        {"\"version\": 1,", "", MS_EFORMAT, "$.version: missing"},
        {"\"usable_cpus\": 8", "\"usable_cpus\": 0", MS_EFORMAT, "$.cpu.usable_cpus"},
        {"\"usable_cpus\": 8", "\"usable_cpus\": 8.0", MS_EFORMAT, "$.cpu.usable_cpus"},
        {"\"usable_cpus\": 8", "\"usable_cpus\": 65537", MS_EFORMAT, "$.cpu.usable_cpus"},
        {"\"usable_cpus\": 8,", "", MS_EFORMAT, "$.cpu.usable_cpus: missing"},
        {"\"usable_cpus\": 8", "\"cpus\": 8", MS_EFORMAT, "$.cpu: unknown member \"cpus\""},
        {"\"avx2\"", "\"sse9\"", MS_EFORMAT, "$.cpu.isa: \"sse9\" is not a known instruction set"},
        {"\"avx2\"", "\"avx512f\"", MS_EFORMAT, "$.cpu.isa: \"avx512f\" is out of order or twice"},
        {"\"avx2\"", "7", MS_EFORMAT, "$.cpu.isa[0]: expected a string"},
        {"310000000000", "0", MS_EFORMAT, "$.cpu.matmul_flops_per_s"},
        {"310000000000", "-1", MS_EFORMAT, "$.cpu.matmul_flops_per_s"},
        {"33554432000", "99999999999999999999", MS_EFORMAT, "hardware: line"},
        {"\"limit_bytes\": 4500000000,", "", MS_EFORMAT, "$.ram.limit_bytes: missing"},
        {"4500000000", "\"max\"", MS_EFORMAT, "$.ram.limit_bytes"},
        {"\"memlock_bytes\": null", "\"memlock_bytes\": false", MS_EFORMAT, "$.ram.memlock_bytes"},
        {"\"direct_io\": true", "\"direct_io\": 1", MS_EFORMAT, "$.disk.direct_io"},
        {"\"refusal\": \"\"", "\"refusal\": null", MS_EFORMAT, "$.disk.refusal: missing"},
        {"1900000000", "0", MS_EFORMAT, "$.disk.write_bytes_per_s"},
        {"\"compute_major\": 8", "\"compute_major\": 1001", MS_EFORMAT, "$.gpus[0].compute_major"},
        {"\"name\": \"Example GPU\",", "", MS_EFORMAT, "$.gpus[0].name: missing"},
        {"\"device\": 0", "\"device\": 1", MS_EFORMAT, "\"device\" must be -1"},
        {"\"device\": 0", "\"device\": -2", MS_EFORMAT, "\"device\" must be -1"},
        {"\"device\": 0,", "", MS_EFORMAT, "\"device\" must be -1"},
        {"\"time_scale_permille\": 1000", "\"time_scale_permille\": 0", MS_EFORMAT, "$.time_scale"},
        {"\"scratch_bytes\": 96000000", "\"scratch_bytes\": 1, \"reserve_bytes\": 2", MS_EFORMAT,
         "part of \"scratch_bytes\""},
        {"\"scratch_bytes\": 96000000", "\"scratch_bytes\": 9, \"reserve_bytes\": 2, \"products_bytes\": 8", MS_EFORMAT,
         "part of the expected"},
        {"\"scratch_bytes\": 96000000", "\"scratch_bytes\": 9, \"state_bytes\": 9000000000000", MS_EFORMAT,
         "part of \"baseline_bytes\""},
        {"6100000000", "6100000000, \"pack_bytes_per_s\": 3800000000", MS_EFORMAT, "$.cpu.unpack_bytes_per_s: missing"},
        {"6100000000", "6100000000, \"unpack_bytes_per_s\": 3800000000", MS_EFORMAT, "$.cpu.pack_bytes_per_s: missing"},
        {"\"process\"", "\"processes\"", MS_EFORMAT, "unknown member \"processes\""},
    };
    ms_error err;
    memset(&machine, 0x5a, sizeof machine);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = edited(rows[i].from, rows[i].to);
        assert_ms_fails(ms_hardware_parse(text, &machine, &err), rows[i].code, err, rows[i].text);
        assert_int_equal(machine.device, 0x5a5a5a5a);
        ms_free(text);
    }
}

/* Older descriptions lack them and are written again without them. */
static void rates_of_packing_read_back(void **state)
{
    (void)state;
    ms_error err;
    char *text =
        edited("6100000000", "6100000000, \"pack_bytes_per_s\": 3800000000, \"unpack_bytes_per_s\": 2500000000");
    assert_ms_ok(ms_hardware_parse(text, &machine, &err), err);
    assert_int_equal(machine.cpu.pack_bytes_per_s, 3800000000);
    assert_int_equal(machine.cpu.unpack_bytes_per_s, 2500000000);
    char *written = ms_hardware_to_json(&machine);
    memset(&machine.cpu, 0, sizeof machine.cpu);
    assert_ms_ok(ms_hardware_parse(written, &machine, &err), err);
    assert_int_equal(machine.cpu.pack_bytes_per_s, 3800000000);
    assert_int_equal(machine.cpu.unpack_bytes_per_s, 2500000000);
    ms_free(written);
    ms_free(text);
    assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
    assert_int_equal(machine.cpu.pack_bytes_per_s, 0);
}

/* Written only if there is a reserve. */
static void a_reserve_reads_back(void **state)
{
    (void)state;
    ms_error err;
    char *text = edited("\"scratch_bytes\": 96000000",
                        "\"scratch_bytes\": 96000000, \"reserve_bytes\": 40000000, \"products_bytes\": 50000000, "
                        "\"convolutions_bytes\": 7000000");
    assert_ms_ok(ms_hardware_parse(text, &machine, &err), err);
    assert_int_equal(machine.process.reserve_bytes, 40000000);
    char *written = ms_hardware_to_json(&machine);
    assert_ms_ok(ms_hardware_parse(written, &machine, &err), err);
    assert_int_equal(machine.process.reserve_bytes, 40000000);
    assert_int_equal(machine.process.products_bytes, 50000000);
    assert_int_equal(machine.process.convolutions_bytes, 7000000);
    ms_free(written);
    ms_free(text);
    assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
    assert_int_equal(machine.process.reserve_bytes, 0);
    written = ms_hardware_to_json(&machine);
    assert_null(strstr(written, "reserve"));
    assert_null(strstr(written, "products"));
    ms_free(written);
}

static void texts_that_are_too_long_are_refused(void **state)
{
    (void)state;
    ms_error err;
    char long_name[MS_NAME_MAX + 3];
    memset(long_name, 'n', sizeof long_name);
    long_name[0] = long_name[MS_NAME_MAX + 1] = '"';
    long_name[MS_NAME_MAX + 2] = '\0';
    char *text = edited("\"Example CPU 9000\"", long_name);
    assert_ms_fails(ms_hardware_parse(text, &machine, &err), MS_EFORMAT, err,
                    "$.cpu: \"name\" is longer than 255 bytes");
    ms_free(text);
}

static void too_many_gpus_are_refused(void **state)
{
    (void)state;
    ms_error err;
    assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
    machine.gpu_count = MS_GPU_MAX;
    for (int i = 1; i < MS_GPU_MAX; i++) {
        machine.gpu[i] = machine.gpu[0];
    }
    machine.device = MS_GPU_MAX - 1;
    char *full = ms_hardware_to_json(&machine);
    assert_ms_ok(ms_hardware_parse(full, &machine, &err), err);
    assert_int_equal(machine.device, MS_GPU_MAX - 1);
    char *at = strstr(full, "\"gpus\": [");
    at[strlen("\"gpus\": ")] = '\0';
    char *more = ms_malloc(2 * strlen(example) + 64 * MS_GPU_MAX);
    sprintf(more, "%s[", full);
    for (int i = 0; i <= MS_GPU_MAX; i++) {
        strcat(more, i > 0 ? ",{}" : "{}");
    }
    strcat(more, "], \"device\": -1, \"time_scale_permille\": 1000}");
    assert_ms_fails(ms_hardware_parse(more, &machine, &err), MS_EFORMAT, err, "more than 16");
    ms_free(more);
    ms_free(full);
}

static void running_out_of_memory_leaks_nothing(void **state)
{
    (void)state;
    ms_error err;
    uint64_t blocks = ms_memory_live_blocks();
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        int rc = ms_hardware_parse(example, &machine, &err);
        fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(rc, fired ? MS_ENOMEM : MS_OK);
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        char *text = ms_hardware_to_json(&machine);
        fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        if (text != NULL) {
            assert_string_equal(text, example); /* all of it, or nothing */
        }
        assert_true(fired || text != NULL);
        ms_free(text);
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
}

/* ---- instruction sets and processors ------------------------------------ */

static void instruction_sets_have_one_name_each(void **state)
{
    (void)state;
    assert_string_equal(ms__isa_name(MS_ISA_AVX512_BF16), "avx512_bf16");
    assert_int_equal(ms__isa_from_name("neon"), MS_ISA_NEON);
    assert_int_equal(ms__isa_from_name("mmx"), 0);
    assert_null(ms__isa_name(MS_ISA_AVX2 | MS_ISA_NEON));
    assert_null(ms__isa_name(0));
}

static void detected_instruction_sets_are_those_of_the_compiler(void **state)
{
    (void)state;
    uint32_t isa = ms__isa_detect();
#if defined(__x86_64__)
    assert_int_equal((isa & MS_ISA_AVX2) != 0, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    assert_int_equal((isa & MS_ISA_AVX512F) != 0, __builtin_cpu_supports("avx512f") != 0);
    assert_int_equal((isa & MS_ISA_AVX512_VNNI) != 0, __builtin_cpu_supports("avx512vnni") != 0);
    assert_int_equal((isa & MS_ISA_AVX512_BF16) != 0, __builtin_cpu_supports("avx512bf16") != 0);
    assert_int_equal(isa & MS_ISA_NEON, 0);
#elif defined(__aarch64__)
    assert_int_equal(isa, MS_ISA_NEON);
#endif
}

static void products_take_avx_512_on_intels_processors_alone(void **state)
{
    (void)state;
    const uint32_t all = MS_ISA_AVX2 | MS_ISA_AVX512F | MS_ISA_NEON;
#if defined(__x86_64__)
    assert_int_equal(ms__isa_of_products(all), __builtin_cpu_is("intel") ? all : all & ~(uint32_t)MS_ISA_AVX512F);
#else
    assert_int_equal(ms__isa_of_products(all), all);
#endif
    assert_int_equal(ms__isa_of_products(0), 0);
}

/* A kernel that computes nothing would seem fast. */
static void the_timed_kernel_multiplies(void **state)
{
    (void)state;
    static float a[MS__KERNEL_PANEL_FLOATS] __attribute__((aligned(64)));
    static float b[MS__KERNEL_PANEL_FLOATS] __attribute__((aligned(64)));
    static float tile[MS__KERNEL_TILE_FLOATS] __attribute__((aligned(64)));
    uint32_t isa = ms__isa_detect();
    const uint32_t sets[] = {isa, isa & MS_ISA_AVX2, 0};
    for (size_t i = 0; i < MS__KERNEL_PANEL_FLOATS; i++) {
        a[i] = 2.0f;
        b[i] = 0.5f;
    }
    for (size_t i = 0; i < 3; i++) {
        ms__matmul_kernel kernel = ms__matmul_kernel_for(sets[i]);
        memset(tile, 0, sizeof tile);
        kernel.run(a, b, tile);
        /* Every value is a sum of `depth` ones: flops = 2 x depth x values. */
        size_t values = 0;
        while (values < MS__KERNEL_TILE_FLOATS && tile[values] != 0) {
            assert_true(tile[values] == tile[0]);
            values++;
        }
        assert_int_equal(kernel.flops, 2 * (uint64_t)tile[0] * values);
    }
}

static void processors_have_names(void **state)
{
    (void)state;
    char name[64];
    ms__cpu_name("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Fast CPU @ 2 GHz\nflags\t: fpu\n", name, sizeof name);
    assert_string_equal(name, "Fast CPU @ 2 GHz");
    ms__cpu_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", name, sizeof name);
    assert_string_equal(name, "ARM implementer 0x41 part 0xd0c");
    ms__cpu_name("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", name, sizeof name);
    assert_string_equal(name, "POWER9, altivec supported");
    ms__cpu_name("", name, sizeof name);
    assert_string_equal(name, "");
    ms__cpu_name("model name\t: abcdefgh", name, 5);
    assert_string_equal(name, "abcd");
}

/* ---- GPUs --------------------------------------------------------------- */

/* Runs before the double is loaded, because a loaded driver stays. */
static void no_driver_is_no_gpu(void **state)
{
    (void)state;
    ms_gpu gpus[MS_GPU_MAX];
    setenv("MEMSCALE_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    assert_int_equal(ms__probe_gpus(gpus), 0);
}

static void the_drivers_devices_are_described(void **state)
{
    (void)state;
    ms_gpu gpus[MS_GPU_MAX];
    const char *library = getenv("MEMSCALE_TEST_LIBCUDA");
    if (library == NULL) {
        skip();
    }
    setenv("MEMSCALE_LIBCUDA", library, 1);
    assert_int_equal(ms__probe_gpus(gpus), 2);
    assert_string_equal(gpus[1].name, "Double GPU 1");
    assert_int_equal(gpus[0].total_bytes, 24000000000);
    assert_int_equal(gpus[0].copy_engines, 2);
    assert_int_equal(gpus[0].compute_major, 8);
    assert_true(gpus[0].matmul_flops_per_s > 0 && gpus[0].stream_bytes_per_s > 0);
    assert_true(gpus[0].to_host_bytes_per_s > 0 && gpus[0].from_host_bytes_per_s > 0);
    ms_hardware_options options = {.no_measure = true};
    ms_error err;
    assert_ms_ok(ms_hardware_probe(&options, &machine, &err), err);
    assert_int_equal(machine.device, 0);
    assert_int_equal(ms_hardware_device_bytes(&machine), 24000000000);
    /* A driver that fails at any call gives fewer GPUs, not an error. */
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        ms_fault_arm(MS_FAULT_DRIVER, nth, 0);
        assert_true(ms__probe_gpus(gpus) <= 2);
        fired = ms_fault_passed(MS_FAULT_DRIVER) >= nth;
        ms_fault_disarm_all();
    }
}

static void the_baseline_is_the_current_memory(void **state)
{
    (void)state;
    ms_error err;
    ms__resident resident;
    assert_ms_ok(ms_hardware_parse(example, &machine, &err), err);
    /* On the CPU, the baseline is resident memory, not the framework's figure; the rest has assumed values. */
    assert_ms_ok(ms_hardware_set_process(&machine, -1, 5, &err), err);
    assert_ms_ok(ms__resident_read(&resident, &err), err);
    assert_int_equal(machine.device, -1);
    assert_true(machine.process.baseline_bytes > resident.now_bytes / 2 &&
                machine.process.baseline_bytes < resident.now_bytes * 2);
    assert_true(machine.process.scratch_bytes > machine.process.reserve_bytes && machine.process.reserve_bytes > 0);
    assert_in_range(machine.process.products_bytes, 1,
                    machine.process.scratch_bytes - machine.process.reserve_bytes - 1);
    /* On a GPU, the baseline is the framework's allocations. */
    assert_ms_ok(ms_hardware_set_process(&machine, 0, 5, &err), err);
    assert_int_equal(machine.device, 0);
    assert_int_equal(machine.process.baseline_bytes, 5);
    /* Workspaces of two cuBLAS handles, and splits of blocks: reserved, but not expected. */
    assert_int_equal(machine.process.scratch_bytes, 2 * 8519680 + (8 << 20));
    assert_int_equal(machine.process.reserve_bytes, machine.process.scratch_bytes);
    /* A device that does not exist changes nothing. */
    int32_t beyond = (int32_t)machine.gpu_count;
    assert_ms_fails(ms_hardware_set_process(&machine, beyond, 7, &err), MS_EINVAL, err, "does not exist");
    assert_int_equal(machine.device, 0);
    assert_int_equal(machine.process.baseline_bytes, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_digits_are_kept),
        cmocka_unit_test(a_saved_description_reads_back_byte_for_byte),
        cmocka_unit_test(every_card_of_the_catalogue_can_be_trained_on),
        cmocka_unit_test(the_device_bounds_the_bytes_of_training),
        cmocka_unit_test(faults_are_named_by_their_place),
        cmocka_unit_test(rates_of_packing_read_back),
        cmocka_unit_test(a_reserve_reads_back),
        cmocka_unit_test(texts_that_are_too_long_are_refused),
        cmocka_unit_test(too_many_gpus_are_refused),
        cmocka_unit_test(running_out_of_memory_leaks_nothing),
        cmocka_unit_test(instruction_sets_have_one_name_each),
        cmocka_unit_test(detected_instruction_sets_are_those_of_the_compiler),
        cmocka_unit_test(products_take_avx_512_on_intels_processors_alone),
        cmocka_unit_test(the_timed_kernel_multiplies),
        cmocka_unit_test(processors_have_names),
        cmocka_unit_test(no_driver_is_no_gpu),
        cmocka_unit_test(the_drivers_devices_are_described),
        cmocka_unit_test(the_baseline_is_the_current_memory),
    };
    return cmocka_run_group_tests(tests, load_example, free_example);
}
