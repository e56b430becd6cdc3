#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest-agent/cgroup_files.h"
#include "guest-agent/own_mount.h"
#include "guest-agent/spawn_child.h"
#include "proto/limits.h"

#define DEFAULT_PATH "/usr/bin:/bin"

static const struct spawn_rlimit default_rlimits[] = {
    {RLIMIT_NOFILE, {NOFILE_SOFT, NOFILE_HARD}},
    {RLIMIT_CORE, {0, RLIM_INFINITY}},
    {RLIMIT_STACK, {8 * MIB, RLIM_INFINITY}},
    {RLIMIT_FSIZE, {RLIM_INFINITY, RLIM_INFINITY}},
    {RLIMIT_AS, {RLIM_INFINITY, RLIM_INFINITY}},
    {RLIMIT_CPU, {RLIM_INFINITY, RLIM_INFINITY}},
    {RLIMIT_DATA, {RLIM_INFINITY, RLIM_INFINITY}},
    {RLIMIT_LOCKS, {RLIM_INFINITY, RLIM_INFINITY}},
    {RLIMIT_RSS, {RLIM_INFINITY, RLIM_INFINITY}},
    {RLIMIT_RTTIME, {RLIM_INFINITY, RLIM_INFINITY}},
};
_Static_assert(sizeof(default_rlimits) / sizeof(default_rlimits[0]) <= SPAWN_RLIMITS_MAX,
               "a child has room for every limit");

/* From /proc: libc does not tell of its own two signals (32, 33), and a parent may have left
 * those ignored as well. */
static uint64_t ignored_signals(void)
{
	char line[128];
	uint64_t ignored = 0;
	FILE *f = fopen("/proc/self/status", "re");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, "SigIgn:", 7) == 0)
			ignored = strtoull(line + 7, NULL, 16);
	if (f != NULL)
		fclose(f);
	return ignored;
}

static bool oom_score_is_set(void)
{
	char text[16];
	cgroup_files_read(own_proc(), "self/oom_score_adj", text, sizeof(text));
	return atoi(text) != 0;
}

static bool has_inheritable(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	return syscall(SYS_capget, &head, data) == 0 &&
	       (data[0].inheritable | data[1].inheritable) != 0;
}

void spawn_own_learn(struct spawn_own *own)
{
	for (int i = 0; i < RLIM_NLIMITS; i++)
		getrlimit((__rlimit_resource_t)i, &own->rlimits[i]);
	own->ignored = ignored_signals();
	own->uid = geteuid();
	own->gid = getegid();
	own->group_count = getgroups(IDENTITY_GROUPS_MAX, own->groups);
	own->oom_score = oom_score_is_set();
	own->inheritable = has_inheritable();
}

static bool has_group(gid_t gid, const gid_t *groups, int count)
{
	for (int i = 0; i < count; i++)
		if (groups[i] == gid)
			return true;
	return false;
}

/* The primary group belongs to both sides, listed or not. */
static bool is_self(const struct identity *who, const struct spawn_own *own)
{
	if (who->uid != own->uid || who->gid != own->gid || own->group_count < 0)
		return false;
	for (int i = 0; i < who->group_count; i++)
		if (who->groups[i] != own->gid &&
		    !has_group(who->groups[i], own->groups, own->group_count))
			return false;
	for (int i = 0; i < own->group_count; i++)
		if (own->groups[i] != who->gid &&
		    !has_group(own->groups[i], who->groups, who->group_count))
			return false;
	return true;
}

/* The wanted limits that the agent's own differ from. A default never asks for more than
 * the agent's hard limit, so that an agent without privilege can spawn too. */
static void plan_rlimits(struct spawn_child *c, const struct spawn_own *self)
{
	const struct spawn_plan *plan = c->plan;

	for (size_t i = 0; i < sizeof(default_rlimits) / sizeof(default_rlimits[0]); i++) {
		struct spawn_rlimit want = default_rlimits[i];
		struct rlimit *v = &want.value;
		const struct rlimit *own = &self->rlimits[want.resource];
		if (want.resource == RLIMIT_NOFILE && plan->open_files != UINT64_MAX) {
			v->rlim_cur = v->rlim_max = plan->open_files;
		} else if (want.resource == RLIMIT_FSIZE && plan->file_size != UINT64_MAX) {
			v->rlim_cur = v->rlim_max = plan->file_size;
		} else {
			v->rlim_max = MIN(v->rlim_max, own->rlim_max);
			v->rlim_cur = MIN(v->rlim_cur, own->rlim_max);
		}
		if (v->rlim_cur != own->rlim_cur || v->rlim_max != own->rlim_max)
			c->rlimits[c->rlimit_count++] = want;
	}
}

/* Every path that execve is to try, in one block: argv[0] itself when it has a '/', else
 * under each directory of PATH, an empty one being the working directory. NULL: no memory. */
static char *const *list_programs(const char *name, const char *path)
{
	size_t dirs = 1, bytes = strlen(path) + 1;
	bool search = strchr(name, '/') == NULL && name[0] != '\0';

	for (const char *c = path; *c != '\0'; c++)
		dirs += *c == ':';
	char **list = malloc((dirs + 1) * sizeof(*list) + bytes + dirs * (strlen(name) + 2));
	if (list == NULL)
		return NULL;
	char *text = (char *)(list + dirs + 1);
	size_t n = 0;
	while (search) {
		size_t len = strcspn(path, ":");
		list[n++] = text;
		text += sprintf(text, "%.*s%s%s", (int)len, path, len > 0 ? "/" : "", name) + 1;
		if (path[len] == '\0')
			break;
		path += len + 1;
	}
	if (!search)
		list[n++] = strcpy(text, name);
	list[n] = NULL;
	return list;
}

int spawn_child_prepare(struct spawn_child *c, const struct spawn_plan *plan,
                        const struct spawn_own *own, bool has_clone3)
{
	c->plan = plan;
	c->programs =
	    list_programs(plan->argv[0], plan->path != NULL ? plan->path : DEFAULT_PATH);
	if (c->programs == NULL)
		return -1;
	/* clone3 resets handlers and finds the leaf; clone(2) does neither. */
	c->ignored = has_clone3 ? own->ignored : UINT64_MAX;
	c->join_cgroup = !has_clone3;
	c->proc = own->oom_score ? own_proc() : -1;
	c->drop_inheritable = own->inheritable;
	c->switch_user = !is_self(plan->who, own);
	plan_rlimits(c, own);
	return 0;
}

void spawn_child_release(struct spawn_child *c)
{
	free((void *)c->programs);
}
