#include "guest-agent/arch.h"

#include <stddef.h>
#include <sys/syscall.h>

#if defined(__x86_64__)

long arch_clone3(const struct clone_args *args, void (*entry)(void *arg), void *arg)
{
	long ret = SYS_clone3;
	register void (*r8)(void *) __asm__("r8") = entry;
	register void *r9 __asm__("r9") = arg;

	/* The kernel keeps r8 and r9 for the child. A zero frame pointer ends backtraces. */
	__asm__ volatile("syscall\n\t"
	                 "testq %%rax, %%rax\n\t"
	                 "jnz 1f\n\t"
	                 "xorl %%ebp, %%ebp\n\t"
	                 "movq %%r9, %%rdi\n\t"
	                 "call *%%r8\n\t"
	                 "hlt\n"
	                 "1:"
	                 : "+a"(ret)
	                 : "D"(args), "S"(sizeof(*args)), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "cc", "memory");
	return ret;
}

#elif defined(__aarch64__)

long arch_clone3(const struct clone_args *args, void (*entry)(void *arg), void *arg)
{
	register long x8 __asm__("x8") = SYS_clone3;
	register long x0 __asm__("x0") = (long)args;
	register size_t x1 __asm__("x1") = sizeof(*args);
	register void (*x2)(void *) __asm__("x2") = entry;
	register void *x3 __asm__("x3") = arg;

	__asm__ volatile("svc #0\n\t"
	                 "cbnz x0, 1f\n\t"
	                 "mov x29, xzr\n\t"
	                 "mov x30, xzr\n\t"
	                 "mov x0, x3\n\t"
	                 "blr x2\n\t"
	                 "brk #0\n"
	                 "1:"
	                 : "+r"(x0)
	                 : "r"(x8), "r"(x1), "r"(x2), "r"(x3)
	                 : "cc", "memory");
	return x0;
}

#else
#error "arch.c needs a clone3 stub for this architecture"
#endif
