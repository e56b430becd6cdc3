/*
 * What no portable C can say: a clone3(2) whose child runs on a stack of its own. glibc 2.36
 * has such a function but keeps it to itself. arch.c holds the only assembler of the project.
 */
#ifndef SANDGATE_ARCH_H
#define SANDGATE_ARCH_H

#include <linux/sched.h>

/* clone3 with `args` (its stack is required). The child calls entry(arg), which must never
 * return; the parent gets the child's pid, or -errno. errno is not touched. */
long arch_clone3(const struct clone_args *args, void (*entry)(void *arg), void *arg);

#endif
