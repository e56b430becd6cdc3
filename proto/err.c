#include "proto/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
	enum err_code code;
	const char *name;
	int status;
	bool retryable;
};

static const struct err_row rows[] = {
#define X(sym, num, name, status, retry) {sym, name, status, retry},
    ERR_TABLE(X)
#undef X
};

static const struct err_row *row_of(enum err_code code)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].code == code)
			return &rows[i];
	return &rows[0];
}

static void fill(struct err *e, enum err_code code, const char *field, int errnum,
                 const char *fmt, va_list ap)
{
	if (e == NULL)
		return;
	e->code = code;
	e->limit = 0;
	snprintf(e->field, sizeof(e->field), "%s", field);
	int n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	if (errnum != 0 && n >= 0 && (size_t)n < sizeof(e->msg))
		snprintf(e->msg + n, sizeof(e->msg) - (size_t)n, ": %s", strerror(errnum));
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fill(e, code, "", 0, fmt, ap);
	va_end(ap);
	return -1;
}

int err_field(struct err *e, enum err_code code, const char *field, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fill(e, code, field, 0, fmt, ap);
	va_end(ap);
	return -1;
}

int err_limit(struct err *e, enum err_code code, const char *field, uint64_t limit,
              const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fill(e, code, field, 0, fmt, ap);
	va_end(ap);
	if (e != NULL)
		e->limit = limit;
	return -1;
}

int err_errno(struct err *e, enum err_code code, int errnum, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fill(e, code, "", errnum, fmt, ap);
	va_end(ap);
	return -1;
}

bool err_is_shortage(int errnum)
{
	return errnum == EMFILE || errnum == ENFILE || errnum == ENOMEM || errnum == ENOBUFS ||
	       errnum == EAGAIN;
}

enum err_code err_of_errno(int errnum, enum err_code other)
{
	if (errnum == ENOSPC || errnum == EDQUOT)
		return ERR_STORAGE_FULL;
	return err_is_shortage(errnum) ? ERR_CAPACITY : other;
}

const char *err_name(enum err_code code)
{
	return row_of(code)->name;
}

int err_http_status(enum err_code code)
{
	return row_of(code)->status;
}

bool err_retryable(enum err_code code)
{
	return row_of(code)->retryable;
}

enum err_code err_from_wire(uint32_t number)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if ((uint32_t)rows[i].code == number)
			return rows[i].code;
	return ERR_PROTOCOL;
}
