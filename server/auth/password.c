#include "auth/password.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"

_Static_assert((int)MSS_PASSWORD_HASH_BYTES >= (int)crypto_pwhash_STRBYTES, "room for libsodium's text");

int mss_password_hash(const char *password, char hash[MSS_PASSWORD_HASH_BYTES], ms_error *err)
{
    if (crypto_pwhash_str(hash, password, strlen(password), crypto_pwhash_OPSLIMIT_INTERACTIVE,
                          crypto_pwhash_MEMLIMIT_INTERACTIVE) != 0) {
        return ms_fail(err, MS_ENOMEM, "password: out of memory for Argon2id");
    }
    return MS_OK;
}

static char nobodys_hash[crypto_pwhash_STRBYTES];

static void make_nobodys_hash(void)
{
    if (mss_password_hash("nobody's", nobodys_hash, NULL) != MS_OK) {
        nobodys_hash[0] = '\0';
    }
}

bool mss_password_check(const char *password, const char *hash)
{
    static ms__once once = MS__ONCE_INIT;
    ms__once_run(&once, make_nobodys_hash);
    bool is_somebody = hash[0] != '\0';
    bool is_equal = crypto_pwhash_str_verify(is_somebody ? hash : nobodys_hash, password, strlen(password)) == 0;
    return is_somebody && is_equal;
}
