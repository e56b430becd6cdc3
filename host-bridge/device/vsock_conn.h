/*
 * One connection between a host client and the guest, and the table of them. Called by
 * vsock_mux and vsock_rx, which do the I/O; here is what needs none: ports, credit, the
 * buffer of bytes that the host has not taken, and what the socket is watched for.
 *
 *   host client:  LINE ──CONNECT n──► REQUESTED ──response──► OPEN
 *   guest client:                                    OPEN (dialled at once)
 *   OPEN ──guest gone──► DRAINING ──buffer empty──► closed
 *   any  ──host gone───► closed (the guest is sent a reset)
 *
 * Credit follows virtio 1.2, section 5.10.6.3; all counters wrap.
 */
#ifndef SANDGATE_VSOCK_CONN_H
#define SANDGATE_VSOCK_CONN_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "host-bridge/device/vsock_pkt.h"
#include "proto/limits.h"

enum vsock_conn_state { CONN_LINE, CONN_REQUESTED, CONN_OPEN, CONN_DRAINING };

/* Packets owed to the guest: bits of `owed`. */
enum { OWE_REQUEST = 1, OWE_RESPONSE = 2, OWE_CREDIT = 4 };

struct vsock_conn {
	struct ev_io io; /* data is the mux; fd is the host client */
	struct ev_loop *loop;
	enum vsock_conn_state state;
	uint32_t host_port, guest_port;

	unsigned owed;
	bool announced;  /* the guest knows of it */
	bool waiting;    /* in the list of those that wait for receive buffers */
	bool early;      /* the client spoke before OK: look again when open */
	bool host_deaf;  /* the client takes no more bytes: the guest's are dropped */
	bool guest_deaf; /* the guest takes no more */
	bool guest_done; /* the guest sends no more */

	uint32_t fwd_cnt, told_fwd_cnt; /* guest's bytes taken; as last told to it */
	uint32_t tx_cnt;                /* bytes sent to the guest */
	uint32_t peer_buf_alloc, peer_fwd_cnt;

	uint8_t *buf; /* ring of VSOCK_BUF_ALLOC bytes, there while it holds something */
	uint32_t buf_head, buf_len;

	char line[VSOCK_LINE_MAX];
	unsigned line_len;

	TAILQ_ENTRY(vsock_conn) wait_entry;
	LIST_ENTRY(vsock_conn) all_entry, hash_entry;
};

#define VSOCK_CONN_BUCKETS 1024

LIST_HEAD(vsock_conn_list, vsock_conn);

struct vsock_conn_table {
	struct vsock_conn_list all, buckets[VSOCK_CONN_BUCKETS];
	unsigned n;
	uint32_t next_host_port;
};

/* A connection over the descriptor, which it takes over; NULL (and the descriptor is
 * closed) when the table is full or memory fails. `on_io` is its watcher's callback. */
struct vsock_conn *vsock_conn_create(struct vsock_conn_table *t, struct ev_loop *loop, int fd,
                                     void (*on_io)(struct ev_loop *, ev_io *, int), void *data);
/* Must not be in the waiting list any more. */
void vsock_conn_destroy(struct vsock_conn_table *t, struct vsock_conn *c);

/* Make it findable. A host port of 0 asks for a new one: they come in turn, so that a late
 * reset for an old connection never meets a new one. */
void vsock_conn_bind(struct vsock_conn_table *t, struct vsock_conn *c, uint32_t host_port,
                     uint32_t guest_port);
/* The reverse: the guest's side is over. */
void vsock_conn_unbind(struct vsock_conn *c);
struct vsock_conn *vsock_conn_find(struct vsock_conn_table *t, uint32_t host_port,
                                   uint32_t guest_port);

/* Bytes that the guest has room for. */
uint32_t vsock_conn_credit(const struct vsock_conn *c);
/* Whether the guest should hear how many of its bytes were taken. */
bool vsock_conn_credit_due(const struct vsock_conn *c);

/* Bytes for the host that did not fit its socket. -1: over the credit, or no memory. */
int vsock_conn_keep(struct vsock_conn *c, const struct iovec *iov, unsigned n);
/* What is kept, as at most two segments; returns how many. */
unsigned vsock_conn_kept(const struct vsock_conn *c, struct iovec iov[2]);
/* The first `n` kept bytes were taken, or are given up. */
void vsock_conn_taken(struct vsock_conn *c, uint32_t n);

/* Watch the socket for what the state calls for: the only place that decides it. */
void vsock_conn_interest(struct vsock_conn *c);

#endif
