/* What peers stand before: an OpenAI server that generates as a batching engine does.
 *
 *   engine
 *
 * It prints the port that it listens on, and ends with its standard input. One thread, epoll,
 * HTTP/1.1. At every step each running stream gets one token, in one send(); the first token comes
 * at once. `GET /pace?us=20000` sets the time between steps; with 0 there is one after the other. What is not
 * streamed is answered at once. The body's "max_tokens" is how many tokens there are, and each is
 * `@T` and ten digits, the microseconds of CLOCK_MONOTONIC modulo 2^31.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ASKED = 65536, EVENTS = 512 };

#define FIELDS                                                                             \
    "\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"created\":1760000000,"          \
    "\"model\":\"scripted\","

#define MODEL "{\"object\":\"list\",\"data\":[{\"id\":\"scripted\",\"object\":\"model\"," \
    "\"created\":1760000000,\"owned_by\":\"vllm\",\"max_model_len\":32768}]}"

/* What routers ask before they send anything here. */
static const char *const ABOUT[][2] = {
    {"/v1/models", MODEL},
    {"/models", MODEL},
    {"/get_model_info", "{\"model_path\":\"scripted\",\"is_generation\":true}"},
    {"/model_info", "{\"model_path\":\"scripted\",\"is_generation\":true}"},
    {"/get_server_info", "{\"model_path\":\"scripted\",\"served_model_name\":\"scripted\","
                         "\"version\":\"0\",\"dp_size\":1,\"tp_size\":1}"},
    {"/server_info", "{\"model_path\":\"scripted\",\"served_model_name\":\"scripted\","
                     "\"version\":\"0\",\"dp_size\":1,\"tp_size\":1}"},
    {"/version", "{\"version\":\"0.10.0\"}"},
};

typedef struct {
    int socket;
    int broken;
    char asked[ASKED + 1];
    int asked_length;
    long tokens_left; /* of the stream that runs; 0: none does */
    int place;        /* among those that run */
    char *unsent;
    size_t unsent_length, unsent_size;
} Connection;

static Connection **running;
static int running_count, running_size;
static int poll_fd;
static long pace_us;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* ---- sending ---- */

static void watch(Connection *connection, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    epoll_ctl(poll_fd, operation, connection->socket, &event);
}

static void say(Connection *connection, const char *data, size_t length) {
    if (!connection->unsent_length) {
        ssize_t sent = send(connection->socket, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            connection->broken = 1;
            return;
        }
        size_t done = sent > 0 ? (size_t)sent : 0;
        if (done == length) return;
        data += done;
        length -= done;
        watch(connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
    if (connection->unsent_length + length > connection->unsent_size) {
        connection->unsent_size = 2 * (connection->unsent_length + length);
        connection->unsent = realloc(connection->unsent, connection->unsent_size);
    }
    memcpy(connection->unsent + connection->unsent_length, data, length);
    connection->unsent_length += length;
}

static void say_rest(Connection *connection) {
    ssize_t sent =
        send(connection->socket, connection->unsent, connection->unsent_length, MSG_NOSIGNAL);
    if (sent < 0) {
        connection->broken = errno != EAGAIN;
        return;
    }
    connection->unsent_length -= (size_t)sent;
    memmove(connection->unsent, connection->unsent + sent, connection->unsent_length);
    if (!connection->unsent_length) watch(connection, EPOLL_CTL_MOD, EPOLLIN);
}

static void reply(Connection *connection, const char *body) {
    char *answer;
    int length = asprintf(&answer,
                          "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                          "content-length: %zu\r\n\r\n%s",
                          strlen(body), body);
    say(connection, answer, (size_t)length);
    free(answer);
}

/* ---- generating ---- */

static void end_stream(Connection *connection) {
    if (!connection->tokens_left) return;
    connection->tokens_left = 0;
    Connection *last = running[--running_count];
    running[last->place = connection->place] = last;
}

static void generate(Connection *connection, int first) {
    static const char HEAD[] =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    static const char END[] =
        "data: {" FIELDS "\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,"
        "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    char event[512], data[2048];
    int length = sprintf(event,
                         "data: {" FIELDS "\"object\":\"chat.completion.chunk\",\"choices\":"
                         "[{\"index\":0,\"delta\":{\"content\":\"@T%010u \"},\"logprobs\":null,"
                         "\"finish_reason\":null}]}\n\n",
                         (uint32_t)now_us() & 0x7fffffffu);
    int total = sprintf(data, "%s%x\r\n%s\r\n", first ? HEAD : "", length, event);
    if (connection->tokens_left == 1) {
        total += sprintf(data + total, "%zx\r\n%s\r\n0\r\n\r\n", sizeof END - 1, END);
        end_stream(connection);
    } else {
        connection->tokens_left--;
    }
    say(connection, data, (size_t)total);
}

static void begin_stream(Connection *connection, long tokens) {
    if (running_count == running_size) {
        running_size = running_size ? 2 * running_size : 64;
        running = realloc(running, (size_t)running_size * sizeof *running);
    }
    connection->tokens_left = tokens;
    running[connection->place = running_count++] = connection;
    generate(connection, 1);
}

static void answer_whole(Connection *connection, long tokens) {
    char *text = calloc((size_t)tokens + 1, 4), *body;
    for (long i = 0; i < tokens; i++) memcpy(text + 4 * i, " tok", 4);
    if (asprintf(&body,
                 "{" FIELDS "\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":"
                 "{\"role\":\"assistant\",\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":"
                 "\"stop\"}],\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":%ld,"
                 "\"total_tokens\":%ld}}",
                 text, tokens, tokens + 200) > 0)
        reply(connection, body);
    free(text);
    free(body);
}

/* ---- reading ---- */

static long number_after(const char *text, const char *name, long otherwise) {
    const char *found = strstr(text, name);
    if (!found) return otherwise;
    found += strlen(name);
    return strtol(found + strspn(found, " :=\""), NULL, 10);
}

static void chat(Connection *connection, const char *body) {
    long tokens = number_after(body, "\"max_tokens\"", 0);
    if (!tokens) tokens = number_after(body, "\"max_completion_tokens\"", 16);
    if (tokens < 1) tokens = 1;
    const char *stream = strstr(body, "\"stream\"");
    if (stream) stream += 8 + strspn(stream + 8, " :");
    if (stream && !strncmp(stream, "true", 4)) begin_stream(connection, tokens);
    else answer_whole(connection, tokens);
}

static void tell(Connection *connection, char *path) {
    if (!strncmp(path, "/pace", 5)) pace_us = number_after(path, "us=", 0);
    for (size_t i = 0; i < sizeof ABOUT / sizeof *ABOUT; i++)
        if (!strncmp(path, ABOUT[i][0], strlen(ABOUT[i][0]))) {
            reply(connection, ABOUT[i][1]);
            return;
        }
    reply(connection, "{\"status\":\"ok\"}");
}

/* Join a chunked body where it lies; returns where the request ends, or 0 if it is not whole. */
static int join_chunks(char *data, int length, int *body_length) {
    int at = 0, joined = 0;
    for (;;) {
        char *line = memmem(data + at, (size_t)(length - at), "\r\n", 2);
        if (!line) return 0;
        int size = (int)strtol(data + at, NULL, 16);
        at = (int)(line - data) + 2;
        if (at + size + 2 > length) return 0;
        if (!size) {
            *body_length = joined;
            return at + 2;
        }
        memmove(data + joined, data + at, (size_t)size);
        joined += size;
        at += size + 2;
    }
}

/* Answer one request, if it is whole; returns 1 if it was. */
static int take_request(Connection *connection) {
    if (connection->tokens_left) return 0;
    connection->asked[connection->asked_length] = 0;
    char *end = strstr(connection->asked, "\r\n\r\n");
    if (!end) return 0;
    char *body = end + 4;
    int after = connection->asked_length - (int)(body - connection->asked);
    end[2] = 0;
    char *chunked = strcasestr(connection->asked, "\r\ntransfer-encoding:");
    char *sized = strcasestr(connection->asked, "\r\ncontent-length:");
    end[2] = '\r';
    int length = sized ? atoi(sized + 17) : 0, used = length;
    if (chunked) {
        char *copy = memcpy(malloc((size_t)after + 1), body, (size_t)after);
        used = join_chunks(copy, after, &length);
        if (used) memcpy(body, copy, (size_t)length);
        free(copy);
        if (!used) return 0;
    } else if (after < length) {
        return 0;
    }
    char *text = strndup(body, (size_t)length);
    if (!strncmp(connection->asked, "POST ", 5)) chat(connection, text);
    else tell(connection, connection->asked + 4);
    free(text);
    connection->asked_length = after - used;
    memmove(connection->asked, body + used, (size_t)connection->asked_length);
    return 1;
}

static void receive(Connection *connection) {
    ssize_t length = recv(connection->socket, connection->asked + connection->asked_length,
                          (size_t)(ASKED - connection->asked_length), 0);
    if (length > 0) connection->asked_length += (int)length;
    else if (length == 0 || errno != EAGAIN) connection->broken = 1;
    while (!connection->broken && take_request(connection)) {}
}

/* ---- the loop ---- */

static void take_connections(int listening) {
    int yes = 1;
    for (int taken; (taken = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        Connection *connection = calloc(1, sizeof *connection);
        connection->socket = taken;
        watch(connection, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void drop(Connection *connection) {
    end_stream(connection);
    close(connection->socket);
    free(connection->unsent);
    free(connection);
}

static void on_event(Connection *connection, uint32_t events) {
    if (events & EPOLLOUT) say_rest(connection);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
    if (connection->broken) drop(connection);
}

static int any_runs(void) {
    for (int i = 0; i < running_count; i++)
        if (!running[i]->unsent_length) return 1;
    return 0;
}

/* A token for each stream whose reader is not behind; from the end, since streams end. */
static void step(void) {
    for (int i = running_count - 1; i >= 0; i--) {
        Connection *connection = running[i];
        if (connection->unsent_length) continue;
        generate(connection, 0);
        while (!connection->broken && take_request(connection)) {}
        if (connection->broken) drop(connection);
    }
}

static int open_socket(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listening, (struct sockaddr *)&address, length) || listen(listening, 1024) ||
        getsockname(listening, (struct sockaddr *)&address, &length)) {
        perror("engine");
        exit(1);
    }
    *port = ntohs(address.sin_port);
    return listening;
}

int main(void) {
    int port, listening = open_socket(&port), owner = STDIN_FILENO;
    struct epoll_event events[EVENTS];
    struct epoll_event on_listening = {.events = EPOLLIN, .data.ptr = &listening};
    struct epoll_event on_owner = {.events = EPOLLIN | EPOLLHUP, .data.ptr = &owner};
    signal(SIGPIPE, SIG_IGN);
    poll_fd = epoll_create1(0);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listening, &on_listening);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, owner, &on_owner);
    printf("%d\n", port);
    fflush(stdout);
    for (uint64_t due = now_us();;) {
        uint64_t now = now_us();
        struct timespec left = {3600, 0};
        if (any_runs()) {
            uint64_t us = pace_us && due > now ? due - now : 0;
            left = (struct timespec){(time_t)(us / 1000000u), (long)(us % 1000000u) * 1000};
        }
        int ready = epoll_pwait2(poll_fd, events, EVENTS, &left, NULL);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.ptr == &owner) return 0;
            if (events[i].data.ptr == &listening) take_connections(listening);
            else on_event(events[i].data.ptr, events[i].events);
        }
        now = now_us();
        if (pace_us && now < due) continue;
        uint64_t next = due + (uint64_t)pace_us;
        due = next > now ? next : now + (uint64_t)pace_us; /* what is late is not made up for */
        step();
    }
}
