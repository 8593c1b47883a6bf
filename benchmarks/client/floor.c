/* What it costs at least to read every chunk of a stream: epoll and recv, and nothing else.
 *
 *   floor PORT STREAMS TOKENS REQUESTS
 *
 * Closed loop on loopback like the clients of compare.py, against mock_server.c. No HTTP is parsed: the end of an answer
 * is told by its last five bytes, the first token is the second read of an answer. Prints the TTFT's p50 and p99 as JSON,
 * by the time of the read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct stream { int fd, reads; double sent; };

static char request[1024], buffer[65536];
static int request_size, waiting, active;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static void ask(struct stream *s) {
    if (!waiting) return;
    waiting--;
    active++;
    s->reads = 0;
    s->sent = now_ms();
    if (send(s->fd, request, request_size, 0) != request_size) { perror("send"); exit(1); }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments) {
    if (count != 5) { fprintf(stderr, "floor PORT STREAMS TOKENS REQUESTS\n"); return 2; }
    int streams = atoi(arguments[2]), requests = waiting = atoi(arguments[4]), found = 0, yes = 1;
    char body[256];
    int size = sprintf(body, "{\"model\":\"mock\",\"prompt\":[1,2,3,4,5,6,7,8,9,10],\"max_tokens\":%d,\"stream\":true,"
                       "\"stream_options\":{\"include_usage\":true}}", atoi(arguments[3]));
    request_size = sprintf(request, "POST /v1/completions HTTP/1.1\r\nhost: mock\r\ncontent-length: %d\r\n\r\n%s", size, body);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { files.rlim_cur = files.rlim_max; setrlimit(RLIMIT_NOFILE, &files); }
    double *ttft = calloc(requests, sizeof *ttft);
    struct stream *all = calloc(streams, sizeof *all);
    struct epoll_event events[1024];
    int poller = epoll_create1(0);
    for (int i = 0; i < streams; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        all[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(all[i].fd, (struct sockaddr *)&at, sizeof at)) { perror("connect"); return 1; }
        setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(all[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.ptr = &all[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &e);
    }
    for (int i = 0; i < streams; i++) ask(&all[i]);
    while (active) {
        int ready = epoll_wait(poller, events, 1024, -1);
        for (int i = 0; i < ready; i++) {
            struct stream *s = events[i].data.ptr;
            ssize_t got = recv(s->fd, buffer, sizeof buffer, 0);
            if (got <= 0) { fprintf(stderr, "the server closed a connection\n"); return 1; }
            if (++s->reads == 2) ttft[found++] = now_ms() - s->sent;
            if (got < 5 || memcmp(buffer + got - 5, "0\r\n\r\n", 5)) continue;
            active--;
            ask(s);
        }
    }
    if (!found) { fprintf(stderr, "no first token was seen\n"); return 1; }
    qsort(ttft, found, sizeof *ttft, ascending);
    printf("{\"median_ttft_ms\": %.3f, \"p99_ttft_ms\": %.3f}\n", ttft[found / 2], ttft[(int)(0.99 * (found - 1))]);
    return 0;
}
