/*
 * totp.h - codes that an authenticator (a program on a phone) shows: RFC 6238 with HMAC-SHA-1, steps of 30 s and six
 * digits, which every authenticator knows. liboath computes them. Knows neither accounts nor the database;
 * second_factor.h keeps the secret and the step of the last code.
 *
 * Thread-safe after mss_totp_start(). Tests: tests/server/c/test_totp.c.
 */
#ifndef MSS_AUTH_TOTP_H
#define MSS_AUTH_TOTP_H

#include "memscale/base.h"

enum {
    MSS_TOTP_STEP_S = 30,
    MSS_TOTP_DIGITS = 6,
    MSS_TOTP_SECRET_BYTES = 20, /* as long as HMAC-SHA-1's digest (RFC 4226) */
    MSS_TOTP_BASE32_BYTES = 33, /* the secret in base32 (RFC 4648), NUL */
};

/* Shared with the authenticator. Wipe it after use. */
typedef struct mss_totp_secret {
    unsigned char bytes[MSS_TOTP_SECRET_BYTES];
} mss_totp_secret;

/* Call once per process, before any other function here. MS_ESYSTEM if liboath can't start. */
MS_NODISCARD int mss_totp_start(ms_error *err);

/* A new secret of 160 random bits. */
void mss_totp_secret_new(mss_totp_secret *secret);

/* The secret as people type it into an authenticator. MS_ENOMEM. */
MS_NODISCARD int mss_totp_base32(const mss_totp_secret *secret, char text[MSS_TOTP_BASE32_BYTES], ms_error *err);

/*
 * `*step` is the number of the step whose code this is: the present one, the one before it or the one after it, because
 * clocks differ and people type slowly. 0 if it is none of them, or of none after `last_step`, so that the caller who
 * stores the step accepts no code twice. `now_s` is in seconds since 1970. The time taken does not tell how much of a
 * wrong code is right. MS_ESYSTEM if liboath fails.
 */
MS_NODISCARD int mss_totp_check(const mss_totp_secret *secret, const char *code, int64_t now_s, int64_t last_step,
                                int64_t *step, ms_error *err);

#endif
