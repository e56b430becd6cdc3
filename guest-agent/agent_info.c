/* What the agent tells about itself and its machine. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "guest-agent/agent_private.h"
#include "guest-agent/cgroup_files.h"
#include "guest-agent/own_mount.h"
#include "guest-agent/renew.h"
#include "guest-agent/version.h"
#include "proto/clock.h"
#include "proto/limits.h"

void agent_learn_features(struct agent *a)
{
	static const struct {
		unsigned bit;
		const char *name;
	} names[] = {
	    {CGROUP_V2, "cgroup2"}, {CGROUP_MEMORY, "memory"}, {CGROUP_PIDS, "pids"},
	    {CGROUP_CPU, "cpu"},    {CGROUP_IO, "io"},         {CGROUP_KILL, "cgroup_kill"},
	};
	unsigned have = cgroup_tree_features(a->tree);
	struct utsname u;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (have & names[i].bit)
			a->features[a->feature_count++] = (char *)names[i].name;
	if (spawner_has_clone3(a->spawner))
		a->features[a->feature_count++] = "clone3";
	a->features[a->feature_count++] = "snapshot";
	if (a->config->manage_machine)
		a->features[a->feature_count++] = "machine";
	a->features[a->feature_count++] = "follow";
	a->cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN); /* reads files, so not later */
	if (uname(&u) == 0) {
		snprintf(a->kernel, sizeof(a->kernel), "%s", u.release);
		snprintf(a->arch, sizeof(a->arch), "%s", u.machine);
	}
}

static ProtobufCBinaryData instance(const struct agent *a)
{
	return (ProtobufCBinaryData){RENEW_ID_SIZE, (uint8_t *)snapshot_instance(a->snapshot)};
}

void agent_fill_opened(const struct agent *a, Sandgate__Opened *o)
{
	o->protocol_version = PROTOCOL_VERSION;
	o->n_features = a->feature_count;
	o->features = (char **)a->features;
	o->agent_instance = instance(a);
	o->generation = snapshot_generation(a->snapshot);
}

/* The first number behind `key` in a file of /proc; 0 where it is not. */
static uint64_t proc_number(const char *file, const char *key)
{
	char buf[4096];
	cgroup_files_read(own_proc(), file, buf, sizeof(buf));
	const char *at = strstr(buf, key);
	return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

static uint32_t count_fds(void)
{
	uint32_t n = 0;
	int fd = openat(own_proc(), "self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	if (d == NULL) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n - 3; /* ".", ".." and the listing's own */
}

void agent_fill_info(const struct agent *a, Sandgate__InfoReply *r)
{
	r->agent_version = AGENT_VERSION;
	r->protocol_version = PROTOCOL_VERSION;
	r->n_features = a->feature_count;
	r->features = (char **)a->features;
	r->kernel = (char *)a->kernel;
	r->arch = (char *)a->arch;
	r->memory_bytes = proc_number("meminfo", "MemTotal:") * KIB;
	r->cpus = a->cpus;
	r->wall_clock_ms = clock_wall_ms();
	r->agent_instance = instance(a);
	r->generation = snapshot_generation(a->snapshot);
	r->pid = (uint32_t)getpid();
	r->prepared = !snapshot_takes_work(a->snapshot);
}

void agent_fill_metrics(struct agent *a, Sandgate__MetricsReply *r)
{
	struct exec_table_counts c = exec_table_counts(a->table);

	r->memory_total_bytes = proc_number("meminfo", "MemTotal:") * KIB;
	r->memory_available_bytes = proc_number("meminfo", "MemAvailable:") * KIB;
	r->cpu_usage_us = c.cpu_us;
	r->execs_running = c.running;
	r->execs_retained = c.retained;
	r->retained_bytes = c.retained_bytes;
	r->sessions = session_set_count(a->sessions);
	r->agent_rss_bytes = proc_number("self/status", "VmRSS:") * KIB;
	r->agent_fds = count_fds();
	r->leaves = cgroup_tree_leaves(a->tree);
}
