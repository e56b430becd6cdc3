#include "host-bridge/settings.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"
#include "host-bridge/sockets.h"
#include "proto/limits.h"

#define SETTINGS_LINE_MAX 512
#define NODE_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

struct setting {
	const char *name; /* the flag without its dashes, the file's key, the variable's tail */
	int (*set)(struct settings *c, const char *value);
	const char *value, *help;
	const char *expects; /* what a value is that it takes */
};

static int copy(char *to, size_t room, const char *value)
{
	size_t n = strlen(value);
	if (n == 0 || n >= room)
		return -1;
	memcpy(to, value, n + 1);
	return 0;
}

#define COPY_SETTING(field)                                           \
	static int set_##field(struct settings *c, const char *value) \
	{                                                             \
		return copy(c->field, sizeof(c->field), value);       \
	}
COPY_SETTING(token_file)
COPY_SETTING(state_dir)
COPY_SETTING(audit_log)
#undef COPY_SETTING

static bool is_directory(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int set_rootfs_dir(struct settings *c, const char *value)
{
	return is_directory(value) ? copy(c->rootfs_dir, sizeof(c->rootfs_dir), value) : -1;
}

static int set_agent(struct settings *c, const char *value)
{
	return access(value, X_OK) == 0 ? copy(c->agent_path, sizeof(c->agent_path), value)
	                                : -1;
}

/* It becomes part of ids, and these of paths and addresses. */
static int set_node(struct settings *c, const char *value)
{
	return value[strspn(value, NODE_CHARACTERS)] == '\0'
	           ? copy(c->node, sizeof(c->node), value)
	           : -1;
}

static int set_launcher(struct settings *c, const char *value)
{
	if (strcmp(value, "auto") != 0 && launcher_find(value) == NULL)
		return -1;
	return copy(c->launcher, sizeof(c->launcher), value);
}

static int set_vm_uids(struct settings *c, const char *value)
{
	struct vm_uids u;
	return vm_uids_parse(value, &u) == 0 ? copy(c->vm_uids, sizeof(c->vm_uids), value) : -1;
}

static int set_listen(struct settings *c, const char *value)
{
	if (c->listen_count == SETTINGS_LISTEN_MAX || !sockets_valid(value) ||
	    copy(c->listen[c->listen_count], sizeof(c->listen[0]), value) < 0)
		return -1;
	c->listen_count++;
	return 0;
}

static int set_attach_dir(struct settings *c, const char *value)
{
	if (value[0] != '/' || !is_directory(value) ||
	    c->attach_dir_count == SETTINGS_ATTACH_DIRS_MAX ||
	    copy(c->attach_dirs[c->attach_dir_count], sizeof(c->attach_dirs[0]), value) < 0)
		return -1;
	c->attach_dir_count++;
	return 0;
}

static int set_warm_pool(struct settings *c, const char *value)
{
	char *end;
	c->warm_pool = (unsigned)strtoul(value, &end, 10);
	return isdigit((unsigned char)*value) && *end == '\0' && c->warm_pool <= WARM_POOL_MAX
	           ? 0
	           : -1;
}

static int set_drain_seconds(struct settings *c, const char *value)
{
	char *end;
	c->drain_seconds = strtod(value, &end);
	return end != value && *end == '\0' && c->drain_seconds >= 0 &&
	               c->drain_seconds <= 86400
	           ? 0
	           : -1;
}

static int set_log_level(struct settings *c, const char *value)
{
	int level = log_level_parse(value);
	if (level < 0)
		return -1;
	c->log_level = (enum log_level)level;
	return 0;
}

static int set_log_format(struct settings *c, const char *value)
{
	c->log_json = strcmp(value, "json") == 0;
	return c->log_json || strcmp(value, "text") == 0 ? 0 : -1;
}

#define SHORT_PATH "a path of 1 to 255 bytes"
#define LAUNCHERS "firecracker, cloud-hypervisor, qemu, uml, local or attach"
#define LEVELS "error, warn, info or debug"
static const struct setting settings[] = {
    {"listen", set_listen, "ADDR",
     "host:port or unix:PATH; up to 4 times (127.0.0.1:8080).\n"
     "Sockets passed in by LISTEN_FDS take its place",
     "host:port (0.0.0.0:8080 for every address) or unix:PATH, 4 in all"},
    {"token-file", set_token_file, "FILE", "hashed bearer tokens, read again when it changes",
     SHORT_PATH},
    {"launcher", set_launcher, "NAME", "auto, " LAUNCHERS " (auto)", "auto, " LAUNCHERS},
    {"state-dir", set_state_dir, "DIR", "registry and sandboxes (/var/lib/sandgate)",
     SHORT_PATH},
    {"rootfs-dir", set_rootfs_dir, "DIR",
     "templates (PREFIX/share/sandgate/rootfs, or of the same build)", "a directory"},
    {"agent", set_agent, "FILE",
     "guest-agent for the local launcher\n"
     "(PREFIX/lib/sandgate/guest-agent, or of the same build)",
     "an executable file"},
    {"attach-dir", set_attach_dir, "DIR",
     "where sockets and token files of attached VMs may be; up to 8 times",
     "an absolute path of a directory, 8 in all"},
    {"vm-uids", set_vm_uids, "RANGE",
     "FIRST:COUNT, user ids for VMs when started by root (" VM_UIDS_DEFAULT ")",
     "FIRST:COUNT, ids from 1000 on without 65534 and 65535"},
    {"warm-pool", set_warm_pool, "N",
     "VMs of each template used lately, restored before they are asked for (1)",
     "a number up to 16"},
    {"node", set_node, "NAME", "this host's name in replies (the host name)",
     "1 to 63 of A-Z a-z 0-9 . _ -"},
    {"drain-seconds", set_drain_seconds, "N",
     "time that SIGTERM leaves to running requests (20)", "a number up to 86400"},
    {"audit-log", set_audit_log, "FILE", "JSON lines, one a request; - for standard output",
     SHORT_PATH},
    {"log-level", set_log_level, "LEVEL", LEVELS " (info)", LEVELS},
    {"log-format", set_log_format, "FORMAT", "text or json (text)", "text or json"},
};
#define SETTINGS_COUNT (sizeof(settings) / sizeof(settings[0]))

static const struct setting *setting_named(const char *name, size_t len)
{
	for (size_t i = 0; i < SETTINGS_COUNT; i++)
		if (strlen(settings[i].name) == len && memcmp(settings[i].name, name, len) == 0)
			return &settings[i];
	return NULL;
}

/* A source that names a list starts it afresh: it replaces what an earlier one said. */
struct source {
	bool listen_seen, attach_seen;
};

static int apply(struct settings *c, struct source *src, const struct setting *s,
                 const char *value, struct err *e)
{
	if (s->set == set_listen && !src->listen_seen) {
		c->listen_count = 0;
		src->listen_seen = true;
	}
	if (s->set == set_attach_dir && !src->attach_seen) {
		c->attach_dir_count = 0;
		src->attach_seen = true;
	}
	if (s->set(c, value) == 0)
		return 0;
	return err_field(e, ERR_INVALID_FIELD, s->name, "%s: %.48s is not %s", s->name, value,
	                 s->expects);
}

static int load_line(struct settings *c, struct source *src, char *line, struct err *e)
{
	line[strcspn(line, "#\r\n")] = '\0';
	char *key = line + strspn(line, " \t");
	if (*key == '\0')
		return 0;
	size_t len = strcspn(key, " \t=");
	char *value = key + len + strspn(key + len, " \t");
	if (*value != '=')
		return err_set(e, ERR_INVALID_FIELD, "expected \"key = value\"");
	value += 1 + strspn(value + 1, " \t");
	for (size_t n = strlen(value); n > 0 && isspace((unsigned char)value[n - 1]); n--)
		value[n - 1] = '\0';
	const struct setting *s = setting_named(key, len);
	if (s == NULL)
		return err_set(e, ERR_INVALID_FIELD, "unknown setting %.*s", (int)len, key);
	return apply(c, src, s, value, e);
}

static int load_file(struct settings *c, const char *path, struct err *e)
{
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return err_errno(e, ERR_INVALID_FIELD, errno, "cannot read %s", path);
	char line[SETTINGS_LINE_MAX];
	struct source src = {0};
	struct err why = {0};
	int rc = 0;
	unsigned n = 0;
	while (rc == 0 && fgets(line, sizeof(line), f) != NULL) {
		n++;
		rc = load_line(c, &src, line, &why);
	}
	fclose(f);
	if (rc < 0)
		err_field(e, why.code, why.field, "%.100s:%u: %s", path, n, why.msg);
	return rc;
}

static const char *variable(const struct setting *s)
{
	char name[64] = "SANDGATE_";
	size_t n = strlen(name);
	for (const char *p = s->name; *p != '\0'; p++)
		name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
	name[n] = '\0';
	const char *value = getenv(name);
	return value != NULL && *value != '\0' ? value : NULL;
}

static int load_environment(struct settings *c, struct err *e)
{
	struct source src = {0};
	for (size_t i = 0; i < SETTINGS_COUNT; i++) {
		const char *value = variable(&settings[i]);
		if (value != NULL && apply(c, &src, &settings[i], value, e) < 0)
			return -1;
	}
	const char *token = getenv("SANDGATE_TOKEN");
	if (token != NULL && *token != '\0' && copy(c->token, sizeof(c->token), token) < 0)
		return err_field(e, ERR_INVALID_FIELD, "SANDGATE_TOKEN",
		                 "the token is too long");
	return 0;
}

/* The value of `--name=value` or `--name value`; NULL when it is missing. */
static const char *flag_value(const char *arg, int argc, char **argv, int *i)
{
	const char *eq = strchr(arg, '=');
	if (eq != NULL)
		return eq + 1;
	return *i + 1 < argc ? argv[++*i] : NULL;
}

static int load_flags(struct settings *c, int argc, char **argv, struct err *e)
{
	struct source src = {0};
	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i];
		if (strncmp(arg, "--", 2) != 0)
			return err_set(e, ERR_INVALID_FIELD,
			               "unexpected argument %s; see host-bridge --help", arg);
		size_t len = strcspn(arg + 2, "=");
		const struct setting *s = setting_named(arg + 2, len);
		bool config = len == 6 && memcmp(arg + 2, "config", 6) == 0;
		if (s == NULL && !config)
			return err_set(e, ERR_INVALID_FIELD,
			               "unknown option %s; see host-bridge --help", arg);
		const char *value = flag_value(arg, argc, argv, &i);
		if (value == NULL)
			return err_set(e, ERR_INVALID_FIELD, "%s needs a value", arg);
		if (s != NULL && apply(c, &src, s, value, e) < 0)
			return -1;
	}
	return 0;
}

/* The file comes before the flags in rank, so its name is looked for first. */
static const char *config_file(struct settings *c, int argc, char **argv)
{
	const char *path = getenv("SANDGATE_CONFIG");
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			c->help = true;
		else if (strcmp(argv[i], "--version") == 0)
			c->version = true;
		else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
			path = argv[i + 1];
		else if (strncmp(argv[i], "--config=", 9) == 0)
			path = argv[i] + 9;
	}
	return path;
}

/* What came with this program: it is two levels below a build directory, or below the prefix
 * that it was installed to. */
static void beside(char *out, size_t room, const char *built, const char *installed)
{
	char top[PATH_MAX], *slash = NULL;
	ssize_t n = readlink("/proc/self/exe", top, sizeof(top) - 1);
	top[n > 0 ? n : 0] = '\0';
	for (int i = 0; i < 2 && (slash = strrchr(top, '/')) != NULL; i++)
		*slash = '\0';
	snprintf(out, room, "%.*s/%s", (int)room - 64, top, built);
	if (access(out, F_OK) < 0)
		snprintf(out, room, "%.*s/%s", (int)room - 64, top, installed);
}

static void defaults(struct settings *c)
{
	*c = (struct settings){.listen = {"127.0.0.1:8080"},
	                       .listen_count = 1,
	                       .state_dir = "/var/lib/sandgate",
	                       .warm_pool = 1,
	                       .launcher = "auto",
	                       .drain_seconds = DRAIN_DEFAULT_S,
	                       .log_level = LOG_INFO};
	if (gethostname(c->node, sizeof(c->node) - 1) < 0)
		strcpy(c->node, "localhost");
	beside(c->agent_path, sizeof(c->agent_path), "guest-agent/guest-agent",
	       "lib/sandgate/guest-agent");
	beside(c->rootfs_dir, sizeof(c->rootfs_dir), "rootfs", "share/sandgate/rootfs");
}

int settings_load(struct settings *c, int argc, char **argv, struct err *e)
{
	defaults(c);
	const char *path = config_file(c, argc, argv);
	if (c->help || c->version)
		return 0;
	if (path != NULL && *path != '\0' && load_file(c, path, e) < 0)
		return -1;
	if (load_environment(c, e) < 0)
		return -1;
	return load_flags(c, argc, argv, e);
}

void settings_help(FILE *to)
{
	fputs("usage: host-bridge [serve] [OPTION]...\n"
	      "       host-bridge token add|limit|list|revoke [OPTION]...\n"
	      "       host-bridge vsock-device [OPTION]...\n\n"
	      "Serve the sandbox API over HTTP.\n\n"
	      "  --config FILE          lines of \"key = value\", the keys as below\n",
	      to);
	for (size_t i = 0; i < SETTINGS_COUNT; i++) {
		char flag[64];
		snprintf(flag, sizeof(flag), "--%s %s", settings[i].name, settings[i].value);
		fprintf(to, "  %-22s ", flag);
		for (const char *p = settings[i].help; *p != '\0'; p++)
			if (*p == '\n')
				fprintf(to, "\n%-25s", "");
			else
				fputc(*p, to);
		fputc('\n', to);
	}
	fputs(
	    "  --help, --version\n\n"
	    "Each option may be given as SANDGATE_<NAME> in the environment, too "
	    "(SANDGATE_LISTEN,\n"
	    "SANDGATE_LAUNCHER, SANDGATE_STATE_DIR, ...). SANDGATE_TOKEN is one admin token.\n",
	    to);
}
