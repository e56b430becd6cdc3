#include "guest-agent/spawn_slots.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

void spawn_slots_open(struct spawn_slots *s)
{
	*s = (struct spawn_slots){.fds = {-1, -1, -1}};
	s->nothing = eventfd(0, EFD_CLOEXEC);
	for (int i = 0; i < 3 && s->errnum == 0; i++) {
		s->fds[i] = fcntl(s->nothing, F_DUPFD_CLOEXEC, 3);
		if (s->fds[i] < 0)
			s->errnum = errno;
	}
}

void spawn_slots_close(struct spawn_slots *s)
{
	for (int i = 0; i < 3; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	if (s->nothing >= 0)
		close(s->nothing);
}

int spawn_slots_fill(struct spawn_slots *s, const int fds[3])
{
	errno = s->errnum;
	for (int i = 0; i < 3; i++)
		if (s->errnum != 0 || dup3(fds[i], s->fds[i], O_CLOEXEC) < 0)
			return -1;
	return 0;
}

void spawn_slots_clear(struct spawn_slots *s)
{
	for (int i = 0; i < 3 && s->errnum == 0; i++)
		dup3(s->nothing, s->fds[i], O_CLOEXEC);
}
