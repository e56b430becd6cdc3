/*
 * The two clocks of both programs: durations and deadlines are monotonic, only instants that a
 * person reads are wall-clock time, and so ev_now() is. What the bridge counts is steady_now(),
 * by which this process's own standstills do not count.
 */
#ifndef SANDGATE_CLOCK_H
#define SANDGATE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_us(clockid_t id)
{
	struct timespec ts;
	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static inline double clock_mono_s(void)
{
	return (double)clock_us(CLOCK_MONOTONIC) / 1e6;
}

static inline uint64_t clock_mono_ms(void)
{
	return clock_us(CLOCK_MONOTONIC) / 1000u;
}

static inline int64_t clock_wall_ms(void)
{
	return (int64_t)(clock_us(CLOCK_REALTIME) / 1000u);
}

#endif
