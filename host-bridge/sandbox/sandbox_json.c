/* A sandbox as the API shows it (api.md section 2): every field is always there. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "host-bridge/steady.h"
#include "proto/clock.h"

/* RFC 3339, in UTC, with milliseconds. */
json_t *sandbox_instant(int64_t ms)
{
	char text[40];
	struct tm tm;
	time_t s = (time_t)(ms / 1000);
	gmtime_r(&s, &tm);
	size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text + n, sizeof(text) - n, ".%03dZ", (int)(ms % 1000));
	return json_string(text);
}

json_t *sandbox_resources_json(unsigned vcpus, unsigned memory_mib, unsigned disk_mib)
{
	return json_pack("{s:i, s:i, s:o}", "vcpus", (int)vcpus, "memory_mib", (int)memory_mib,
	                 "disk_mib", disk_mib > 0 ? json_integer(disk_mib) : json_null());
}

/* What the sandbox really has: nothing is set aside for a process of this host. */
static json_t *resources(const struct sandbox *s)
{
	if (!s->launcher->takes_memory)
		return json_null();
	return sandbox_resources_json(s->spec.vcpus, s->spec.memory_mib, s->spec.disk_mib);
}

static const char *boot_mode(const struct sandbox *s)
{
	if (s->launcher->external)
		return "attach";
	return s->restored ? "restore" : "boot";
}

static double idle_seconds(const struct sandbox *s)
{
	return s->holds > 0 ? 0 : round((steady_now() - s->active) * 1e3) / 1e3;
}

static json_t *expires_at(const struct sandbox *s)
{
	double in = sandbox_expires_in(s);
	return in < 0 ? json_null() : sandbox_instant(clock_wall_ms() + (int64_t)(in * 1e3));
}

json_t *sandbox_lifecycle_json(const struct sandbox *s)
{
	json_t *lifetime = s->spec.max_lifetime_seconds > 0
	                       ? json_real(s->spec.max_lifetime_seconds)
	                       : json_null();
	return json_pack("{s:f, s:o, s:b, s:f, s:o}", "ttl_seconds", s->spec.ttl_seconds,
	                 "max_lifetime_seconds", lifetime, "persistent", s->spec.persistent,
	                 "idle_seconds", idle_seconds(s), "expires_at", expires_at(s));
}

json_t *sandbox_json(const struct sandbox *s)
{
	bool booted = s->agent != NULL && s->status != SANDBOX_CREATING;
	json_t *boot_ms = booted ? json_integer(s->launch_ms + s->agent_ms) : json_null();
	json_t *stages = booted ? json_pack("{s:i, s:i}", "launch", (int)s->launch_ms, "agent",
	                                    (int)s->agent_ms)
	                        : json_null();
	const char *template = s->spec.template[0] != '\0' ? s->spec.template : NULL;
	return json_pack("{s:s, s:s, s:s, s:s?, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:f,"
	                 " s:O, s:o, s:O?, s:O?}",
	                 "id", s->id, "node", s->set->node, "workspace", s->spec.workspace,
	                 "template", template, "status", sandbox_status_name(s->status), "vmm",
	                 s->launcher->name, "isolation", s->isolation, "boot_mode",
	                 boot_mode(s), "boot_ms", boot_ms, "boot_stages_ms", stages,
	                 "created_at", sandbox_instant(s->created_ms), "expires_at",
	                 expires_at(s), "idle_seconds", idle_seconds(s), "metadata",
	                 s->spec.metadata, "resources", resources(s), "exec_defaults",
	                 s->spec.exec_defaults, "agent", s->agent);
}

bool sandbox_agent_has(const struct sandbox *s, const char *feature)
{
	const json_t *features = json_object_get(s->agent, "features"), *name;
	size_t i;
	json_array_foreach ((json_t *)features, i, name)
		if (json_is_string(name) && strcmp(json_string_value(name), feature) == 0)
			return true;
	return false;
}

json_t *sandbox_set_json(struct sandbox_set *set)
{
	json_t *launchers = json_array();
	const struct launcher *l;
	const struct launcher *chosen = launcher_choose(set->launcher, &set->host, NULL);
	json_int_t vcpus = 0, memory = 0, host = (json_int_t)launcher_host_memory();
	struct sandbox *s = NULL;
	for (unsigned i = 0; (l = launcher_at(i)) != NULL; i++) {
		struct err e = {0};
		bool usable = l == chosen || launcher_works(l, &set->host, &e) == 0;
		doc_append(&launchers,
		           json_pack("{s:s, s:b, s:s, s:s?}", "name", l->name, "usable", usable,
		                     "isolation", l->isolation(&set->host), "reason",
		                     usable ? NULL : e.msg));
	}
	while ((s = sandbox_next(set, s)) != NULL)
		if (s->launcher->takes_memory && s->status != SANDBOX_FAILED) {
			vcpus += s->spec.vcpus;
			memory += s->spec.memory_mib;
		}
	return json_pack("{s:s?, s:o, s:{s:o, s:I}, s:{s:I, s:I}, s:i}", "launcher",
	                 chosen != NULL ? chosen->name : NULL, "launchers", launchers,
	                 "capacity", "memory_mib", host > 0 ? json_integer(host) : json_null(),
	                 "vcpus", (json_int_t)launcher_host_cpus(), "allocated", "memory_mib",
	                 memory, "vcpus", vcpus, "warm_vms", (int)sandbox_warm_count(set));
}
