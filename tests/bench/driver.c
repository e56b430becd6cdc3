/*
 * The host's half of `make bench`: drives the bridge over HTTP and guest-bench over the
 * sandbox's hybrid socket, interleaved call by call, and prints one JSON object.
 *
 *   bench-driver latency   HOST:PORT TOKEN SANDBOX UDS ROUNDS PAUSE_MS
 *   bench-driver stream    HOST:PORT TOKEN SANDBOX UDS MIB ROUNDS
 *   bench-driver parallel  HOST:PORT TOKEN SANDBOX UDS WORKERS MS
 *   bench-driver watch     HOST:PORT TOKEN SANDBOX,EXEC... PER_EXEC   (holds them until EOF on
 * stdin)
 *
 * Any reply that is not what it should be ends the run: a fast wrong answer is no figure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GUEST_PORT 700
#define BUF (256 * 1024)

static const char *address, *token;
static char buf[BUF];

static void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void die(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "bench-driver: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void pause_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&t, NULL);
}

static void send_all(int fd, const void *data, size_t len)
{
	for (const char *p = data; len > 0;) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
		if (n <= 0)
			die("send: %s", strerror(errno));
		p += n;
		len -= (size_t)n;
	}
}

static void recv_all(int fd, void *data, size_t len)
{
	for (char *p = data; len > 0;) {
		ssize_t n = recv(fd, p, len, 0);
		if (n <= 0)
			die("receive: %s", n == 0 ? "closed" : strerror(errno));
		p += n;
		len -= (size_t)n;
	}
}

/* ---- the floor: guest-bench through the hybrid socket ---- */

static int guest_connect(const char *uds)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	char line[64];
	int n = snprintf(line, sizeof(line), "CONNECT %d\n", GUEST_PORT);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", uds);
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		die("connect %s: %s", uds, strerror(errno));
	send_all(fd, line, (size_t)n);
	for (char c = 0; c != '\n';)
		recv_all(fd, &c, 1);
	return fd;
}

/* Seconds of one raw round trip. */
static double guest_echo(int fd)
{
	char c;
	double t = now();
	send_all(fd, "e", 1);
	recv_all(fd, &c, 1);
	return now() - t;
}

/* Seconds that the guest took for one posix_spawn + wait, by its own clock. */
static double guest_spawn(int fd)
{
	uint64_t ns;
	send_all(fd, "s", 1);
	recv_all(fd, &ns, sizeof(ns));
	return (double)ns / 1e9;
}

/* ---- HTTP ---- */

static int http_connect(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	char host[64];
	int port, one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (sscanf(address, "%63[^:]:%d", host, &port) != 2)
		die("address: HOST:PORT");
	sa.sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1)
		die("address: an IPv4 address");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		die("connect %s: %s", address, strerror(errno));
	return fd;
}

static void http_request(int fd, const char *method, const char *path, const char *body)
{
	char head[4096];
	int n = snprintf(head, sizeof(head),
	                 "%s %s HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n"
	                 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
	                 method, path, token, strlen(body), body);
	if (n < 0 || (size_t)n >= sizeof(head))
		die("request too long");
	send_all(fd, head, (size_t)n);
}

/* Read until `buf` holds a whole head; returns bytes read, *body their offset past it. */
static size_t http_head(int fd, size_t *body)
{
	size_t len = 0;
	for (;;) {
		ssize_t n = recv(fd, buf + len, BUF - 1 - len, 0);
		if (n <= 0)
			die("no reply: %s", n == 0 ? "closed" : strerror(errno));
		len += (size_t)n;
		buf[len] = '\0';
		char *end = strstr(buf, "\r\n\r\n");
		if (end != NULL) {
			*body = (size_t)(end + 4 - buf);
			return len;
		}
	}
}

/* One whole reply with a Content-Length; it must be a 200 that says `exited` and 0. */
static void http_expect_exited(int fd)
{
	size_t body, len = http_head(fd, &body), want;
	char *cl = strcasestr(buf, "\ncontent-length:");

	if (strncmp(buf, "HTTP/1.1 200", 12) != 0 || cl == NULL)
		die("unexpected reply: %.200s", buf);
	want = body + strtoul(cl + 16, NULL, 10);
	while (len < want) {
		ssize_t n = recv(fd, buf + len, BUF - 1 - len, 0);
		if (n <= 0)
			die("reply cut off");
		len += (size_t)n;
	}
	buf[len] = '\0';
	if (strstr(buf + body, "\"outcome\":\"exited\"") == NULL ||
	    strstr(buf + body, "\"exit_code\":0") == NULL)
		die("not exited 0: %.400s", buf + body);
}

/* Ask for a static `true` with three limits, none of them those of the exec before: an agent
 * that keeps a cgroup ready has to write all three. */
static void http_request_true(int fd, const char *path)
{
	static unsigned serial;
	unsigned vary = serial++ % 16;
	char body[256];

	snprintf(body, sizeof(body),
	         "{\"argv\":[\"/tmp/guest-bench\",\"true\"],\"timeout_seconds\":30,"
	         "\"limits\":{\"memory_mib\":%u,\"pids\":%u,\"cpus\":%.2f}}",
	         64 + vary, 64 + vary, 0.8 + 0.01 * vary);
	http_request(fd, "POST", path, body);
}

static double http_exec(int fd, const char *path)
{
	double t = now();
	http_request_true(fd, path);
	http_expect_exited(fd);
	return now() - t;
}

/* ---- figures ---- */

static int cmp_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double quantile(double *v, size_t n, double q)
{
	qsort(v, n, sizeof(*v), cmp_double);
	return v[(size_t)(q * (double)(n - 1) + 0.5)];
}

static double *numbers(size_t n)
{
	double *v = calloc(n + 1, sizeof(*v));
	if (v == NULL)
		die("out of memory");
	return v;
}

static void latency(const char *path, const char *uds, size_t rounds, long pause)
{
	int http = http_connect(), guest = guest_connect(uds);
	double *exec = numbers(rounds), *spawn = numbers(rounds), *echo = numbers(rounds);

	for (size_t i = 0; i < rounds + 10; i++) { /* the first ten warm up */
		size_t at = i < 10 ? rounds : i - 10;
		exec[at] = http_exec(http, path);
		pause_ms(pause);
		spawn[at] = guest_spawn(guest);
		pause_ms(pause);
		echo[at] = guest_echo(guest);
		pause_ms(pause);
	}
	double floor = quantile(spawn, rounds, .5) + quantile(echo, rounds, .5);
	printf("{\"exec_p50_ms\":%.3f,\"exec_p99_ms\":%.3f,\"spawn_p50_ms\":%.3f,"
	       "\"echo_p50_ms\":%.3f,\"floor_ms\":%.3f,\"ratio\":%.3f}\n",
	       1e3 * quantile(exec, rounds, .5), 1e3 * quantile(exec, rounds, .99),
	       1e3 * quantile(spawn, rounds, .5), 1e3 * quantile(echo, rounds, .5), 1e3 * floor,
	       quantile(exec, rounds, .5) / floor);
}

static double guest_copy(int fd, uint32_t mib)
{
	double t = now();
	send_all(fd, "c", 1);
	send_all(fd, &mib, sizeof(mib));
	for (size_t left = (size_t)mib << 20; left > 0;) {
		ssize_t n = recv(fd, buf, left < BUF ? left : BUF, 0);
		if (n <= 0)
			die("copy cut off");
		left -= (size_t)n;
	}
	return (double)mib / (now() - t);
}

/* Stream the same bytes as SSE; they are all `x`, so counting that letter in the event data
 * (no other part of an event of this program's holds one, but for the head and the last
 * event) measures whole payloads without a JSON parser in the way. */
static double http_stream(const char *path, uint32_t mib)
{
	char body[256];
	int fd = http_connect();
	size_t want = (size_t)mib << 20, seen = 0, at;
	double t = now();

	snprintf(body, sizeof(body), "{\"argv\":[\"/tmp/guest-bench\",\"write\",\"%u\"]}", mib);
	http_request(fd, "POST", path, body);
	size_t len = http_head(fd, &at);
	if (strncmp(buf, "HTTP/1.1 200", 12) != 0)
		die("unexpected reply: %.200s", buf);
	for (;;) {
		for (size_t i = at; i < len; i++)
			seen += buf[i] == 'x';
		if (seen >= want)
			break;
		ssize_t n = recv(fd, buf, BUF - 1, 0);
		if (n <= 0)
			die("stream cut off after %zu of %zu bytes", seen, want);
		at = 0;
		len = (size_t)n;
	}
	t = now() - t;
	close(fd);
	return (double)mib / t;
}

static void stream(const char *path, const char *uds, uint32_t mib, size_t rounds)
{
	int guest = guest_connect(uds);
	double *raw = numbers(rounds), *sse = numbers(rounds);

	for (size_t i = 0; i < rounds; i++) {
		raw[i] = guest_copy(guest, mib);
		sse[i] = http_stream(path, mib);
	}
	double r = quantile(raw, rounds, .5), s = quantile(sse, rounds, .5);
	printf("{\"raw_mib_s\":%.1f,\"stream_mib_s\":%.1f,\"ratio\":%.3f}\n", r, s, s / r);
}

/* `workers` connections, each with one exec at a time, for `ms`; how many completed. */
static double http_parallel(const char *path, size_t workers, uint32_t ms)
{
	struct pollfd *p = calloc(workers, sizeof(*p));
	size_t done = 0, open = workers;
	double start = now(), until = start + ms / 1e3, last = start;

	if (p == NULL)
		die("out of memory");
	for (size_t i = 0; i < workers; i++) {
		p[i] = (struct pollfd){.fd = http_connect(), .events = POLLIN};
		http_request_true(p[i].fd, path);
	}
	while (open > 0) {
		if (poll(p, workers, 60000) <= 0)
			die("%zu execs never answered", open);
		for (size_t i = 0; i < workers; i++) {
			if ((p[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0)
				continue;
			http_expect_exited(p[i].fd);
			done++;
			last = now();
			if (last < until) {
				http_request_true(p[i].fd, path);
			} else {
				close(p[i].fd);
				p[i].fd = -1;
				open--;
			}
		}
	}
	free(p);
	return (double)done / (last - start);
}

static void parallel(const char *path, const char *uds, size_t workers, uint32_t ms)
{
	int guest = guest_connect(uds);
	uint32_t ask[2] = {(uint32_t)workers, ms};
	double floor[3], execs[3];

	for (int i = 0; i < 3; i++) {
		uint64_t n;
		send_all(guest, "l", 1);
		send_all(guest, ask, sizeof(ask));
		double t = now();
		recv_all(guest, &n, sizeof(n));
		floor[i] = (double)n / (now() - t);
		execs[i] = http_parallel(path, workers, ms);
	}
	double f = quantile(floor, 3, .5), e = quantile(execs, 3, .5);
	printf("{\"workers\":%zu,\"guest_per_s\":%.1f,\"execs_per_s\":%.1f,\"ratio\":%.3f}\n",
	       workers, f, e, e / f);
}

/* Open `per_exec` event streams on each "SANDBOX,EXEC" and hold them until stdin ends. */
static void watch(char **pairs, size_t count, size_t per_exec)
{
	size_t opened = 0, at;
	char path[512];

	for (size_t i = 0; i < count; i++) {
		char *exec = strchr(pairs[i], ',');
		if (exec == NULL)
			die("watch: SANDBOX,EXEC");
		snprintf(path, sizeof(path), "/v1/sandboxes/%.*s/execs/%s/stream",
		         (int)(exec - pairs[i]), pairs[i], exec + 1);
		for (size_t j = 0; j < per_exec; j++, opened++) {
			int fd = http_connect();
			http_request(fd, "GET", path, "");
			http_head(fd, &at);
			if (strncmp(buf, "HTTP/1.1 200", 12) != 0)
				die("watch: %.200s", buf);
		}
	}
	printf("{\"watchers\":%zu}\n", opened);
	fflush(stdout);
	while (read(STDIN_FILENO, buf, 1) > 0)
		;
}

int main(int argc, char **argv)
{
	char path[256];
	struct rlimit files = {20000, 20000};

	if (argc < 6)
		die("arguments: see the head of tests/bench/driver.c");
	setrlimit(RLIMIT_NOFILE, &files);
	address = argv[2];
	token = argv[3];
	snprintf(path, sizeof(path), "/v1/sandboxes/%s/exec%s", argv[4],
	         strcmp(argv[1], "stream") == 0 ? "/stream" : "");
	if (strcmp(argv[1], "latency") == 0 && argc == 8)
		latency(path, argv[5], strtoul(argv[6], NULL, 10), strtol(argv[7], NULL, 10));
	else if (strcmp(argv[1], "stream") == 0 && argc == 8)
		stream(path, argv[5], (uint32_t)strtoul(argv[6], NULL, 10),
		       strtoul(argv[7], NULL, 10));
	else if (strcmp(argv[1], "parallel") == 0 && argc == 8)
		parallel(path, argv[5], strtoul(argv[6], NULL, 10),
		         (uint32_t)strtoul(argv[7], NULL, 10));
	else if (strcmp(argv[1], "watch") == 0)
		watch(argv + 4, (size_t)argc - 5, strtoul(argv[argc - 1], NULL, 10));
	else
		die("unknown command or wrong arguments");
	return 0;
}
