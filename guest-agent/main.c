/* guest-agent: settings, one agent, its loop. As PID 1 it is the machine's init as well. */
#include <fcntl.h>
#include <unistd.h>

#include "guest-agent/agent.h"
#include "guest-agent/config.h"
#include "guest-agent/init.h"
#include "proto/log.h"

/* A descriptor below 3 would be in the way of a command's own. */
static void open_standard_fds(void)
{
	int fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd < 3)
		fd = dup(fd);
	if (fd >= 3)
		close(fd);
}

int main(int argc, char **argv)
{
	struct config config;
	struct err e = {0};

	if (getpid() == 1)
		init_setup();
	open_standard_fds();
	if (config_load(&config, argc, argv, &e) < 0) {
		if (getpid() != 1) {
			log_error("config", NULL, "%s", e.msg);
			return 2;
		}
		log_error("config", NULL, "%s: the rest of the settings holds", e.msg);
	}
	log_setup(config.log_level, config.log_json);
	struct agent *a = agent_create(&config, &e);
	if (a == NULL)
		fatal("agent", "%s", e.msg);
	agent_run(a);
	agent_destroy(a);
	config_free(&config);
	init_power_off();
	return 0;
}
