#include "host-bridge/api/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/routes.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/steady.h"
#include "proto/clock.h"
#include "proto/log.h"

struct audit {
	int fd; /* -1: everything is dropped */
};

struct audit *audit_open(const char *path, struct err *e)
{
	struct audit *a = malloc(sizeof(*a));
	if (a == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	a->fd = -1;
	if (strcmp(path, "-") == 0)
		a->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	else if (path[0] != '\0')
		a->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (path[0] != '\0' && a->fd < 0) {
		err_errno(e, ERR_INTERNAL, errno, "cannot open the audit log %.80s", path);
		free(a);
		return NULL;
	}
	return a;
}

void audit_close(struct audit *a)
{
	if (a == NULL)
		return;
	if (a->fd >= 0)
		close(a->fd);
	free(a);
}

static const char *or_null(const char *text)
{
	return text[0] != '\0' ? text : NULL;
}

void audit_request(struct audit *a, const struct api_request *r, int status)
{
	struct json_out out = {0};
	if (a->fd < 0)
		return;
	json_out_object(&out, NULL);
	result_instant_json(&out, "time", (uint64_t)clock_wall_ms());
	json_out_string(&out, "token", or_null(r->who.token_id));
	json_out_string(&out, "workspace", or_null(r->who.workspace));
	json_out_string(&out, "peer", http_peer(r->x));
	json_out_string(&out, "request_id", r->id);
	json_out_string(&out, "operation", r->route != NULL ? r->route->operation : NULL);
	json_out_string(&out, "method", http_method_name(r->x));
	json_out_string(&out, "sandbox", or_null(r->sandbox_id));
	json_out_string(&out, "exec", or_null(r->exec_id));
	json_out_string(&out, "outcome", r->outcome);
	json_out_int(&out, "status", status);
	json_out_int(&out, "duration_ms", (int64_t)((steady_now() - r->received) * 1000));
	json_out_end(&out, '}');
	json_out_raw(&out, "\n", 1);
	if (out.failed || write(a->fd, out.data, out.len) != (ssize_t)out.len)
		log_error("audit", r->id, "the audit log cannot be written");
	json_out_free(&out);
}
