/* ROCm's driver library is found in the process, its functions go by HIP's names and numbers, and the caller's current device
 * is left as it was. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "device/device.h"
#include "device/libcuda.h"
#include "test_common.h"

static ms_error err;

static void without_either_library_the_error_names_cudas(void **state)
{
    (void)state;
    const ms__libcuda *found = NULL;
    char path[8] = "";
    unsetenv("MEMSCALE_LIBCUDA");
    assert_false(ms__library_is_in_process("libamdhip64.so", path, sizeof path));
    assert_true(ms__library_is_in_process("libc.so", path, sizeof path));
    assert_ms_fails(ms__libhip_get(true, &found, &err), MS_ENOTSUP, err, "ROCm");
    assert_null(found);
    if (ms__libcuda_get(&found, &err) != MS_OK) { /* a machine may have one */
        assert_non_null(strstr(err.text, "libcuda.so.1"));
    }
}

static void a_library_in_the_process_is_used_under_hips_names(void **state)
{
    (void)state;
    void *library = dlopen(getenv("MEMSCALE_TEST_LIBHIP"), RTLD_NOW | RTLD_GLOBAL);
    const ms__libcuda *hip = NULL;
    assert_non_null(library);
    assert_ms_ok(ms__libcuda_get(&hip, &err), err);
    assert_true(hip->is_hip);
    void *expected = dlsym(library, "hipMemcpyHtoDAsync");
    assert_memory_equal(&hip->copy_to_device, &expected, sizeof expected);
    int minor = 0, engines = 0, clock = -1;
    assert_int_equal(hip->device_get_attribute(&minor, MS__CU_ATTRIBUTE_COMPUTE_MINOR, 0), 0);
    assert_int_equal(hip->device_get_attribute(&engines, MS__CU_ATTRIBUTE_COPY_ENGINES, 0), 0);
    assert_int_equal(hip->device_get_attribute(&clock, MS__CU_ATTRIBUTE_CLOCK_KHZ, 0), 0);
    assert_int_equal(minor, 6);
    assert_int_equal(engines, 2);
    assert_int_equal(clock, 0);
}

static void a_described_device_has_its_drivers_figures(void **state)
{
    (void)state;
    static ms_gpu gpus[MS_GPU_MAX];
    const ms__device_kind *kind = ms__device_kind_of(MS_DEVICE_CUDA);
    assert_int_equal(kind->probe(gpus, MS_GPU_MAX), 2);
    assert_string_equal(gpus[1].name, "Double GPU 1");
    assert_int_equal(gpus[1].total_bytes, UINT64_C(25000000000));
    assert_int_equal(gpus[1].compute_major, 8);
}

static void the_callers_device_is_left_as_it_was(void **state)
{
    (void)state;
    void *library = dlopen(getenv("MEMSCALE_TEST_LIBHIP"), RTLD_NOW);
    int (*get_device)(int *) = NULL;
    void *address = dlsym(library, "hipGetDevice");
    memcpy(&get_device, &address, sizeof address);
    ms__device device = {.kind = ms__device_kind_of(MS_DEVICE_CUDA), .number = 1};
    int current = -1;
    assert_ms_ok(device.kind->driver->open(&device, &err), err);
    assert_true(ms__device_enter(&device));
    assert_int_equal(get_device(&current), 0);
    assert_int_equal(current, 1);
    ms__device_leave(&device);
    assert_int_equal(get_device(&current), 0);
    assert_int_equal(current, 0);
    device.kind->driver->close(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_either_library_the_error_names_cudas),
        cmocka_unit_test(a_library_in_the_process_is_used_under_hips_names),
        cmocka_unit_test(a_described_device_has_its_drivers_figures),
        cmocka_unit_test(the_callers_device_is_left_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
