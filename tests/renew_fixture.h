/*
 * For check_renew.c and check_network.c: Resumes that are carried out in namespaces of the
 * test's own, with an /etc and a /run of its own, so that this machine keeps its names.
 */
#ifndef SANDGATE_RENEW_FIXTURE_H
#define SANDGATE_RENEW_FIXTURE_H

#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/renew.h"
#include "tests/suite_fixture.h"

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

static struct renewal *renewal;

static inline bool enter_own_machine(void)
{
	return unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET) == 0 &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", "/etc", "tmpfs", 0, NULL) == 0 &&
	       mount("tmpfs", "/run", "tmpfs", 0, NULL) == 0;
}

static inline void setup(void)
{
	ck_assert(enter_own_machine());
}

static inline bool may_have_one(void)
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0)
		_exit(enter_own_machine() ? 0 : 1);
	waitpid(pid, &status, 0);
	return status == 0;
}

static uint8_t entropy[RESUME_ENTROPY_MAX];

static inline Sandgate__Resume clone_message(void)
{
	Sandgate__Resume m = SANDGATE__RESUME__INIT;
	m.role = SANDGATE__RESUME_ROLE__RESUME_CLONE;
	for (size_t i = 0; i < sizeof(entropy); i++)
		entropy[i] = (uint8_t)(i * 7);
	m.entropy = (ProtobufCBinaryData){RESUME_ENTROPY_MIN, entropy};
	return m;
}

/* The steps that failed. */
static inline int carry_out(const Sandgate__Resume *m)
{
	struct err e = {0};
	renewal_free(renewal);
	renewal = renewal_parse(m, &e);
	ck_assert_msg(renewal != NULL, "%s", e.msg);
	renewal->may_manage = true;
	return renew(renewal);
}

static inline void put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	ck_assert(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static inline const char *content(const char *path)
{
	static char text[256];
	FILE *f = fopen(path, "re");
	ck_assert_msg(f != NULL, "%s", path);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	return text;
}

/* The body of main: the cases that `add` adds, where there can be such a machine. */
static inline int run_own_machine_suite(const char *name, void (*add)(TCase *t))
{
	TCase *t = new_case(name, setup, NULL);
	if (may_have_one())
		add(t);
	else
		printf("skipped: no namespaces of our own here\n");
	return run_suite(name, t) != 0;
}

#endif
