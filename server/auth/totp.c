#include "auth/totp.h"

#include <liboath/oath.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "auth/secret.h"

int mss_totp_start(ms_error *err)
{
    int rc = oath_init();
    return rc == OATH_OK ? MS_OK : ms_fail(err, MS_ESYSTEM, "liboath could not be started: %s", oath_strerror(rc));
}

void mss_totp_secret_new(mss_totp_secret *secret)
{
    randombytes_buf(secret->bytes, sizeof secret->bytes);
}

int mss_totp_base32(const mss_totp_secret *secret, char text[MSS_TOTP_BASE32_BYTES], ms_error *err)
{
    char *made = NULL;
    size_t length = 0;
    int rc = oath_base32_encode((const char *)secret->bytes, sizeof secret->bytes, &made, &length);
    if (rc != OATH_OK || length != MSS_TOTP_BASE32_BYTES - 1) {
        free(made);
        return ms_fail(err, MS_ENOMEM, "base32: %s", oath_strerror(rc));
    }
    memcpy(text, made, length);
    text[length] = '\0';
    mss_secret_wipe(made, length);
    free(made); /* liboath's, from malloc() */
    return MS_OK;
}

static int make_code(const mss_totp_secret *secret, int64_t step, char code[MSS_TOTP_DIGITS + 1], ms_error *err)
{
    int rc = oath_totp_generate((const char *)secret->bytes, sizeof secret->bytes, (time_t)(step * MSS_TOTP_STEP_S),
                                MSS_TOTP_STEP_S, OATH_TOTP_DEFAULT_START_TIME, MSS_TOTP_DIGITS, code);
    return rc == OATH_OK ? MS_OK : ms_fail(err, MS_ESYSTEM, "a code can't be made: %s", oath_strerror(rc));
}

/* Not by oath_totp_validate(): it compares by strcmp(), and may find an older step that has the code too. */
int mss_totp_check(const mss_totp_secret *secret, const char *code, int64_t now_s, int64_t last_step, int64_t *step,
                   ms_error *err)
{
    char wanted[MSS_TOTP_DIGITS + 1];
    int64_t present = now_s / MSS_TOTP_STEP_S;
    int rc = MS_OK;
    *step = 0;
    for (int64_t i = present - 1; rc == MS_OK && i <= present + 1; i++) {
        rc = make_code(secret, i, wanted, err);
        if (rc == MS_OK && i > last_step && mss_secret_equal(code, wanted)) {
            *step = i;
        }
    }
    mss_secret_wipe(wanted, sizeof wanted);
    return rc;
}
