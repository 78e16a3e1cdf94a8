/* What the tests run as a container's first process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "exit")) return atoi(argv[2]);
    if (argc > 1 && !strcmp(argv[1], "serve")) {
        /* says its pid and uid over descriptor 4, then ends with what comes back */
        char buf[64];
        int n = snprintf(buf, sizeof buf, "pid %d uid %d", getpid(), getuid());
        if (write(4, buf, n) != n || read(4, buf, 1) != 1) return 99;
        return buf[0];
    }
    for (;;) pause();
}
