/* The inside of the agent, for agent.c (its life) and agent_info.c (what it tells about
 * itself). Nobody else includes this. */
#ifndef SANDGATE_AGENT_PRIVATE_H
#define SANDGATE_AGENT_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "guest-agent/agent.h"
#include "guest-agent/listen.h"
#include "guest-agent/session.h"

#define AGENT_FEATURES_MAX 10

struct agent {
	struct config *config;
	struct ev_loop *loop;
	struct idle *idle;
	struct cgroup_tree *tree;
	struct workers *workers, *pipe_workers;
	struct spawner *spawner;
	struct exec_table *table;
	struct session_set *sessions;
	struct snapshot *snapshot;
	struct listener *vsock, *local;
	ev_signal terminate[2];
	ev_timer shutdown_over;
	bool execs_ended;
	void (*on_idle)(void *arg);
	void *idle_arg;
	char *features[AGENT_FEATURES_MAX];
	size_t feature_count;
	char kernel[65], arch[65];
	uint32_t cpus;
};

/* Once, at start. */
void agent_learn_features(struct agent *a);

#endif
