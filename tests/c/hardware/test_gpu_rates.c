/*
 * The promises of GPU rates in hardware.h, with a device of given speed in the framework's place: tries stay within
 * the memory and a tenth of a second, and the result is the speed. Complete results are kept for the next run.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test_common.h"

#include "base/units.h"
#include "memscale/hardware.h"

enum { ALL = 8 };
#define LATENCY_NS UINT64_C(10000) /* of a launch */
#define ROOM_BYTES (UINT64_C(1) << 32)

static char dir[] = "/tmp/memscale-gpu-rates-XXXXXX";
static ms_hardware machine;

static bool is_product(size_t i)
{
    return strcmp(ms_gpu_trial_at(i)->work, "product") == 0;
}

/* What a device that does `per_second` takes for a try. */
static uint64_t time_of(size_t i, const ms_gpu_try *attempt, uint64_t per_second)
{
    uint64_t passes = strcmp(ms_gpu_trial_at(i)->work, "scale") == 0 ? 2 : 1;
    uint64_t work = is_product(i) ? 2 * attempt->size * attempt->size * attempt->size : passes * attempt->size;
    return attempt->repeats * (LATENCY_NS + ms__mul_div(work, UINT64_C(1000000000), per_second));
}

static uint64_t measure(size_t i, uint64_t room_bytes, uint64_t per_second, uint64_t *total_ns)
{
    ms_gpu_try next = {0};
    uint64_t rate, tries = 0;
    *total_ns = 0;
    while (ms_gpu_trial_next(i, room_bytes, &next, &rate)) {
        uint64_t item_bytes = strcmp(ms_gpu_trial_at(i)->dtype, "float32") == 0 ? 4 : 2;
        assert_true(tries++ < 20);
        assert_true((is_product(i) ? 3 * next.size * next.size * item_bytes : next.size) <= room_bytes);
        next.ns = time_of(i, &next, per_second);
        *total_ns += next.ns;
    }
    return rate;
}

static void a_trial_finds_the_speed_in_little_time(void **state)
{
    (void)state;
    const uint64_t product_speeds[] = {UINT64_C(20000000000), UINT64_C(1000000000000), UINT64_C(900000000000000)};
    const uint64_t memory_speeds[] = {UINT64_C(5000000000), UINT64_C(400000000000), UINT64_C(8000000000000)};
    const uint64_t link_speeds[] = {UINT64_C(500000000), UINT64_C(12000000000), UINT64_C(400000000000)};
    uint64_t total_ns;
    for (size_t i = 0; i < ALL; i++) {
        for (size_t k = 0; k < 3; k++) {
            bool is_link = !is_product(i) && strcmp(ms_gpu_trial_at(i)->work, "scale") != 0;
            uint64_t speed = is_product(i) ? product_speeds[k] : is_link ? link_speeds[k] : memory_speeds[k];
            uint64_t rate = measure(i, ROOM_BYTES, speed, &total_ns);
            assert_in_range(rate, speed * 7 / 10, speed);
            assert_true(total_ns < UINT64_C(100000000));
        }
    }
    assert_null(ms_gpu_trial_at(ALL));
}

static void tries_stay_within_the_room(void **state)
{
    (void)state;
    uint64_t total_ns;
    for (size_t i = 0; i < ALL; i++) {
        assert_true(measure(i, 1 << 20, UINT64_C(1000000000000), &total_ns) > 0);
        assert_int_equal(measure(i, 1000, UINT64_C(1000000000000), &total_ns), 0);
    }
}

static const uint64_t measured[ALL] = {12345678, 22345678, 32345678, 42345678, 52345678, 62345678, 72345678, 82345678};

static int describe(void **state)
{
    (void)state;
    machine = (ms_hardware){.gpu_count = 2, .gpu[1] = {.kind = MS_DEVICE_CUDA, .to_host_bytes_per_s = 7}};
    strcpy(dir + sizeof dir - 7, "XXXXXX");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int clean(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void measured_rates_are_kept_under_their_key(void **state)
{
    (void)state;
    ms_hardware later = machine;
    ms_hardware_set_gpu_rates(&machine, 1, dir, "card a, driver 1", measured);
    assert_int_equal(machine.gpu[1].matmul_flops_per_s, 12000000);
    assert_int_equal(machine.gpu[1].bf16_flops_per_s, 22000000);
    assert_int_equal(machine.gpu[1].pageable_from_host_bytes_per_s, 82000000);
    assert_false(ms_hardware_load_gpu_rates(&later, 1, dir, "card a, driver 2"));
    assert_false(ms_hardware_load_gpu_rates(&later, 2, dir, "card a, driver 1"));
    assert_int_equal(later.gpu[1].to_host_bytes_per_s, 7);
    assert_true(ms_hardware_load_gpu_rates(&later, 1, dir, "card a, driver 1"));
    assert_int_equal(later.gpu[1].to_host_bytes_per_s, machine.gpu[1].to_host_bytes_per_s);
    assert_int_equal(later.gpu[0].to_host_bytes_per_s, 0);
}

static void rates_that_were_not_measured_stay_and_nothing_is_kept(void **state)
{
    (void)state;
    uint64_t part[ALL] = {12345678};
    ms_hardware_set_gpu_rates(&machine, 1, dir, "card a, driver 1", part);
    assert_int_equal(machine.gpu[1].matmul_flops_per_s, 12000000);
    assert_int_equal(machine.gpu[1].to_host_bytes_per_s, 7);
    assert_false(ms_hardware_load_gpu_rates(&machine, 1, dir, "card a, driver 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trial_finds_the_speed_in_little_time),
        cmocka_unit_test(tries_stay_within_the_room),
        cmocka_unit_test_setup_teardown(measured_rates_are_kept_under_their_key, describe, clean),
        cmocka_unit_test_setup_teardown(rates_that_were_not_measured_stay_and_nothing_is_kept, describe, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
