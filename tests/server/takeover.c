/*
 * Preloaded into the real program by test_process.py: code that an attacker runs inside it. When the first answer is
 * given, on a thread that reads the network, it tries what the process may not do, and writes a line of JSON for each try
 * to standard error: the errno that it met, 0 if it was let.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell(const char *attack, int is_done)
{
    char line[200];
    int number = is_done ? 0 : errno;
    int length = snprintf(line, sizeof line, "{\"attack\":\"%s\",\"errno\":%d}\n", attack, number);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written;
}

static void attack(void)
{
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, "127.0.0.1", &home.sin_addr);
    tell("write elsewhere", open(getenv("MEMSCALE_TEST_ELSEWHERE"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600) >= 0);
    int line = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    tell("call home", connect(line, (struct sockaddr *)&home, sizeof home) == 0);
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    tell("listen elsewhere", listen(door, 1) == 0);
    tell("hide a program in memory", syscall(SYS_memfd_create, "x", 0) >= 0);
    tell("write code",
         mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
}

/* The name and type of libmicrohttpd's function; its types are not needed here. */
int MHD_queue_response(void *connection, unsigned status, void *response);
int MHD_queue_response(void *connection, unsigned status, void *response)
{
    static atomic_flag is_done = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&is_done)) {
        attack();
    }
    int (*own)(void *, unsigned, void *);
    *(void **)&own = dlsym(RTLD_NEXT, "MHD_queue_response");
    return own(connection, status, response);
}
