#include "proto/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

static enum log_level threshold = LOG_INFO;
static bool as_json;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_setup(enum log_level level, bool json)
{
	threshold = level;
	as_json = json;
}

int log_level_parse(const char *s)
{
	for (int i = 0; i < 4; i++)
		if (strcmp(s, level_names[i]) == 0)
			return i;
	return -1;
}

/* A record stays one line: control bytes become spaces; for JSON, quotes are escaped. */
static size_t put_text(char *out, size_t room, const char *s)
{
	size_t n = 0;
	for (; *s != '\0' && n + 2 < room; s++) {
		unsigned char c = (unsigned char)*s;
		if (as_json && (c == '"' || c == '\\'))
			out[n++] = '\\';
		out[n++] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
	}
	out[n] = '\0';
	return n;
}

/* UTC without libc's time zones, which would weigh more than all the rest of the log.
 * Days to date: the civil calendar counted in eras of 400 years from 1 March. */
static void put_time(char *out, size_t room)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	unsigned sec = (unsigned)(now.tv_sec % 86400);
	unsigned days = (unsigned)(now.tv_sec / 86400) + 719468; /* since 0000-03-01 */
	unsigned era = days / 146097, doe = days % 146097;
	unsigned yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	unsigned doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
	unsigned month = mp < 10 ? mp + 3 : mp - 9;

	snprintf(out, room, "%04u-%02u-%02uT%02u:%02u:%02u.%03ldZ",
	         yoe + era * 400 + (month <= 2), month, doy - (153 * mp + 2) / 5 + 1,
	         sec / 3600, sec / 60 % 60, sec % 60, now.tv_nsec / 1000000);
}

static void emit(enum log_level level, const char *module, const char *id, const char *fmt,
                 va_list ap)
{
	char raw[LINE_MAX_BYTES / 2], text[LINE_MAX_BYTES], line[2 * LINE_MAX_BYTES], stamp[64];
	char safe_id[160] = "";

	vsnprintf(raw, sizeof(raw), fmt, ap);
	put_text(text, sizeof(text), raw);
	if (id != NULL)
		put_text(safe_id, sizeof(safe_id), id);
	put_time(stamp, sizeof(stamp));

	int len;
	if (as_json)
		len = snprintf(
		    line, sizeof(line),
		    "{\"time\":\"%s\",\"level\":\"%s\",\"module\":\"%s\",\"id\":\"%s\","
		    "\"text\":\"%s\"}\n",
		    stamp, level_names[level], module, safe_id, text);
	else
		len = snprintf(line, sizeof(line), "%s %s %s%s%s: %s\n", stamp,
		               level_names[level], module, safe_id[0] != '\0' ? " " : "",
		               safe_id, text);
	if (len > 0 && write(STDERR_FILENO, line, (size_t)len) < 0) {
		/* Nowhere is left to say it. */
	}
}

void log_line(enum log_level level, const char *module, const char *id, const char *fmt, ...)
{
	if (level > threshold)
		return;
	int saved = errno;
	va_list ap;
	va_start(ap, fmt);
	emit(level, module, id, fmt, ap);
	va_end(ap);
	errno = saved;
}

void fatal(const char *module, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	emit(LOG_ERROR, module, NULL, fmt, ap);
	va_end(ap);
	exit(1);
}
