/* A deterministic OpenAI-compatible server that streams, for measuring load clients.
 *
 * One thread, epoll. Every active request gets its first token TTFT after it has been read completely and one token at
 * every following step; all requests step together, as in an engine. Times of every request (received, first write, last
 * write; CLOCK_MONOTONIC nanoseconds) are kept and served, so a client's figures can be compared with the truth.
 *
 *   mock_server PORT TTFT_US STEP_US      PORT 0 takes a free one; the port is printed
 *   GET /health, /v1/models, /metrics
 *   GET /log                              one line a request: received,first,last,tokens,read
 *   GET /reset                            forget the log
 *   POST /v1/completions, /v1/chat/completions
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 16384
#define CHUNK_SIZE 512
#define FRAMED (CHUNK_SIZE + 16)

struct entry { int64_t received, first, last, read; int tokens; };

struct connection {
    int fd, active, chat, wants_usage, left, total, prompt, waiting_out;
    int64_t arrived;           /* when the last byte that was read came in */
    int64_t due;               /* when the next token is due; INT64_MAX: at the next step */
    size_t in_size, in_cap, out_size, out_at, out_cap;
    char *in, *out;
    long entry;                /* row of the log */
    int place;                 /* position among the active ones, -1 for none */
};

static struct connection *active[MAX_CONNECTIONS];
static int active_count, poller;
static struct entry *book;
static long book_size, book_cap, generated, prompted;
static int64_t ttft_ns = 50000000, step_ns = 20000000;
static char token_chunk[2][FRAMED], last_chunk[2][FRAMED], role_chunk[FRAMED];

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static void *grown(void *memory, size_t size) {
    void *found = realloc(memory, size);
    if (!found) { perror("realloc"); exit(1); }
    return found;
}

/* One HTTP chunk with one server-sent event. */
static int as_chunk(char *to, const char *event) {
    return sprintf(to, "%zx\r\n%s\r\n", strlen(event), event);
}

static void prepare(void) {
    char event[CHUNK_SIZE];
    const char *head = "\"created\":1764400000,\"model\":\"mock\",\"choices\":[{\"index\":0,";
    for (int last = 0; last < 2; last++) {
        const char *end = last ? "\"length\"" : "null";
        sprintf(event, "data: {\"id\":\"cmpl-8f2c1d3e4b5a69788f2c1d3e4b5a6978\",\"object\":\"text_completion\",%s\"text\":\" the\","
                "\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null}],\"usage\":null}\n\n", head, end);
        as_chunk(last ? last_chunk[0] : token_chunk[0], event);
        sprintf(event, "data: {\"id\":\"chatcmpl-8f2c1d3e4b5a69788f2c1d3e4b5a6978\",\"object\":\"chat.completion.chunk\",%s"
                "\"delta\":{\"content\":\" the\"},\"logprobs\":null,\"finish_reason\":%s}]}\n\n", head, end);
        as_chunk(last ? last_chunk[1] : token_chunk[1], event);
    }
    sprintf(event, "data: {\"id\":\"chatcmpl-8f2c1d3e4b5a69788f2c1d3e4b5a6978\",\"object\":\"chat.completion.chunk\",%s"
            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", head);
    as_chunk(role_chunk, event);
}

static void watch(struct connection *c, int out) {
    if (c->waiting_out == out) return;
    c->waiting_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void deactivate(struct connection *c) {
    if (c->place < 0) return;
    struct connection *moved = active[--active_count];
    active[c->place] = moved;
    moved->place = c->place;
    c->place = -1;
}

static void drop(struct connection *c) {
    deactivate(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

/* Send now what the socket takes, keep the rest. Errors show up as EPOLLHUP later. */
static void put(struct connection *c, const char *data, size_t size) {
    if (c->out_size == c->out_at) {
        c->out_size = c->out_at = 0;
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == (ssize_t)size) return;
        if (sent > 0) { data += sent; size -= sent; }
        else if (sent < 0 && errno != EAGAIN) return;
    }
    if (c->out_size + size > c->out_cap) c->out = grown(c->out, c->out_cap = 2 * (c->out_size + size));
    memcpy(c->out + c->out_size, data, size);
    c->out_size += size;
    watch(c, 1);
}

static void flush(struct connection *c) {
    while (c->out_at < c->out_size) {
        ssize_t sent = send(c->fd, c->out + c->out_at, c->out_size - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) return;
        c->out_at += sent;
    }
    c->out_at = c->out_size = 0;
    watch(c, 0);
}

static void answer(struct connection *c, const char *status, const char *type, const char *body, size_t size) {
    char head[256];
    int length = sprintf(head, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", status, type, size);
    put(c, head, length);
    put(c, body, size);
}

static long number_after(const char *body, const char *key) {
    const char *at = strstr(body, key);
    if (!at) return -1;
    at += strlen(key);
    while (*at == ' ' || *at == ':' || *at == '"') at++;
    return atol(at);
}

/* Token ids are counted by their commas, text by its blanks. */
static int prompt_tokens(const char *body) {
    const char *at = strstr(body, "\"prompt\"");
    int count = 1;
    if (!at) return 10;
    at = strpbrk(at + 8, "[\"");
    if (!at) return count;
    char end = *at == '[' ? ']' : '"', mark = *at == '[' ? ',' : ' ';
    for (at++; *at && *at != end; at++) count += *at == mark;
    return count;
}

static void begin_stream(struct connection *c, const char *body, int chat) {
    long tokens = number_after(body, "\"max_completion_tokens\"");
    if (tokens <= 0) tokens = number_after(body, "\"max_tokens\"");
    if (tokens <= 0) tokens = 16;
    c->prompt = prompt_tokens(body);
    prompted += c->prompt;
    if (!strstr(body, "\"stream\":true") && !strstr(body, "\"stream\": true")) {
        char reply[512];
        const char *text = chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"the\"}" : "\"text\":\"the\"";
        int size = sprintf(reply, "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"mock\",\"choices\":"
                           "[{\"index\":0,%s,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%d,"
                           "\"completion_tokens\":%ld,\"total_tokens\":%ld}}", text, c->prompt, tokens, c->prompt + tokens);
        generated += tokens;
        answer(c, "200 OK", "application/json", reply, size);
        return;
    }
    if (book_size == book_cap) book = grown(book, (book_cap = book_cap ? 2 * book_cap : 4096) * sizeof *book);
    c->entry = book_size++;
    book[c->entry] = (struct entry){.received = c->arrived, .read = now_ns()};
    c->chat = chat;
    c->left = c->total = tokens;
    c->wants_usage = strstr(body, "include_usage") != NULL;
    c->due = book[c->entry].read + ttft_ns;
    static const char head[] = "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
        "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    put(c, head, sizeof head - 1);
    c->place = active_count;
    active[active_count++] = c;
}

static void send_log(struct connection *c) {
    char *text = grown(NULL, 64 + book_size * 100);
    size_t size = 0;
    text[0] = 0;
    for (long i = 0; i < book_size; i++)
        size += sprintf(text + size, "%lld,%lld,%lld,%d,%lld\n", (long long)book[i].received, (long long)book[i].first,
                        (long long)book[i].last, book[i].tokens, (long long)book[i].read);
    answer(c, "200 OK", "text/plain", text, size);
    free(text);
}

static void handle(struct connection *c, const char *head, char *body, size_t size) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1,"
        "\"owned_by\":\"mock\",\"root\":\"mock\",\"max_model_len\":131072}]}";
    char saved = body[size], text[256];
    body[size] = 0;
    if (!strncmp(head, "POST /v1/completions", 20)) begin_stream(c, body, 0);
    else if (!strncmp(head, "POST /v1/chat/completions", 25)) begin_stream(c, body, 1);
    else if (!strncmp(head, "GET /v1/models", 14)) answer(c, "200 OK", "application/json", models, sizeof models - 1);
    else if (!strncmp(head, "GET /health", 11)) answer(c, "200 OK", "application/json", "{}", 2);
    else if (!strncmp(head, "GET /log", 8)) send_log(c);
    else if (!strncmp(head, "GET /reset", 10)) { book_size = 0; answer(c, "200 OK", "application/json", "{}", 2); }
    else if (!strncmp(head, "GET /metrics", 12)) {
        int length = sprintf(text, "vllm:generation_tokens_total %ld\nvllm:prompt_tokens_total %ld\n"
                             "vllm:num_requests_running %d\n", generated, prompted, active_count);
        answer(c, "200 OK", "text/plain", text, length);
    } else answer(c, "404 Not Found", "application/json", "{}", 2);
    body[size] = saved;
}

/* As recv; notes when the kernel got the last byte. */
static ssize_t receive(struct connection *c, char *to, size_t room) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec vector = {.iov_base = to, .iov_len = room};
    struct msghdr head = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->fd, &head, 0);
    if (got <= 0) return got;
    int64_t now = now_ns();
    struct cmsghdr *found = CMSG_FIRSTHDR(&head);
    c->arrived = now;
    if (found && found->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(found), sizeof t);
        int64_t age = clock_ns(CLOCK_REALTIME) - (t.tv_sec * 1000000000LL + t.tv_nsec);
        if (age > 0 && age < 10000000000LL) c->arrived = now - age;
    }
    return got;
}

static void take_input(struct connection *c) {
    for (;;) {
        if (c->in_size + 65536 + 1 > c->in_cap) c->in = grown(c->in, c->in_cap = 2 * c->in_cap + 65537);
        ssize_t got = receive(c, c->in + c->in_size, 65536);
        if (got == 0 || (got < 0 && errno != EAGAIN)) { drop(c); return; }
        if (got < 0) break;
        c->in_size += got;
    }
    for (;;) {
        char *end = memmem(c->in, c->in_size, "\r\n\r\n", 4);
        if (!end) return;
        size_t head = end + 4 - c->in, body = 0;
        *end = 0;
        char *line = strcasestr(c->in, "content-length:");
        if (line) body = strtoul(line + 15, NULL, 10);
        if (c->in_size < head + body) { *end = '\r'; return; }
        handle(c, c->in, c->in + head, body);
        memmove(c->in, c->in + head + body, c->in_size -= head + body);
    }
}

static void end_stream(struct connection *c, int64_t now) {
    char event[CHUNK_SIZE], chunk[2 * FRAMED];
    int size = 0;
    if (c->wants_usage) {
        sprintf(event, "data: {\"id\":\"cmpl-8f2c1d3e4b5a69788f2c1d3e4b5a6978\",\"object\":\"text_completion\",\"created\":1764400000,"
                "\"model\":\"mock\",\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
                "\"completion_tokens\":%d}}\n\n", c->prompt, c->prompt + c->total, c->total);
        size = as_chunk(chunk, event);
    }
    size += as_chunk(chunk + size, "data: [DONE]\n\n");
    memcpy(chunk + size, "0\r\n\r\n", 5);
    put(c, chunk, size + 5);
    book[c->entry].last = now;
    book[c->entry].tokens = c->total;
    deactivate(c);
}

/* One engine step: a token for every request that is due. */
static void step(void) {
    for (int i = active_count - 1; i >= 0; i--) {
        struct connection *c = active[i];
        int64_t now = now_ns();
        if (c->due > now) continue;
        if (c->left == c->total) {
            if (c->entry < book_size) book[c->entry].first = now;
            if (c->chat) put(c, role_chunk, strlen(role_chunk));
        }
        const char *chunk = --c->left ? token_chunk[c->chat] : last_chunk[c->chat];
        generated++;
        put(c, chunk, strlen(chunk));
        c->due = INT64_MAX;
        if (!c->left) end_stream(c, now);
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&at, size) || listen(fd, 4096)) { perror("bind"); exit(1); }
    getsockname(fd, (struct sockaddr *)&at, &size);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void accept_all(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
        struct connection *c = calloc(1, sizeof *c);
        if (!c) exit(1);
        c->fd = fd;
        c->place = -1;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

int main(int count, char **arguments) {
    struct rlimit files;
    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { files.rlim_cur = files.rlim_max; setrlimit(RLIMIT_NOFILE, &files); }
    if (count > 2) ttft_ns = atoll(arguments[2]) * 1000;
    if (count > 3) step_ns = atoll(arguments[3]) * 1000;
    prepare();
    poller = epoll_create1(0);
    int listener = listen_on(count > 1 ? atoi(arguments[1]) : 0);
    struct epoll_event events[512], e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    int64_t next = now_ns() + step_ns;
    for (;;) {
        int64_t soonest = next;
        for (int i = 0; i < active_count; i++)
            if (active[i]->due < soonest) soonest = active[i]->due;
        int64_t wait = soonest - now_ns();
        int timeout = wait <= 0 ? 0 : (int)(wait / 1000000);
        int ready = epoll_wait(poller, events, 512, timeout);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) { accept_all(listener); continue; }
            if (events[i].events & EPOLLOUT) flush(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_input(c);
        }
        if (now_ns() >= next) {           /* the step of everybody who has begun */
            for (int i = 0; i < active_count; i++)
                if (active[i]->left < active[i]->total) active[i]->due = 0;
            next += step_ns;
            if (now_ns() > next) next = now_ns() + step_ns;
        }
        step();
    }
}
