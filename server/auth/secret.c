#include "auth/secret.h"

#include <sodium.h>
#include <string.h>

enum { ID_RANDOM_BYTES = 10, SECRET_RANDOM_BYTES = 32 };

int mss_secret_start(ms_error *err)
{
    return sodium_init() >= 0 ? MS_OK : ms_fail(err, MS_ESYSTEM, "libsodium could not be started");
}

/* Lower-case base32 without the letters that are taken for digits (Crockford's). */
static size_t write_base32(char *to, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";
    size_t length = 0;
    uint32_t bits = 0, held = 0;
    for (size_t i = 0; i < count; i++) {
        bits = bits << 8 | bytes[i];
        for (held += 8; held >= 5; held -= 5) {
            to[length++] = digits[bits >> (held - 5) & 31];
        }
    }
    if (held > 0) {
        to[length++] = digits[bits << (5 - held) & 31];
    }
    to[length] = '\0';
    return length;
}

mss_id mss_id_new(char kind)
{
    mss_id id = {{kind}};
    unsigned char bytes[ID_RANDOM_BYTES];
    randombytes_buf(bytes, sizeof bytes);
    write_base32(id.text + 1, bytes, sizeof bytes);
    return id;
}

mss_id mss_id_of(const char *text)
{
    mss_id id = {""};
    size_t length = text != NULL ? strlen(text) : 0;
    if (length == 17 && strspn(text, "0123456789abcdefghijklmnopqrstuvwxyz") == length) {
        memcpy(id.text, text, length + 1);
    }
    return id;
}

void mss_secret_new(char secret[MSS_SECRET_BYTES])
{
    unsigned char bytes[SECRET_RANDOM_BYTES];
    randombytes_buf(bytes, sizeof bytes);
    write_base32(secret, bytes, sizeof bytes);
    sodium_memzero(bytes, sizeof bytes);
}

void mss_short_code_new(mss_short_code *code)
{
    enum { GROUPS = 4, GROUP_LETTERS = 4 };
    unsigned char bytes[ID_RANDOM_BYTES];
    char letters[GROUPS * GROUP_LETTERS + 1];
    randombytes_buf(bytes, sizeof bytes);
    write_base32(letters, bytes, sizeof bytes);
    for (int i = 0; i < GROUPS; i++) {
        char *group = code->text + (size_t)i * (GROUP_LETTERS + 1);
        memcpy(group, letters + (size_t)i * GROUP_LETTERS, GROUP_LETTERS);
        group[GROUP_LETTERS] = i < GROUPS - 1 ? '-' : '\0';
    }
    sodium_memzero(bytes, sizeof bytes);
    sodium_memzero(letters, sizeof letters);
}

void mss_code_read(const char *typed, mss_typed_code *code)
{
    size_t length = 0;
    for (; *typed != '\0'; typed++) {
        char letter = *typed >= 'A' && *typed <= 'Z' ? (char)(*typed - 'A' + 'a') : *typed;
        if (letter == ' ' || letter == '-') {
            continue;
        }
        if (length + 1 == sizeof code->text) {
            length = 0;
            break;
        }
        code->text[length++] = letter == 'i' || letter == 'l' ? '1' : letter == 'o' ? '0' : letter;
    }
    code->text[length] = '\0';
}

mss_hash mss_hash_of(const void *data, size_t bytes)
{
    mss_hash hash;
    crypto_generichash(hash.bytes, sizeof hash.bytes, data, bytes, NULL, 0);
    return hash;
}

void mss_hash_keyed(const mss_hash *key, const char *text, char hex[MSS_HASH_TEXT_BYTES])
{
    mss_hash hash;
    crypto_generichash(hash.bytes, sizeof hash.bytes, (const unsigned char *)text, strlen(text), key->bytes,
                       sizeof key->bytes);
    mss_hash_text(&hash, hex);
}

void mss_hash_text(const mss_hash *hash, char hex[MSS_HASH_TEXT_BYTES])
{
    sodium_bin2hex(hex, MSS_HASH_TEXT_BYTES, hash->bytes, sizeof hash->bytes);
}

bool mss_secret_equal(const char *a, const char *b)
{
    size_t length = strlen(a);
    return length == strlen(b) && sodium_memcmp(a, b, length) == 0;
}

void mss_secret_wipe(void *memory, size_t bytes)
{
    sodium_memzero(memory, bytes);
}
