/* The agent as a process of this host, for development: its own namespaces so that nothing
 * of it outlives it, but the host's files and kernel. No isolation. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"

static const char *isolation(const struct launcher_host *host)
{
	(void)host;
	return "none";
}

static int probe(const struct launcher_host *host, struct err *e)
{
	char path[PATH_MAX];
	return launcher_program(host->agent_path, path, e);
}

static int plan(const struct launcher_host *host, const struct launcher_request *r,
                struct vm_plan *plan, struct err *e)
{
	/* The pid namespace's first process only reaps: as that the agent would take itself
	 * for the init of a guest. It goes into the cgroup first, the reaper stays out. */
	static const char script[] = "(if [ -n \"$1\" ]; then echo 0 >\"$1/cgroup.procs\"; fi;"
	                             " exec \"$0\" --unix \"$2\" --port 0) & wait $!";
	struct vm_command *c = &plan->command[plan->count++];
	plan->endpoint.kind = TRANSPORT_UNIX;
	if (launcher_socket(plan->endpoint.path, r->dir, "agent.sock", e) < 0)
		return -1;
	c->namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;
	if (geteuid() != 0)
		c->namespaces |= CLONE_NEWUSER;
	plan->enters_cgroup = true;
	vm_command_arg(c, "/bin/sh");
	vm_command_arg(c, "-c");
	vm_command_arg(c, "%s", script);
	vm_command_arg(c, "%s", host->agent_path);
	vm_command_arg(c, "%s", r->cgroup);
	vm_command_arg(c, "%s", plan->endpoint.path);
	return 0;
}

const struct launcher launcher_local = {
    .name = "local",
    .isolation = isolation,
    .probe = probe,
    .plan = plan,
};
