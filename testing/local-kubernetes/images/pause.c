/* The pause container: holds a pod's namespaces open, reaps orphans as its first process, ends on request. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction action = {0};
    action.sa_handler = end;
    if (sigaction(SIGINT, &action, 0) || sigaction(SIGTERM, &action, 0)) return 1;
    action.sa_handler = reap;
    action.sa_flags = SA_NOCLDSTOP;
    if (sigaction(SIGCHLD, &action, 0)) return 1;
    for (;;) pause();
}
