#include "host-bridge/api/attach_body.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const transport_names[] = {"hybrid", "vsock", "unix", NULL};

#define AT(s, f, t) .name = #f, .type = t, .offset = offsetof(struct s, f)
const struct body_field attach_body_fields[] = {
    {AT(attach_fields, transport, BODY_ENUM), .names = transport_names, .required = true},
    {AT(attach_fields, path, BODY_STR)},
    {AT(attach_fields, cid, BODY_INT), .min = 1, .max = UINT32_MAX - 1.},
    {AT(attach_fields, port, BODY_INT), .min = 1, .max = UINT32_MAX - 1.},
    {AT(attach_fields, agent_token_file, BODY_STR)},
    {.name = NULL},
};

/* A path that a client names is used only where the operator allows it, links resolved. */
static int check_path(const struct settings *c, const struct body_str *path, const char *field,
                      struct err *e)
{
	char real[PATH_MAX];
	if (c->attach_dir_count == 0)
		return err_field(e, ERR_FORBIDDEN, field,
		                 "this bridge has no --attach-dir, which %s has to be in",
		                 field);
	if (path->s[0] != '/' || realpath(path->s, real) == NULL)
		return err_field(e, ERR_INVALID_FIELD, field, "%s must be an existing path",
		                 field);
	for (size_t i = 0; i < c->attach_dir_count; i++) {
		char dir[PATH_MAX];
		if (realpath(c->attach_dirs[i], dir) == NULL)
			continue;
		size_t n = strlen(dir);
		if (strncmp(real, dir, n) == 0 && (real[n] == '/' || dir[n - 1] == '/'))
			return 0;
	}
	return err_field(e, ERR_FORBIDDEN, field, "%s is in no directory of --attach-dir",
	                 field);
}

static int read_token(const char *path, char *token, size_t room, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n = fd >= 0 ? read(fd, token, room) : -1;
	if (fd >= 0)
		close(fd);
	if (n < 0 || (size_t)n == room)
		return err_field(e, ERR_INVALID_FIELD, "attach.agent_token_file",
		                 "the agent's token file cannot be read, or is too long");
	token[n] = '\0';
	token[strcspn(token, "\r\n")] = '\0';
	return 0;
}

static int take_path(const struct settings *c, const struct attach_fields *f,
                     struct endpoint *to, struct err *e)
{
	if (f->path.s == NULL)
		return err_field(e, ERR_MISSING_FIELD, "attach.path",
		                 "attach.path is required");
	if (f->path.len >= sizeof(to->path))
		return err_field(e, ERR_INVALID_FIELD, "attach.path",
		                 "attach.path is too long");
	memcpy(to->path, f->path.s, f->path.len + 1);
	struct stat st;
	if (check_path(c, &f->path, "attach.path", e) < 0)
		return -1;
	if (stat(to->path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return err_field(e, ERR_INVALID_FIELD, "attach.path",
		                 "attach.path must be a socket");
	return 0;
}

int attach_body_take(struct api_request *r, const struct attach_fields *f, struct endpoint *to,
                     struct err *e)
{
	const struct settings *c = r->api->settings;
	if (!r->who.admin)
		return err_field(e, ERR_FORBIDDEN, "attach", "attach needs an admin token");
	to->kind = (enum transport_kind)f->transport.v;
	to->port = f->port.set ? (uint32_t)f->port.v : AGENT_PORT;
	if (to->kind == TRANSPORT_VSOCK) {
		/* CID 2 is this host itself (vsock(7)). */
		if (!f->cid.set || f->cid.v == 2)
			return err_field(e, f->cid.set ? ERR_INVALID_FIELD : ERR_MISSING_FIELD,
			                 "attach.cid", "attach.cid must name a guest");
		to->cid = (uint32_t)f->cid.v;
	} else if (take_path(c, f, to, e) < 0) {
		return -1;
	}
	if (f->agent_token_file.s == NULL)
		return 0;
	if (check_path(c, &f->agent_token_file, "attach.agent_token_file", e) < 0)
		return -1;
	return read_token(f->agent_token_file.s, to->token, sizeof(to->token), e);
}
