/* A load for the OpenAI API that is not the bottleneck: one thread, epoll, HTTP/1.1 on this machine.
 *
 *   OPENAI_API_KEY=... loadgen --port P --body FILE --connections N
 *           --ramp-ms MS --warm-ms MS --window-ms MS [--process NAME:PID,PID]...
 *
 * Each connection asks again as soon as it is answered. They begin one after the other over the ramp;
 * after the ramp and the warm time follows the window, in which everything is measured.
 *
 * What is printed is one JSON object: requests, chunks (`data: {`) and tokens of the window, times in
 * microseconds, and of each named group of processes the seconds that their threads ran in exactly
 * the window (/proc/PID/task/TID/schedstat) and their resident memory at its two ends.
 *
 * A token is a stamp: `@T` and ten digits, the microseconds of CLOCK_MONOTONIC modulo 2^31 at which
 * the engine made it. So the delay of a token is known however many of them share a chunk.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    BUCKETS = 30000000, /* of one microsecond each; what takes longer counts as that */
    EVENTS = 512,
    GROUPS = 8,
    PIDS = 64,
    HEAD = 8192,
    LINE = 65536,
    RETRY_NS = 10000000,
    ERROR_LIMIT = 2000,
};

#define STAMP_MASK 0x7fffffffu

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- what is measured ---- */

typedef struct {
    uint32_t *buckets;
    uint64_t count;
    uint64_t most;
} Histogram;

static Histogram latency, first_token, gap, delay;

static void note(Histogram *times, uint64_t us) {
    if (!times->buckets && !(times->buckets = calloc(BUCKETS, sizeof *times->buckets)))
        die("out of memory");
    times->buckets[us < BUCKETS ? us : BUCKETS - 1]++;
    times->count++;
    if (us > times->most) times->most = us;
}

static uint64_t quantile(const Histogram *times, double share) {
    uint64_t wanted = (uint64_t)((double)times->count * share), seen = 0;
    for (uint64_t us = 0; us < BUCKETS; us++)
        if ((seen += times->buckets[us]) > wanted) return us;
    return BUCKETS;
}

static struct {
    uint64_t requests, chunks, tokens, errors, refused, cut;
} counts;

static uint64_t window_begins, window_ends;

static int measured(uint64_t now) { return now >= window_begins && now < window_ends; }

/* ---- processes ---- */

typedef struct {
    const char *name;
    int name_length;
    int pids[PIDS];
    int count;
    double ran_s[2];
    long resident_kib[2];
} Group;

static Group groups[GROUPS];
static int group_count;

static void add_group(char *text) {
    char *colon = strchr(text, ':');
    if (!colon || group_count == GROUPS) die("--process takes NAME:PID,PID");
    Group *group = &groups[group_count++];
    group->name = text;
    group->name_length = (int)(colon - text);
    for (char *pid = colon + 1; pid && *pid && group->count < PIDS;) {
        group->pids[group->count++] = atoi(pid);
        if ((pid = strchr(pid, ','))) pid++;
    }
}

/* Read a small file of /proc; it is empty once its process has ended. */
static const char *read_small(const char *path) {
    static char text[256];
    ssize_t length = 0;
    int file = open(path, O_RDONLY);
    if (file >= 0) {
        length = read(file, text, sizeof text - 1);
        close(file);
    }
    text[length > 0 ? length : 0] = 0;
    return text;
}

static double ran_s(int pid) {
    char path[320];
    double sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (!threads) return 0;
    for (struct dirent *thread; (thread = readdir(threads));) {
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, thread->d_name);
        sum += (double)strtoull(read_small(path), NULL, 10) / 1e9;
    }
    closedir(threads);
    return sum;
}

static long resident_kib(int pid) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    sscanf(read_small(path), "%*s %ld", &pages);
    return pages * (sysconf(_SC_PAGE_SIZE) / 1024);
}

static double own_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static double own[2];

static void look_at_processes(int end) {
    own[end] = own_s();
    for (Group *group = groups; group < groups + group_count; group++)
        for (int i = 0; i < group->count; i++) {
            group->ran_s[end] += ran_s(group->pids[i]);
            group->resident_kib[end] += resident_kib(group->pids[i]);
        }
}

/* ---- connections ---- */

typedef enum { WAITING, CONNECTING, ASKED } State;
typedef enum { SIZE, DATA, DATA_END, TRAILER } ChunkState;

typedef struct {
    int socket;
    State state;
    uint64_t due; /* when it connects, if it waits */
    int sent;

    uint64_t asked_at, last_chunk_at;
    int chunks;

    char head[HEAD];
    int head_length;
    int in_body, chunked, streamed, done;
    long left; /* of the body, or of an HTTP chunk; -1: until the connection ends */
    ChunkState chunk_state;
    char size[20];
    int size_length;

    char line[LINE];
    int line_length;
} Connection;

static char *request;
static int request_length;
static struct sockaddr_in address;
static int poll_fd;
static int waiting;

static void watch(Connection *connection, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    epoll_ctl(poll_fd, operation, connection->socket, &event);
}

static void connect_again(Connection *connection) {
    int yes = 1;
    connection->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connection->socket < 0) die("no more sockets: raise `ulimit -n`");
    setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)!connect(connection->socket, (struct sockaddr *)&address, sizeof address);
    connection->state = CONNECTING;
    watch(connection, EPOLL_CTL_ADD, EPOLLOUT);
}

static void wait_until(Connection *connection, uint64_t due) {
    connection->state = WAITING;
    connection->due = due;
    waiting++;
}

static void drop(Connection *connection, uint64_t now) {
    close(connection->socket);
    wait_until(connection, now);
}

static void fail(Connection *connection, uint64_t now) {
    if (++counts.errors > ERROR_LIMIT) die("%d connections failed", ERROR_LIMIT);
    drop(connection, now + RETRY_NS);
}

static void send_rest(Connection *connection) {
    ssize_t sent = send(connection->socket, request + connection->sent,
                        (size_t)(request_length - connection->sent), MSG_NOSIGNAL);
    if (sent > 0) connection->sent += (int)sent;
    if (connection->sent < request_length) watch(connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void ask(Connection *connection, uint64_t now) {
    connection->state = ASKED;
    connection->asked_at = connection->last_chunk_at = now;
    connection->sent = connection->chunks = 0;
    connection->head_length = connection->line_length = connection->size_length = 0;
    connection->in_body = connection->chunked = connection->streamed = connection->done = 0;
    connection->left = -1;
    connection->chunk_state = SIZE;
    send_rest(connection);
}

/* ---- answers ---- */

static void read_event(Connection *connection, char *event, uint64_t now) {
    if (*event == '[') {
        connection->done = 1;
        return;
    }
    if (*event != '{') return;
    if (measured(now)) {
        Histogram *times = connection->chunks ? &gap : &first_token;
        note(times, (now - connection->last_chunk_at) / 1000);
        counts.chunks++;
        for (char *stamp = event; (stamp = strstr(stamp, "@T")); stamp += 2) {
            uint32_t made = (uint32_t)strtoul(stamp + 2, NULL, 10);
            note(&delay, ((uint32_t)(now / 1000) - made) & STAMP_MASK);
            counts.tokens++;
        }
    }
    connection->chunks++;
    connection->last_chunk_at = now;
}

static void read_stream(Connection *connection, const char *data, long length, uint64_t now) {
    while (length > 0) {
        const char *end = memchr(data, '\n', (size_t)length);
        long piece = end ? end - data : length;
        long room = LINE - 1 - connection->line_length;
        long kept = piece < room ? piece : room;
        memcpy(connection->line + connection->line_length, data, (size_t)kept);
        connection->line_length += (int)kept;
        if (!end) return;
        connection->line[connection->line_length] = 0;
        if (!strncmp(connection->line, "data:", 5))
            read_event(connection, connection->line + 5 + strspn(connection->line + 5, " "), now);
        connection->line_length = 0;
        data = end + 1;
        length -= piece + 1;
    }
}

static void answered(Connection *connection, uint64_t now) {
    if (measured(now)) {
        counts.requests++;
        note(&latency, (now - connection->asked_at) / 1000);
        if (strncmp(connection->head + 8, " 200", 4)) counts.refused++;
        if (connection->streamed && !connection->done) counts.cut++;
    }
    ask(connection, now);
}

static const char *header(const char *head, const char *name) {
    for (const char *line = head; (line = strstr(line, "\r\n"));) {
        line += 2;
        if (!strncasecmp(line, name, strlen(name))) return line + strlen(name);
    }
    return NULL;
}

/* Take what belongs to the head; returns how many bytes did. */
static long read_head(Connection *connection, const char *data, long length) {
    long room = HEAD - 1 - connection->head_length;
    long kept = length < room ? length : room;
    int before = connection->head_length;
    memcpy(connection->head + before, data, (size_t)kept);
    connection->head_length += (int)kept;
    connection->head[connection->head_length] = 0;
    char *end = strstr(connection->head, "\r\n\r\n");
    if (!end) return length;
    end[2] = 0;
    connection->in_body = 1;
    const char *value = header(connection->head, "content-length:");
    if (value) connection->left = atol(value);
    value = header(connection->head, "transfer-encoding:");
    connection->chunked = value && !strncasecmp(value + strspn(value, " "), "chunked", 7);
    value = header(connection->head, "content-type:");
    connection->streamed = value && !strncmp(value + strspn(value, " "), "text/event-stream", 17);
    return end + 4 - (connection->head + before);
}

/* Take a piece of a chunked body; returns 1 when it is over. */
static int read_chunks(Connection *connection, const char *data, long length, uint64_t now) {
    while (length > 0) {
        if (connection->chunk_state == DATA) {
            long piece = length < connection->left ? length : connection->left;
            if (connection->streamed) read_stream(connection, data, piece, now);
            data += piece;
            length -= piece;
            if (!(connection->left -= piece)) connection->chunk_state = DATA_END;
            continue;
        }
        char byte = *data++;
        length--;
        if (byte != '\n') {
            if (connection->chunk_state == SIZE && connection->size_length < 18)
                connection->size[connection->size_length++] = byte;
        } else if (connection->chunk_state == SIZE) {
            connection->size[connection->size_length] = 0;
            connection->size_length = 0;
            connection->left = strtol(connection->size, NULL, 16);
            connection->chunk_state = connection->left ? DATA : TRAILER;
        } else if (connection->chunk_state == DATA_END) {
            connection->chunk_state = SIZE;
        } else {
            return 1;
        }
    }
    return 0;
}

static void read_answer(Connection *connection, const char *data, long length, uint64_t now) {
    if (!connection->in_body) {
        long head = read_head(connection, data, length);
        data += head;
        length -= head;
        if (!connection->in_body) return;
    }
    if (connection->chunked) {
        if (read_chunks(connection, data, length, now)) answered(connection, now);
        return;
    }
    if (connection->streamed) read_stream(connection, data, length, now);
    if (connection->left >= 0 && (connection->left -= length) <= 0) answered(connection, now);
}

static void receive(Connection *connection) {
    static char data[262144];
    ssize_t length = recv(connection->socket, data, sizeof data, 0);
    uint64_t now = now_ns();
    if (length > 0) {
        read_answer(connection, data, length, now);
    } else if (length == 0 && connection->in_body && !connection->chunked && connection->left < 0) {
        if (measured(now)) counts.requests++;
        drop(connection, now);
    } else if (length == 0 || errno != EAGAIN) {
        fail(connection, now);
    }
}

static void on_event(Connection *connection, uint32_t events) {
    if (connection->state == CONNECTING) {
        if (events & (EPOLLERR | EPOLLHUP)) {
            fail(connection, now_ns());
            return;
        }
        watch(connection, EPOLL_CTL_MOD, EPOLLIN);
        ask(connection, now_ns());
        return;
    }
    if (events & EPOLLOUT) {
        watch(connection, EPOLL_CTL_MOD, EPOLLIN);
        send_rest(connection);
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
}

/* ---- the run ---- */

static void run(Connection *connections, int count, uint64_t window_ns) {
    struct epoll_event events[EVENTS];
    int begun = 0;
    for (;;) {
        uint64_t now = now_ns();
        if (!begun && now >= window_begins) {
            look_at_processes(0);
            begun = 1;
            window_begins = now_ns();
            window_ends = window_begins + window_ns;
        }
        if (begun && now >= window_ends) {
            look_at_processes(1);
            return;
        }
        if (waiting)
            for (Connection *each = connections; each < connections + count; each++)
                if (each->state == WAITING && now >= each->due) {
                    waiting--;
                    connect_again(each);
                }
        uint64_t left_ms = ((begun ? window_ends : window_begins) - now) / 1000000 + 1;
        int longest_ms = waiting ? 1 : 20;
        int ready = epoll_wait(poll_fd, events, EVENTS,
                               left_ms < (uint64_t)longest_ms ? (int)left_ms : longest_ms);
        for (int i = 0; i < ready; i++) on_event(events[i].data.ptr, events[i].events);
    }
}

static void print_times(const char *name, const Histogram *times) {
    if (!times->count) {
        printf(", \"%s\": null", name);
        return;
    }
    printf(", \"%s\": {\"p50\": %llu, \"p99\": %llu, \"most\": %llu}", name,
           (unsigned long long)quantile(times, 0.5), (unsigned long long)quantile(times, 0.99),
           (unsigned long long)times->most);
}

static void print_result(void) {
    printf("{\"seconds\": %.6f", (double)(window_ends - window_begins) / 1e9);
    printf(", \"requests\": %llu, \"chunks\": %llu, \"tokens\": %llu",
           (unsigned long long)counts.requests, (unsigned long long)counts.chunks,
           (unsigned long long)counts.tokens);
    printf(", \"errors\": %llu, \"refused\": %llu, \"cut\": %llu, \"own_s\": %.6f",
           (unsigned long long)counts.errors, (unsigned long long)counts.refused,
           (unsigned long long)counts.cut, own[1] - own[0]);
    print_times("latency_us", &latency);
    print_times("first_token_us", &first_token);
    print_times("gap_us", &gap);
    print_times("delay_us", &delay);
    printf(", \"processes\": {");
    for (Group *group = groups; group < groups + group_count; group++)
        printf("%s\"%.*s\": {\"ran_s\": %.6f, \"resident_kib\": [%ld, %ld]}",
               group == groups ? "" : ", ", group->name_length, group->name,
               group->ran_s[1] - group->ran_s[0], group->resident_kib[0], group->resident_kib[1]);
    printf("}}\n");
}

static void make_request(int port, const char *body_path, const char *key) {
    char body[65536];
    int file = open(body_path, O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, body, sizeof body);
    if (length <= 0) die("cannot read %s", body_path);
    close(file);
    request_length = asprintf(&request,
                              "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                              "authorization: Bearer %s\r\ncontent-type: application/json\r\n"
                              "content-length: %zd\r\naccept: */*\r\n\r\n%.*s",
                              port, key, length, (int)length, body);
}

int main(int count, char **arguments) {
    int port = 0, connections = 1;
    long ramp_ms = 0, warm_ms = 1000, window_ms = 3000;
    const char *body = NULL, *key = getenv("OPENAI_API_KEY");
    for (int i = 1; i + 1 < count; i += 2) {
        char *name = arguments[i], *value = arguments[i + 1];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--body")) body = value;
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--ramp-ms")) ramp_ms = atol(value);
        else if (!strcmp(name, "--warm-ms")) warm_ms = atol(value);
        else if (!strcmp(name, "--window-ms")) window_ms = atol(value);
        else if (!strcmp(name, "--process")) add_group(value);
        else die("there is no %s", name);
    }
    if (!port || !body || connections < 1) die("--port, --body and --connections are needed");
    signal(SIGPIPE, SIG_IGN);
    make_request(port, body, key ? key : "");
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    poll_fd = epoll_create1(0);
    Connection *all = calloc((size_t)connections, sizeof *all);
    if (!all) die("out of memory");
    uint64_t begins = now_ns();
    for (int i = 0; i < connections; i++)
        wait_until(&all[i], begins + (uint64_t)ramp_ms * 1000000u * (uint64_t)i / (uint64_t)connections);
    window_begins = begins + (uint64_t)(ramp_ms + warm_ms) * 1000000u;
    window_ends = window_begins + (uint64_t)window_ms * 1000000u;
    run(all, connections, (uint64_t)window_ms * 1000000u);
    print_result();
    return 0;
}
