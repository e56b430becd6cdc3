#include "guest-agent/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest-agent/identity.h"
#include "guest-agent/version.h"
#include "proto/limits.h"

struct setting {
	const char *name, *arg, *help;
	int (*set)(struct config *c, const char *value, struct err *e);
};

static int replace(char **slot, const char *value, struct err *e)
{
	char *copy = strdup(value);
	if (copy == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	free(*slot);
	*slot = copy;
	return 0;
}

static int parse_number(const char *s, unsigned max, unsigned *out, struct err *e)
{
	char *end;
	errno = 0;
	unsigned long n = strtoul(s, &end, 10);
	if (!isdigit((unsigned char)s[0]) || *end != '\0' || errno != 0 || n > max)
		return err_set(e, ERR_INVALID_FIELD, "not a number from 0 to %u", max);
	*out = (unsigned)n;
	return 0;
}

static int parse_bool(const char *s, bool *out, struct err *e)
{
	bool yes = strcmp(s, "yes") == 0;
	if (!yes && strcmp(s, "no") != 0)
		return err_set(e, ERR_INVALID_FIELD, "neither yes nor no");
	*out = yes;
	return 0;
}

static int set_port(struct config *c, const char *v, struct err *e)
{
	return parse_number(v, UINT32_MAX - 1, &c->port, e);
}

static int set_unix(struct config *c, const char *v, struct err *e)
{
	return replace(&c->unix_path, v, e);
}

static int set_user(struct config *c, const char *v, struct err *e)
{
	return replace(&c->user, v, e);
}

static int set_token_file(struct config *c, const char *v, struct err *e)
{
	return replace(&c->token_file, v, e);
}

static int set_allow_cid(struct config *c, const char *v, struct err *e)
{
	if (c->cid_count == CONFIG_CIDS_MAX)
		return err_set(e, ERR_INVALID_FIELD, "at most %d", CONFIG_CIDS_MAX);
	if (parse_number(v, UINT32_MAX - 1, &c->cids[c->cid_count], e) < 0)
		return -1;
	c->cid_count++;
	return 0;
}

static int set_env(struct config *c, const char *v, struct err *e)
{
	const char *eq = strchr(v, '=');
	if (eq == NULL || eq == v)
		return err_set(e, ERR_INVALID_FIELD, "not NAME=value");
	for (size_t i = 0; i < c->env_count; i++)
		if (strncmp(c->env[i], v, (size_t)(eq - v) + 1) == 0)
			return replace(&c->env[i], v, e);
	char **env = realloc(c->env, (c->env_count + 1) * sizeof(char *));
	if (env == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	c->env = env;
	env[c->env_count] = NULL;
	if (replace(&env[c->env_count], v, e) < 0)
		return -1;
	c->env_count++;
	return 0;
}

static int set_capabilities(struct config *c, const char *v, struct err *e)
{
	char *list = strdup(v), *names[64], *save = NULL;
	size_t n = 0;
	if (list == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	for (char *w = strtok_r(list, ",", &save); w != NULL && n < 64;
	     w = strtok_r(NULL, ",", &save))
		names[n++] = w;
	int rc = identity_caps(names, n, &c->caps, e);
	c->narrow_caps = true;
	free(list);
	return rc;
}

static int set_no_new_privs(struct config *c, const char *v, struct err *e)
{
	return parse_bool(v, &c->no_new_privs, e);
}

static int set_manage_machine(struct config *c, const char *v, struct err *e)
{
	return parse_bool(v, &c->manage_machine, e);
}

static int set_log_level(struct config *c, const char *v, struct err *e)
{
	int level = log_level_parse(v);
	if (level < 0)
		return err_set(e, ERR_INVALID_FIELD, "not error, warn, info or debug");
	c->log_level = (enum log_level)level;
	return 0;
}

static int set_log_json(struct config *c, const char *v, struct err *e)
{
	return parse_bool(v, &c->log_json, e);
}

static const struct setting settings[] = {
    {"port", "N", "vsock port, 0 for none (523)", set_port},
    {"unix", "PATH", "listen on this Unix socket, for root and the agent's own user", set_unix},
    {"user", "USER", "who commands run as by default (root)", set_user},
    {"token-file", "PATH", "ask each session for the token in this file", set_token_file},
    {"allow-cid", "N", "accept this vsock peer beside the host; may repeat", set_allow_cid},
    {"env", "NAME=VALUE", "set for every command; may repeat", set_env},
    {"capabilities", "LIST", "commands keep at most these, comma-separated", set_capabilities},
    {"no-new-privs", "yes|no", "set for every command (no)", set_no_new_privs},
    {"manage-machine", "yes|no", "Resume may set clock, names, network (yes as init)",
     set_manage_machine},
    {"log-level", "LEVEL", "error, warn, info or debug (info)", set_log_level},
    {"log-json", "yes|no", "log as JSON (no)", set_log_json},
};

#define SETTINGS (sizeof(settings) / sizeof(settings[0]))

void config_init(struct config *c)
{
	*c = (struct config){
	    .port = AGENT_PORT,
	    .log_level = LOG_INFO,
	    .manage_machine = getpid() == 1,
	    .self_resume_s = SELF_RESUME_S,
	};
}

void config_free(struct config *c)
{
	for (size_t i = 0; i < c->env_count; i++)
		free(c->env[i]);
	free(c->env);
	free(c->unix_path);
	free(c->user);
	free(c->token_file);
	free(c->token);
}

static const struct setting *find_setting(const char *name)
{
	for (size_t i = 0; i < SETTINGS; i++)
		if (strcmp(settings[i].name, name) == 0)
			return &settings[i];
	return NULL;
}

int config_set(struct config *c, const char *name, const char *value, struct err *e)
{
	const struct setting *s = find_setting(name);
	struct err why = {0};

	if (s == NULL)
		return err_field(e, ERR_INVALID_FIELD, name, "%s: no such setting", name);
	if (s->set(c, value, &why) < 0)
		return err_field(e, why.code, name, "%s: %s", name, why.msg);
	return 0;
}

static char *strip(char *s)
{
	while (isspace((unsigned char)*s))
		s++;
	char *end = s + strlen(s);
	while (end > s && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return s;
}

static int read_line(struct config *c, char *line, struct err *e)
{
	char *name = strip(line);
	if (*name == '\0' || *name == '#')
		return 0;
	char *eq = strchr(name, '=');
	if (eq == NULL)
		return err_set(e, ERR_INVALID_FIELD, "not `name = value`");
	*eq = '\0';
	return config_set(c, strip(name), strip(eq + 1), e);
}

int config_read_file(struct config *c, const char *path, bool must_exist, struct err *e)
{
	FILE *f = fopen(path, "re");
	if (f == NULL) {
		if (errno == ENOENT && !must_exist)
			return 0;
		return err_errno(e, ERR_INVALID_FIELD, errno, "%s", path);
	}
	char *line = NULL;
	size_t room = 0;
	int rc = 0;
	for (unsigned no = 1; rc == 0 && getline(&line, &room, f) >= 0; no++) {
		struct err why = {0};
		if (read_line(c, line, &why) < 0)
			rc = err_field(e, why.code, why.field, "%s:%u: %s", path, no, why.msg);
	}
	free(line);
	fclose(f);
	return rc;
}

int config_read_cmdline(struct config *c, const char *cmdline, struct err *e)
{
	static const char prefix[] = "sandgate.";
	char *copy = strdup(cmdline), *save = NULL;
	int rc = 0;
	if (copy == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	for (char *w = strtok_r(copy, " \n", &save); w != NULL && rc == 0;
	     w = strtok_r(NULL, " \n", &save)) {
		char *eq = strchr(w, '=');
		if (strncmp(w, prefix, sizeof(prefix) - 1) != 0 || eq == NULL)
			continue;
		*eq = '\0';
		const char *name = w + sizeof(prefix) - 1;
		if (find_setting(name) != NULL)
			rc = config_set(c, name, eq + 1, e);
		else if (strcmp(name, "root") != 0 && strcmp(name, "disk") != 0) /* init's */
			log_warn("config", NULL, "sandgate.%s is no setting: skipped", name);
	}
	free(copy);
	return rc;
}

static void print_help(void)
{
	printf("usage: guest-agent [--config PATH] [--SETTING VALUE]...\n\n"
	       "Runs commands in this machine for a host that asks over vsock.\n\n");
	for (size_t i = 0; i < SETTINGS; i++) {
		char flag[40];
		snprintf(flag, sizeof(flag), "--%s %s", settings[i].name, settings[i].arg);
		printf("  %-24s %s\n", flag, settings[i].help);
	}
	printf("  %-24s %s\n  %-24s %s\n\n", "--config PATH",
	       "settings as `name = value` lines (" CONFIG_FILE ")", "--help, --version", "");
	printf("The same names work in the file and, as sandgate.NAME=VALUE, on the kernel's\n"
	       "command line; flags win over the command line, and that over the file.\n");
}

/* The command line of the kernel; empty where /proc is not there. */
static int read_kernel_words(struct config *c, struct err *e)
{
	char words[4096] = "";
	int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, words, sizeof(words) - 1);
	if (fd >= 0)
		close(fd);
	words[n > 0 ? n : 0] = '\0';
	return config_read_cmdline(c, words, e);
}

static int read_token(struct config *c, struct err *e)
{
	char buf[512];
	int fd = open(c->token_file, O_RDONLY | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0) {
		int saved = errno;
		if (fd >= 0)
			close(fd);
		return err_errno(e, ERR_INVALID_FIELD, saved, "token file %.80s",
		                 c->token_file);
	}
	ssize_t n = read(fd, buf, sizeof(buf));
	close(fd);
	if ((st.st_mode & 077) != 0)
		return err_field(e, ERR_INVALID_FIELD, "token-file",
		                 "token file %.80s: others than its owner can read it",
		                 c->token_file);
	while (n > 0 && isspace((unsigned char)buf[n - 1]))
		n--;
	if (n <= 0 || n == sizeof(buf))
		return err_field(e, ERR_INVALID_FIELD, "token-file",
		                 "token file %.80s: empty, or over %zu bytes", c->token_file,
		                 sizeof(buf) - 1);
	if ((c->token = malloc((size_t)n)) == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	memcpy(c->token, buf, (size_t)n);
	c->token_len = (size_t)n;
	return 0;
}

static int read_flags(struct config *c, int argc, char **argv, struct err *e)
{
	for (int i = 1; i < argc; i += 2) {
		/* The kernel hands an init the words that it does not know itself. */
		if (getpid() == 1 && strncmp(argv[i], "--", 2) != 0) {
			i--;
			continue;
		}
		if (strncmp(argv[i], "--", 2) != 0)
			return err_set(e, ERR_INVALID_FIELD, "%s: not `--setting value`",
			               argv[i]);
		bool file = strcmp(argv[i], "--config") == 0;
		if (i + 1 == argc && (file || find_setting(argv[i] + 2) != NULL))
			return err_set(e, ERR_INVALID_FIELD, "%s needs a value", argv[i]);
		if (!file && config_set(c, argv[i] + 2, argv[i + 1], e) < 0)
			return -1;
	}
	return 0;
}

int config_load(struct config *c, int argc, char **argv, struct err *e)
{
	const char *file = CONFIG_FILE;
	bool named = false;

	config_init(c);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0) {
			print_help();
			exit(0);
		}
		if (strcmp(argv[i], "--version") == 0) {
			printf("guest-agent %s\n", AGENT_VERSION);
			exit(0);
		}
		if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
			file = argv[i + 1];
			named = true;
		}
	}
	if (config_read_file(c, file, named, e) < 0 || read_kernel_words(c, e) < 0 ||
	    read_flags(c, argc, argv, e) < 0)
		return -1;
	if (c->port == 0 && c->unix_path == NULL)
		return err_field(e, ERR_INVALID_FIELD, "port",
		                 "port 0 without unix: there is nothing to listen on");
	return c->token_file == NULL ? 0 : read_token(c, e);
}
