/*
 * secret.h - random identifiers and secrets, and the hashes that are stored in place of secrets.
 * Includes nothing of the server. All functions are thread-safe after mss_secret_start().
 */
#ifndef MSS_AUTH_SECRET_H
#define MSS_AUTH_SECRET_H

#include "memscale/base.h"

enum {
    MSS_ID_BYTES = 20,        /* a letter for the kind, 16 of base32 (80 random bits), NUL */
    MSS_SECRET_BYTES = 56,    /* 52 characters of base32 (256 random bits and 4 of padding), NUL */
    MSS_TOKEN_BYTES = 60,     /* "ms_" and a secret */
    MSS_HASH_BYTES = 32,
    MSS_HASH_TEXT_BYTES = 65, /* in hexadecimal, NUL */
};

/* Names an object. Not a secret. */
typedef struct mss_id {
    char text[MSS_ID_BYTES];
} mss_id;

typedef struct mss_hash {
    unsigned char bytes[MSS_HASH_BYTES];
} mss_hash;

/* Call once per process, before any other function here. MS_ESYSTEM if there is no source of random numbers. */
MS_NODISCARD int mss_secret_start(ms_error *err);

/* A new identifier. `kind` is its first letter: a account, t team, k token, r run, i invitation, j job. */
mss_id mss_id_new(char kind);

/* The identifier in `text`; empty if it can't be one. */
mss_id mss_id_of(const char *text);

static inline bool mss_id_is(const mss_id *id)
{
    return id->text[0] != '\0';
}

/* A new secret of 256 random bits. */
void mss_secret_new(char secret[MSS_SECRET_BYTES]);

/* A secret for a person to write down and type: 16 characters of base32 (80 random bits) in groups of four, NUL. */
typedef struct mss_short_code {
    char text[20];
} mss_short_code;
void mss_short_code_new(mss_short_code *code);

/* Reads a code that a person typed: letters become lower case, blanks and dashes go, and letters that look like 1 and 0
 * become these. The result is empty if it is longer than any code. */
typedef struct mss_typed_code {
    char text[17];
} mss_typed_code;
void mss_code_read(const char *typed, mss_typed_code *code);

/* BLAKE2b of some bytes: stored in place of a secret, and the digest of a request. */
mss_hash mss_hash_of(const void *data, size_t bytes);

/* BLAKE2b keyed with `key`, in hexadecimal: the CSRF token of a session. */
void mss_hash_keyed(const mss_hash *key, const char *text, char hex[MSS_HASH_TEXT_BYTES]);

void mss_hash_text(const mss_hash *hash, char hex[MSS_HASH_TEXT_BYTES]);

/* Whether they are equal. The time taken does not tell where they differ. */
bool mss_secret_equal(const char *a, const char *b);

/* Overwrites memory that held a secret. The compiler can't remove this. */
void mss_secret_wipe(void *memory, size_t bytes);

#endif
