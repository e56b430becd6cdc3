#include "host-bridge/launcher/launcher.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "proto/limits.h"

static const struct launcher *const launchers[] = {
    &launcher_firecracker, &launcher_cloud_hypervisor, &launcher_qemu, &launcher_local,
    &launcher_uml,         &launcher_attach,
};

const struct launcher *launcher_at(unsigned n)
{
	return n < sizeof(launchers) / sizeof(*launchers) ? launchers[n] : NULL;
}

const struct launcher *launcher_find(const char *name)
{
	const struct launcher *l;
	for (unsigned i = 0; (l = launcher_at(i)) != NULL; i++)
		if (strcmp(l->name, name) == 0)
			return l;
	return NULL;
}

int launcher_works(const struct launcher *l, const struct launcher_host *host, struct err *e)
{
	if (l->needs_kvm && host->kvm != l)
		return l->probe(host, e) < 0
		           ? -1
		           : err_set(e, ERR_LAUNCHER_FAILED,
		                     "KVM has not been proved to work with %s here", l->name);
	return l->probe(host, e);
}

/* One that is asked for by name may try what has not been proved. */
const struct launcher *launcher_choose(const char *name, const struct launcher_host *host,
                                       struct err *e)
{
	const struct launcher *l;
	struct err why = {0};
	if (strcmp(name, "auto") != 0) {
		l = launcher_find(name);
		if (l == NULL)
			err_set(e, ERR_LAUNCHER_FAILED, "there is no launcher %s", name);
		return l != NULL && l->probe(host, e) == 0 ? l : NULL;
	}
	for (unsigned i = 0; (l = launcher_at(i)) != NULL; i++)
		if (l->automatic && launcher_works(l, host, &why) == 0)
			return l;
	err_set(e, ERR_LAUNCHER_FAILED, "no launcher works here: %s", why.msg);
	return NULL;
}

void launcher_hostname(const char *id, char out[64])
{
	const char *ulid = strrchr(id, '-');
	snprintf(out, 64, "sb%s", ulid != NULL ? ulid : "");
}

int launcher_plan(const struct launcher *l, const struct launcher_host *host,
                  const struct launcher_request *r, struct vm_plan *plan, struct err *e)
{
	launcher_hostname(r->id, plan->boot.hostname);
	if (l->plan(host, r, plan, e) < 0)
		return -1;
	if (plan->count > 0)
		snprintf(plan->cgroup, sizeof(plan->cgroup), "%s", r->cgroup);
	if (l->takes_memory)
		plan->size = (struct vm_cgroup_size){r->memory_mib, r->vcpus};
	return 0;
}

/* A line of /proc/meminfo, in MiB. */
static unsigned long long meminfo(const char *key)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	if (f == NULL)
		return 0;
	size_t len = strlen(key);
	while (fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, key, len) == 0 && line[len] == ':') {
			kib = strtoull(line + len + 1, NULL, 10);
			break;
		}
	fclose(f);
	return kib / 1024;
}

unsigned long long launcher_host_memory(void)
{
	return meminfo("MemTotal");
}

unsigned launcher_host_cpus(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (unsigned)CPU_COUNT(&set);
	return (unsigned)get_nprocs(); /* there are more than such a set can hold */
}

int launcher_capacity(const struct launcher *l, unsigned memory_mib,
                      unsigned long long committed_mib, struct err *e)
{
	unsigned long long need = (unsigned long long)memory_mib + VM_OVERHEAD_MIB;
	unsigned long long total = launcher_host_memory(), free_now = meminfo("MemAvailable");
	if (!l->takes_memory)
		return 0;
	if (total == 0)
		return err_errno(e, ERR_CAPACITY, errno, "this host's memory cannot be told");
	if (need + HOST_RESERVE_MIB > total) {
		unsigned spare = HOST_RESERVE_MIB + VM_OVERHEAD_MIB;
		unsigned long long most = total > spare ? total - spare : 0;
		return err_limit(e, ERR_LIMIT_UNSUPPORTED, "resources.memory_mib", most,
		                 "a sandbox can have at most %llu MiB on this host", most);
	}
	if (committed_mib + need + HOST_RESERVE_MIB > total || need > free_now)
		return err_set(e, ERR_CAPACITY, "this host has no room for %u MiB more",
		               memory_mib);
	return 0;
}

int launcher_socket(char out[108], const char *dir, const char *name, struct err *e)
{
	int n = snprintf(out, 108, "%s/%s", dir, name);
	if (n < 0 || n >= 108)
		return err_set(e, ERR_LAUNCHER_FAILED,
		               "the state directory's path is too long for a socket");
	return 0;
}

int launcher_program(const char *program, char out[PATH_MAX], struct err *e)
{
	char path[PATH_MAX];
	const char *dirs = getenv("PATH");
	if (strchr(program, '/') != NULL) {
		if (access(program, X_OK) == 0 && realpath(program, out) != NULL)
			return 0;
		return err_set(e, ERR_LAUNCHER_FAILED, "%s is not executable", program);
	}
	dirs = dirs != NULL ? dirs : "/usr/local/bin:/usr/bin:/bin";
	while (*dirs != '\0') {
		size_t n = strcspn(dirs, ":");
		snprintf(path, sizeof(path), "%.*s/%s", (int)n, dirs, program);
		if (access(path, X_OK) == 0 && realpath(path, out) != NULL)
			return 0;
		dirs += n + (dirs[n] == ':');
	}
	return err_set(e, ERR_LAUNCHER_FAILED, "%s is not installed", program);
}

int launcher_device(const struct launcher_request *r, struct vm_plan *plan, struct err *e)
{
	struct vm_command *c = &plan->command[plan->count++];
	plan->endpoint.kind = TRANSPORT_HYBRID;
	plan->endpoint.port = AGENT_PORT;
	plan->uid = r->uid;
	if (launcher_socket(plan->endpoint.path, r->dir, "vsock.sock", e) < 0)
		return -1;
	vm_command_arg(c, "/proc/self/exe");
	vm_command_arg(c, "vsock-device");
	vm_command_arg(c, "--socket");
	vm_command_arg(c, "%s", DEVICE_SOCKET);
	vm_command_arg(c, "--uds");
	vm_command_arg(c, "vsock.sock");
	vm_command_arg(c, "--uid");
	vm_command_arg(c, "%u", r->uid);
	vm_command_arg(c, "--gid");
	vm_command_arg(c, "%u", r->uid);
	c->says_ready = true;
	return 0;
}

int launcher_plan_api(const struct launcher_request *r, const char *room, const char *api,
                      const char *vsock, struct vm_plan *plan, struct err *e)
{
	char path[108];
	plan->endpoint.kind = TRANSPORT_HYBRID;
	plan->endpoint.port = AGENT_PORT;
	if (launcher_socket(plan->endpoint.path, room, vsock, e) < 0 ||
	    launcher_socket(path, room, api, e) < 0)
		return -1;
	plan->boot.vcpus = r->vcpus;
	plan->boot.memory_mib = r->memory_mib;
	if (r->restore != NULL) {
		snprintf(plan->restore, sizeof(plan->restore), "%s", r->restore);
		return 0;
	}
	snprintf(plan->boot.kernel, sizeof(plan->boot.kernel), "%s", r->template.kernel);
	snprintf(plan->boot.initrd, sizeof(plan->boot.initrd), "%s", r->template.initrd);
	return 0;
}

void launcher_disks(const struct launcher_request *r, struct vm_plan *plan)
{
	snprintf(plan->boot.root, sizeof(plan->boot.root), "%s", r->template.root);
	plan->boot.disk_mib = r->disk_mib;
	plan->boot.disk_owner = r->uid;
}
