/*
 * One network interface, set up through rtnetlink(7): address, routes, MAC. A step of
 * renew(), in a worker's thread; it blocks only as long as the kernel does. Name servers are
 * files and not its business.
 */
#ifndef SANDGATE_NETWORK_H
#define SANDGATE_NETWORK_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"

#define NETWORK_MAC_SIZE 6

struct network_ip {
	uint8_t bytes[16]; /* in network order */
	uint8_t len;       /* 4 or 16 */
	uint8_t prefix;    /* bits; of an address only */
};

struct network {
	bool given;
	char interface[IF_NAMESIZE]; /* "": the first Ethernet */
	uint8_t mac[NETWORK_MAC_SIZE];
	bool has_mac;
	struct network_ip addresses[NETWORK_ADDRESSES_MAX], gateways[NETWORK_ADDRESSES_MAX],
	    servers[NETWORK_ADDRESSES_MAX];
	size_t address_count, gateway_count, server_count;
};

/* Check `m`, which may be NULL, and copy it. */
int network_parse(struct network *n, const Sandgate__Network *m, struct err *e);
/* The interface has `n`'s MAC, addresses and default routes, and is up. -1 with errno. */
int network_set_up(const struct network *n);

#endif
