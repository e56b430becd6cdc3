#include "guest-agent/ring.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/limits.h"

#define BLOCK_SIZE (64 * KIB)
#define PAGE 4096u

/* A run's header; its bytes follow, and the next header at the next multiple of 8. */
struct run {
	uint64_t seq;
	uint32_t len;
	uint32_t unused;
};

/* Mapped, not allocated: a block that goes gives its pages back at once, and a page that
 * was never written costs nothing. */
struct block {
	uint32_t used; /* bytes of `bytes`, the last run's included */
	uint32_t last; /* offset of the last run */
	uint8_t bytes[BLOCK_SIZE - 8];
};

#define BLOCK_ROOM ((uint32_t)sizeof(((struct block *)0)->bytes))

struct stream {
	struct block **blocks; /* circular; `slots` is a power of two or 0 */
	size_t slots, head, count;
	uint64_t first_no;   /* number of the first block, counted from the ring's start */
	uint32_t first_at;   /* offset of its first live run */
	struct block *spare; /* the next block: a dropped one, or new */
	uint64_t held;       /* bytes and headers that count against the cap */
	uint64_t floor;      /* every byte of this stream before it is gone */
	uint64_t end;        /* sequence behind this stream's last byte */
	uint64_t total;
};

struct ring {
	struct ring_budget *budget;
	uint64_t cap, end, pin, memory;
	struct stream streams[RING_STREAMS];
};

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static struct block *block_at(const struct stream *s, size_t i)
{
	return s->blocks[(s->head + i) & (s->slots - 1)];
}

/* One that will surely be filled gets its pages at once: a fault for each costs more than
 * the copy into it. */
static struct block *block_map(bool will_fill)
{
	void *p = mmap(NULL, sizeof(struct block), PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | (will_fill ? MAP_POPULATE : 0), -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static uint64_t block_memory(const struct block *b)
{
	return (offsetof(struct block, bytes) + b->used + PAGE - 1) / PAGE * PAGE;
}

static struct run *run_at(struct block *b, uint32_t at)
{
	return (struct run *)(void *)(b->bytes + at);
}

static uint32_t run_after(uint32_t at, const struct run *run)
{
	return (at + (uint32_t)sizeof(struct run) + run->len + 7) & ~7u;
}

static uint64_t run_end(const struct run *run)
{
	return run->seq + run->len;
}

/* A block's first header is not charged to the cap: one stream alone keeps `cap` bytes. */
static uint64_t header_cost(uint32_t at)
{
	return at == 0 ? 0 : sizeof(struct run);
}

struct ring *ring_create(uint64_t cap, struct ring_budget *budget)
{
	struct ring *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return NULL;
	r->cap = cap;
	r->budget = budget;
	r->pin = UINT64_MAX;
	return r;
}

void ring_destroy(struct ring *r)
{
	if (r == NULL)
		return;
	ring_drop(r);
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		struct stream *s = &r->streams[i];
		if (s->spare != NULL)
			munmap(s->spare, sizeof(*s->spare));
		free(s->blocks);
	}
	free(r);
}

static void drop_first_block(struct ring *r, struct stream *s)
{
	struct block *b = block_at(s, 0);
	for (uint32_t at = s->first_at; at < b->used;) {
		struct run *run = run_at(b, at);
		s->held -= run_end(run) - max_u64(run->seq, s->floor) + header_cost(at);
		at = run_after(at, run);
	}
	s->floor = run_end(run_at(b, b->last));
	r->memory -= block_memory(b);
	r->budget->used -= block_memory(b);
	if (s->spare == NULL) {
		b->used = b->last = 0;
		s->spare = b;
	} else {
		munmap(b, sizeof(*b));
	}
	s->head = (s->head + 1) & (s->slots - 1);
	s->count--;
	s->first_no++;
	s->first_at = 0;
}

/* Give up at most `want` bytes of the first run, none at or beyond the pin. */
static bool cut_first_run(struct ring *r, struct stream *s, uint64_t want)
{
	struct block *b = block_at(s, 0);
	struct run *run = run_at(b, s->first_at);
	uint64_t start = max_u64(run->seq, s->floor);
	uint64_t stop = min_u64(start + want, min_u64(run_end(run), r->pin));

	if (stop <= start)
		return false;
	if (stop < run_end(run)) {
		s->held -= stop - start;
		s->floor = stop;
	} else if (s->first_at == b->last) {
		drop_first_block(r, s);
	} else {
		s->held -= stop - start + header_cost(s->first_at);
		s->floor = stop;
		s->first_at = run_after(s->first_at, run);
	}
	return true;
}

static void trim(struct ring *r, struct stream *s)
{
	while (s->held > r->cap && s->count > 0)
		if (!cut_first_run(r, s, s->held - r->cap))
			return;
}

/* Room for one more block. */
static int reserve_block(struct stream *s)
{
	if (s->spare == NULL && (s->spare = block_map(s->total >= BLOCK_ROOM)) == NULL)
		return -1;
	if (s->count < s->slots)
		return 0;
	size_t slots = s->slots == 0 ? 4 : s->slots * 2;
	struct block **blocks = malloc(slots * sizeof(struct block *));
	if (blocks == NULL)
		return -1;
	for (size_t i = 0; i < s->count; i++)
		blocks[i] = block_at(s, i);
	free(s->blocks);
	s->blocks = blocks;
	s->slots = slots;
	s->head = 0;
	return 0;
}

/* `n` bytes were put where a run at `at` has its data, or to the end of the last run. */
static void commit(struct ring *r, struct stream *s, struct block *b, uint32_t at, uint32_t n,
                   bool extend)
{
	uint64_t before = b->used == 0 ? 0 : block_memory(b);
	if (extend) {
		run_at(b, b->last)->len += n;
		b->used += n;
	} else {
		*run_at(b, at) = (struct run){.seq = r->end, .len = n};
		b->last = at;
		b->used = at + (uint32_t)sizeof(struct run) + n;
		s->held += header_cost(at);
	}
	s->held += n;
	s->total += n;
	r->end += n;
	s->end = r->end;
	r->memory += block_memory(b) - before;
	r->budget->used += block_memory(b) - before;
}

/* Into the last block, behind its last run or as more of it. 0: there is no room. */
static uint32_t put_in_tail(struct ring *r, struct stream *s, const uint8_t *data, size_t n)
{
	if (s->count == 0)
		return 0;
	struct block *b = block_at(s, s->count - 1);
	bool extend = s->end == r->end;
	uint32_t at = (b->used + 7) & ~7u;
	uint32_t data_at = extend ? b->used : at + (uint32_t)sizeof(struct run);
	if (data_at >= BLOCK_ROOM)
		return 0;
	uint32_t part = (uint32_t)min_u64(n, BLOCK_ROOM - data_at);
	memcpy(b->bytes + data_at, data, part);
	commit(r, s, b, at, part, extend);
	return part;
}

/* 0: out of memory. */
static uint32_t put_in_next(struct ring *r, struct stream *s, const uint8_t *data, size_t n)
{
	if (reserve_block(s) < 0)
		return 0;
	struct block *b = s->spare;
	uint32_t part = (uint32_t)min_u64(n, BLOCK_ROOM - sizeof(struct run));
	s->spare = NULL;
	s->blocks[(s->head + s->count++) & (s->slots - 1)] = b;
	memcpy(b->bytes + sizeof(struct run), data, part);
	commit(r, s, b, 0, part, false);
	return part;
}

int ring_put(struct ring *r, unsigned stream, const uint8_t *data, size_t n)
{
	struct stream *s = &r->streams[stream];

	while (n > 0) {
		uint32_t part = put_in_tail(r, s, data, n);
		if (part == 0 && (part = put_in_next(r, s, data, n)) == 0)
			return -1;
		data += part;
		n -= part;
	}
	trim(r, s);
	return 0;
}

/* The stream's first run that ends behind the cursor, or NULL. The hint stays at the last
 * run, even a read one: that run may grow. */
static struct run *seek(const struct stream *s, struct ring_cursor *cur, unsigned stream)
{
	uint64_t no = cur->hint[stream].block;
	uint32_t at = cur->hint[stream].at;
	struct run *found = NULL;

	if (s->count == 0)
		return NULL;
	if (no < s->first_no || (no == s->first_no && at < s->first_at)) {
		no = s->first_no;
		at = s->first_at;
	}
	for (;;) {
		struct block *b = block_at(s, no - s->first_no);
		struct run *run = run_at(b, at);
		if (run_end(run) > cur->seq) {
			found = run;
			break;
		}
		if (at != b->last) {
			at = run_after(at, run);
		} else if (no - s->first_no + 1 < s->count) {
			no++;
			at = 0;
		} else {
			break;
		}
	}
	cur->hint[stream].block = no;
	cur->hint[stream].at = at;
	return found;
}

static void gap(const struct ring *r, uint64_t from, uint64_t to, struct ring_piece *out)
{
	const struct stream *s = r->streams;
	bool lost0 = s[0].floor > from, lost1 = s[1].floor > from;

	out->seq = from;
	out->data = NULL;
	out->both = lost0 && lost1;
	out->stream = lost0 ? 0 : 1;
	out->len = (out->both ? min_u64(s[0].floor, s[1].floor) : to) - from;
}

bool ring_next(const struct ring *r, struct ring_cursor *cur, struct ring_piece *out)
{
	struct run *best = NULL;
	uint64_t start = r->end;

	if (cur->seq >= r->end)
		return false;
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		struct run *run = seek(&r->streams[i], cur, i);
		if (run == NULL)
			continue;
		uint64_t from = max_u64(max_u64(run->seq, r->streams[i].floor), cur->seq);
		if (from < start) {
			start = from;
			best = run;
			out->stream = i;
		}
	}
	if (start > cur->seq) {
		gap(r, cur->seq, start, out);
	} else {
		out->seq = start;
		out->len = run_end(best) - start;
		out->data = (const uint8_t *)(best + 1) + (start - best->seq);
		out->both = false;
	}
	cur->seq += out->len;
	return true;
}

void ring_pin(struct ring *r, uint64_t seq)
{
	r->pin = seq;
	for (unsigned i = 0; i < RING_STREAMS; i++)
		trim(r, &r->streams[i]);
}

static uint64_t stream_first(const struct ring *r, const struct stream *s)
{
	return s->count == 0 ? r->end
	                     : max_u64(run_at(block_at(s, 0), s->first_at)->seq, s->floor);
}

bool ring_shed(struct ring *r)
{
	struct stream *s = r->streams;
	if (stream_first(r, &s[1]) < stream_first(r, &s[0]))
		s++;
	if (s->count == 0)
		return false;
	struct block *b = block_at(s, 0);
	if (run_end(run_at(b, b->last)) > r->pin)
		return false;
	drop_first_block(r, s);
	return true;
}

void ring_drop(struct ring *r)
{
	for (unsigned i = 0; i < RING_STREAMS; i++)
		while (r->streams[i].count > 0)
			drop_first_block(r, &r->streams[i]);
}

uint64_t ring_first(const struct ring *r)
{
	return min_u64(stream_first(r, &r->streams[0]), stream_first(r, &r->streams[1]));
}

uint64_t ring_end(const struct ring *r)
{
	return r->end;
}

uint64_t ring_total(const struct ring *r, unsigned stream)
{
	return r->streams[stream].total;
}

uint64_t ring_memory(const struct ring *r)
{
	return r->memory;
}
