/* The driver's library is found by name and loaded once, or refused. */
#include <stdlib.h>

#include "device/libcuda.h"
#include "test_common.h"

static ms_error err;

static int disarm(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return 0;
}

static void a_missing_driver_is_not_supported(void **state)
{
    (void)state;
    const ms__libcuda *cuda = NULL;
    setenv("MEMSCALE_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    assert_ms_fails(ms__libcuda_get(&cuda, &err), MS_ENOTSUP, err, "/nowhere/libcuda.so.1");
    setenv("MEMSCALE_LIBCUDA", "libm.so.6", 1); /* a library, but not the driver's */
    assert_ms_fails(ms__libcuda_get(&cuda, &err), MS_ENOTSUP, err, "libm.so.6 has no cuInit");
    assert_null(cuda);
}

static void a_driver_is_loaded_once_with_all_functions(void **state)
{
    (void)state;
    const ms__libcuda *cuda = NULL;
    const ms__libcuda *again = NULL;
    setenv("MEMSCALE_LIBCUDA", getenv("MEMSCALE_TEST_LIBCUDA"), 1);
    ms_fault_arm(MS_FAULT_DRIVER, 1, 0);
    assert_ms_fails(ms__libcuda_get(&cuda, &err), MS_ENOTSUP, err, "loading");
    assert_ms_ok(ms__libcuda_get(&cuda, &err), err);
    setenv("MEMSCALE_LIBCUDA", "/nowhere", 1);
    assert_ms_ok(ms__libcuda_get(&again, &err), err);
    assert_ptr_equal(cuda, again);
    int count = 0, attribute = 0;
    ms__cu_device device = -1;
    char name[64];
    size_t bytes = 0;
    assert_int_equal(cuda->init(0), 0);
    assert_int_equal(cuda->device_get_count(&count), 0);
    assert_int_equal(count, 2);
    assert_int_equal(cuda->device_get(&device, 1), 0);
    assert_int_equal(cuda->device_get_name(name, sizeof name, device), 0);
    assert_string_equal(name, "Double GPU 1");
    assert_int_equal(cuda->device_total_mem(&bytes, device), 0);
    assert_int_equal(bytes, UINT64_C(25000000000));
    assert_int_equal(cuda->device_get_attribute(&attribute, 75, device), 0);
    assert_int_equal(attribute, 8);
    assert_int_not_equal(cuda->device_get(&device, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_driver_is_not_supported),
        cmocka_unit_test_teardown(a_driver_is_loaded_once_with_all_functions, disarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
