/*
 * Init of a guest that runs check programs as the agent would run: as PID 1's own children,
 * in the root cgroup, with every controller there is. Prints "RESULT <program> <status>" a
 * program and powers off.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/init.h"

static void run(const char *program)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		execl(program, program, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	printf("RESULT %s %d\n", program, status);
	fflush(stdout);
}

int main(void)
{
	char path[512];
	struct dirent *d;

	init_setup();
	setenv("PATH", "/usr/bin:/bin", 1);
	DIR *checks = opendir("/checks");
	while (checks != NULL && (d = readdir(checks)) != NULL) {
		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/checks/%s", d->d_name);
		run(path);
	}
	init_power_off();
	return 1;
}
