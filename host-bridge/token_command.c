#include "host-bridge/token_command.h"

#include <ctype.h>
#include <getopt.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host-bridge/api/tokens_edit.h"

#define TOKEN_RANDOM_BYTES 32
#define TOKEN_PREFIX "sg_" /* so that a leaked one is recognised for what it is */
#define ID_RANDOM_BYTES 5

struct options {
	const char *file, *workspace, *role, *id;
	struct workspace_limits limits;
	bool set[LIMIT_COUNT];
	bool any_limit, help;
};

/* Values of getopt_long: one of `LIMIT + i` for each limit. */
enum { FILE_OPTION = 1, WORKSPACE, ROLE, ID, HELP, LIMIT = 64 };

static const struct option longs[] = {
    {"token-file", required_argument, NULL, FILE_OPTION},
    {"workspace", required_argument, NULL, WORKSPACE},
    {"role", required_argument, NULL, ROLE},
    {"id", required_argument, NULL, ID},
    {"max-sandboxes", required_argument, NULL, LIMIT + LIMIT_SANDBOXES},
    {"max-memory-mib", required_argument, NULL, LIMIT + LIMIT_MEMORY_MIB},
    {"max-vcpus", required_argument, NULL, LIMIT + LIMIT_VCPUS},
    {"max-execs", required_argument, NULL, LIMIT + LIMIT_EXECS},
    {"max-creates-per-minute", required_argument, NULL, LIMIT + LIMIT_CREATES_PER_MINUTE},
    {"help", no_argument, NULL, HELP},
    {0},
};

static void help(void)
{
	puts(
	    "usage: host-bridge token add    --token-file FILE [--workspace NAME]\n"
	    "                               [--role member|admin] [--id ID] [LIMIT]...\n"
	    "       host-bridge token limit  --token-file FILE [--workspace NAME] LIMIT...\n"
	    "       host-bridge token list   --token-file FILE\n"
	    "       host-bridge token revoke --token-file FILE ID\n\n"
	    "Manage the tokens of the API and the limits of workspaces. A bridge that serves\n"
	    "with the same file takes the change at once, without a restart.\n\n"
	    "  --token-file FILE      or SANDGATE_TOKEN_FILE in the environment; add and "
	    "limit\n"
	    "                         make it\n"
	    "  --workspace NAME       whose sandboxes it sees (default)\n"
	    "  --role ROLE            member, or admin: sees every workspace (member)\n"
	    "  --id ID                the token's name in logs and for revoke (made)\n"
	    "  --help\n\n"
	    "Limits are the workspace's, whatever its token; N is a number or none:\n"
	    "  --max-sandboxes N      that are not deleted\n"
	    "  --max-memory-mib N     of them together\n"
	    "  --max-vcpus N          likewise\n"
	    "  --max-execs N          that run at once\n"
	    "  --max-creates-per-minute N\n\n"
	    "add prints the new token on standard output, this once: the file keeps its hash.");
}

/* ---- what was asked ---- */

static int wrong(const char *what, const char *value)
{
	fprintf(stderr, "host-bridge: token: %s%s; see host-bridge token --help\n", what,
	        value);
	return -1;
}

/* What may stand in the file as one word, and is no other kind of line. */
static bool is_name(const char *name)
{
	size_t n = strlen(name);
	if (n == 0 || n > TOKENS_NAME_MAX || strcmp(name, "limits") == 0)
		return false;
	for (const char *p = name; *p != '\0'; p++)
		if (!isalnum((unsigned char)*p) && strchr("._-", *p) == NULL)
			return false;
	return true;
}

static int take_option(struct options *o, int option)
{
	switch (option) {
	case FILE_OPTION:
		o->file = optarg;
		return 0;
	case WORKSPACE:
		o->workspace = optarg;
		return is_name(optarg) ? 0 : wrong("not a workspace's name: ", optarg);
	case ROLE:
		o->role = optarg;
		if (strcmp(optarg, "admin") == 0 || strcmp(optarg, "member") == 0)
			return 0;
		return wrong("the role is member or admin, not ", optarg);
	case ID:
		o->id = optarg;
		return is_name(optarg) ? 0 : wrong("not an id: ", optarg);
	case HELP:
		o->help = true;
		return 0;
	}
	o->any_limit = o->set[option - LIMIT] = true;
	if (tokens_limit_value(optarg, true, &o->limits.max[option - LIMIT]))
		return 0;
	return wrong("a limit is a whole number or none, not ", optarg);
}

static int parse(struct options *o, int argc, char **argv)
{
	int option;
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", longs, NULL)) >= 0)
		if (option == '?' || option == ':')
			return wrong("unknown, or without its value: ", argv[optind - 1]);
		else if (take_option(o, option) < 0)
			return -1;
	if (o->help)
		return 0;
	bool revoke = strcmp(argv[0], "revoke") == 0;
	if (revoke && optind < argc)
		o->id = argv[optind++];
	if (optind < argc)
		return wrong("unexpected: ", argv[optind]);
	if (o->file == NULL || *o->file == '\0')
		return wrong("--token-file is missing", "");
	if (revoke && o->id == NULL)
		return wrong("revoke needs the token's id", "");
	strcpy(o->limits.workspace, o->workspace);
	return 0;
}

static int failed(const struct err *e)
{
	fprintf(stderr, "host-bridge: %s\n", e->msg);
	return 1;
}

/* ---- add ---- */

static void make_token(char *token, size_t room)
{
	unsigned char random[TOKEN_RANDOM_BYTES];
	size_t n = strlen(TOKEN_PREFIX);
	randombytes_buf(random, sizeof(random));
	memcpy(token, TOKEN_PREFIX, n);
	sodium_bin2base64(token + n, room - n, random, sizeof(random),
	                  sodium_base64_VARIANT_URLSAFE_NO_PADDING);
}

static void describe(struct token *t, const struct options *o, const char *token)
{
	time_t now = time(NULL);
	struct tm utc;
	if (o->id != NULL) {
		strcpy(t->id, o->id);
	} else {
		unsigned char random[ID_RANDOM_BYTES];
		randombytes_buf(random, sizeof(random));
		memcpy(t->id, "tok-", 4);
		sodium_bin2hex(t->id + 4, sizeof(t->id) - 4, random, sizeof(random));
	}
	strcpy(t->workspace, o->workspace);
	t->admin = strcmp(o->role, "admin") == 0;
	tokens_hash(token, t->hash);
	gmtime_r(&now, &utc);
	strftime(t->created, sizeof(t->created), "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static void take_limits(struct tokens_change *c, const struct options *o)
{
	c->limits = o->any_limit ? &o->limits : NULL;
	memcpy(c->set, o->set, sizeof(c->set));
}

static int add(const struct options *o)
{
	struct err e;
	struct token t = {0};
	char token[sizeof(TOKEN_PREFIX) +
	           sodium_base64_ENCODED_LEN(TOKEN_RANDOM_BYTES,
	                                     sodium_base64_VARIANT_URLSAFE_NO_PADDING)];
	make_token(token, sizeof(token));
	describe(&t, o, token);
	struct tokens_change c = {.add = &t};
	take_limits(&c, o);
	if (tokens_edit(o->file, &c, &e) < 0)
		return failed(&e);
	if (puts(token) < 0 || fflush(stdout) != 0) {
		fprintf(stderr, "host-bridge: the token could not be printed: revoke %s\n",
		        t.id);
		return 1;
	}
	fprintf(stderr, "token %s of workspace %s (%s); it is not shown again\n", t.id,
	        t.workspace, o->role);
	return 0;
}

/* ---- the others ---- */

static int limit(const struct options *o)
{
	struct err e;
	struct tokens_change c = {0};
	if (!o->any_limit) {
		wrong("no limit is given", "");
		return 2;
	}
	take_limits(&c, o);
	return tokens_edit(o->file, &c, &e) < 0 ? failed(&e) : 0;
}

static int take_out(const struct options *o)
{
	struct err e;
	const struct tokens_change c = {.revoke = o->id};
	return tokens_edit(o->file, &c, &e) < 0 ? failed(&e) : 0;
}

static void list_limits(const struct tokens *t)
{
	printf("\n%-24s", "WORKSPACE");
	for (int i = 0; i < LIMIT_COUNT; i++)
		printf(" %*s", (int)strlen(tokens_limit_names[i]), tokens_limit_names[i]);
	putchar('\n');
	for (size_t n = 0; n < t->limits_count; n++) {
		printf("%-24s", t->limits[n].workspace);
		for (int i = 0; i < LIMIT_COUNT; i++) {
			int width = (int)strlen(tokens_limit_names[i]);
			if (t->limits[n].max[i] == LIMIT_NONE)
				printf(" %*s", width, "none");
			else
				printf(" %*" PRIu64, width, t->limits[n].max[i]);
		}
		putchar('\n');
	}
}

static int list(const struct options *o)
{
	struct err e;
	struct tokens t;
	if (tokens_load(o->file, &t, &e) < 0)
		return failed(&e);
	printf("%-24s %-24s %-6s %s\n", "ID", "WORKSPACE", "ROLE", "CREATED");
	for (size_t i = 0; i < t.count; i++)
		printf("%-24s %-24s %-6s %s\n", t.tokens[i].id, t.tokens[i].workspace,
		       t.tokens[i].admin ? "admin" : "member",
		       t.tokens[i].created[0] != '\0' ? t.tokens[i].created : "-");
	if (t.limits_count > 0)
		list_limits(&t);
	tokens_free(&t);
	return fflush(stdout) == 0 ? 0 : 1;
}

int token_command_main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(const struct options *o);
	} actions[] = {{"add", add}, {"limit", limit}, {"list", list}, {"revoke", take_out}};
	struct options o = {
	    .file = getenv("SANDGATE_TOKEN_FILE"), .workspace = "default", .role = "member"};
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		help();
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(actions) / sizeof(actions[0]); i++) {
		if (strcmp(argv[1], actions[i].name) != 0)
			continue;
		if (parse(&o, argc - 1, argv + 1) < 0)
			return 2;
		if (o.help) {
			help();
			return 0;
		}
		return sodium_init() < 0 ? 1 : actions[i].run(&o);
	}
	wrong("what to do is add, limit, list or revoke", "");
	return 2;
}
