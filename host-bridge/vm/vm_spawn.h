/*
 * One process of a VM: what it is to be, and its start. The process gets its own session
 * (so that it outlives the bridge, and can be killed as a group), a clean environment, no
 * descriptors but 0 (null), 1, 2 and what it is to listen on. vm.c calls it; launchers fill in
 * the commands.
 */
#ifndef SANDGATE_VM_SPAWN_H
#define SANDGATE_VM_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/err.h"

#define VM_ARGS_MAX 64
#define VM_FEW_MAX 8

struct vm_command {
	char *argv[VM_ARGS_MAX]; /* owned, as all that follow; NULL at the end */
	char *env[VM_FEW_MAX];   /* beside PATH, HOME and LANG */
	char *jail[VM_FEW_MAX];  /* files and directories; see below */
	char *writable;          /* one more file for the jail; or NULL */
	char *listen;            /* a Unix socket that it gets, listening, as descriptor 3 */
	unsigned argc, envc, jailc;
	bool broken; /* one of them could not be added */

	bool says_ready;      /* writes "ready" on its output; the next one waits for it */
	unsigned namespaces;  /* CLONE_NEW*; with NEWPID and NEWNS its /proc is its own */
	bool kvm;             /* its jail has a /dev/kvm and a /dev/urandom of its own */
	bool fixed_addresses; /* no address space randomisation */
	int cpu;              /* the only CPU it runs on, plus 1; 0: any */
	uid_t uid;            /* whom to become when started by root; 0: nobody else */
};

/* Append an argument, a NAME=value. Failures are remembered and told by vm_spawn. */
void vm_command_arg(struct vm_command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void vm_command_env(struct vm_command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Lock the process into its directory (needs root, NEWNS): it sees `path` of this host, read
 * only, at the same place in it, the host's libraries, and an empty /tmp in memory. */
void vm_command_jail(struct vm_command *c, const char *path);
/* The same for one file that it may write to. */
void vm_command_jail_writable(struct vm_command *c, const char *path);
/* Let it listen at `path`: whoever connects does not have to wait for it. */
void vm_command_listen(struct vm_command *c, const char *path);
void vm_command_free(struct vm_command *c);

struct vm_pid {
	pid_t pid;
	unsigned long long start; /* field 22 of /proc/<pid>/stat: pids come again, this not */
	int fd;                   /* pidfd */
};

/* Start it in `dir` and in `cgroup` (NULL: in that of the caller) with standard output and
 * error to `out`. An exec that fails is told on `out` and ends the process with 127. */
int vm_spawn(const struct vm_command *c, const char *dir, const char *cgroup, int out,
             struct vm_pid *p, struct err *e);
/* Find a process again; -1 when it is gone (or its number is another's by now), or with an
 * errno that err_is_shortage() knows. */
int vm_pid_open(struct vm_pid *p);
/* SIGKILL to the process and its group. */
void vm_pid_kill(const struct vm_pid *p);

#endif
