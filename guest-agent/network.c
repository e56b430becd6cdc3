#include "guest-agent/network.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* One answer of a dump at most (netlink(7)), and what is to be deleted of all of them. */
#define ANSWER_MAX (32 * KIB)

/* ---- the message ---- */

static int parse_ip(struct network_ip *out, ProtobufCBinaryData ip, const char *field,
                    struct err *e)
{
	if (ip.len != 4 && ip.len != 16)
		return err_field(e, ERR_INVALID_FIELD, field, "an address of %zu bytes",
		                 ip.len);
	out->len = (uint8_t)ip.len;
	memcpy(out->bytes, ip.data, ip.len);
	return 0;
}

static int parse_ips(struct network_ip *out, size_t *count, const ProtobufCBinaryData *ips,
                     size_t n, const char *field, struct err *e)
{
	if (n > NETWORK_ADDRESSES_MAX)
		return err_field(e, ERR_INVALID_FIELD, field, "more than %d",
		                 NETWORK_ADDRESSES_MAX);
	for (*count = 0; *count < n; (*count)++)
		if (parse_ip(&out[*count], ips[*count], field, e) < 0)
			return -1;
	return 0;
}

static int parse_addresses(struct network *n, const Sandgate__Network *m, struct err *e)
{
	static const char field[] = "network.addresses";

	if (m->n_addresses > NETWORK_ADDRESSES_MAX)
		return err_field(e, ERR_INVALID_FIELD, field, "more than %d",
		                 NETWORK_ADDRESSES_MAX);
	for (size_t i = 0; i < m->n_addresses; i++) {
		struct network_ip *ip = &n->addresses[i];
		if (parse_ip(ip, m->addresses[i]->ip, field, e) < 0)
			return -1;
		if (m->addresses[i]->prefix_length > ip->len * 8u)
			return err_field(e, ERR_INVALID_FIELD, field, "a prefix of %u bits",
			                 m->addresses[i]->prefix_length);
		ip->prefix = (uint8_t)m->addresses[i]->prefix_length;
	}
	n->address_count = m->n_addresses;
	return 0;
}

int network_parse(struct network *n, const Sandgate__Network *m, struct err *e)
{
	*n = (struct network){.given = m != NULL};
	if (m == NULL)
		return 0;
	if (m->interface.len >= sizeof(n->interface) ||
	    (m->interface.len > 0 && memchr(m->interface.data, '\0', m->interface.len)))
		return err_field(e, ERR_INVALID_FIELD, "network.interface",
		                 "no name of an interface");
	if (m->interface.len > 0)
		memcpy(n->interface, m->interface.data, m->interface.len);
	if (m->mac.len != 0 && m->mac.len != NETWORK_MAC_SIZE)
		return err_field(e, ERR_INVALID_FIELD, "network.mac", "not %d bytes",
		                 NETWORK_MAC_SIZE);
	n->has_mac = m->mac.len > 0;
	if (n->has_mac)
		memcpy(n->mac, m->mac.data, NETWORK_MAC_SIZE);
	if (parse_addresses(n, m, e) < 0 ||
	    parse_ips(n->gateways, &n->gateway_count, m->gateways, m->n_gateways,
	              "network.gateways", e) < 0)
		return -1;
	return parse_ips(n->servers, &n->server_count, m->name_servers, m->n_name_servers,
	                 "network.name_servers", e);
}

/* ---- netlink ---- */

struct request {
	struct nlmsghdr head;
	uint8_t body[256]; /* a family's header, then attributes */
};

/* Returns the family's header, of `len` zero bytes. */
static void *begin(struct request *q, uint16_t type, uint16_t flags, size_t len)
{
	memset(q, 0, sizeof(*q));
	q->head.nlmsg_type = type;
	q->head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
	q->head.nlmsg_len = (uint32_t)NLMSG_LENGTH(len);
	return q->body;
}

static void put(struct request *q, uint16_t type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)q + NLMSG_ALIGN(q->head.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	q->head.nlmsg_len = (uint32_t)(NLMSG_ALIGN(q->head.nlmsg_len) + RTA_SPACE(len));
}

/* Each message of the answer up to its end, or acknowledgement; -1 with the kernel's errno. */
static int take_answer(int fd, void (*visit)(const struct nlmsghdr *h, void *arg), void *arg)
{
	_Alignas(struct nlmsghdr) uint8_t buf[ANSWER_MAX];

	for (;;) {
		ssize_t n = recv(fd, buf, sizeof(buf), 0);
		if (n < 0)
			return -1;
		size_t left = (size_t)n;
		for (struct nlmsghdr *h = (struct nlmsghdr *)buf; NLMSG_OK(h, left);
		     h = NLMSG_NEXT(h, left)) {
			if (h->nlmsg_type == NLMSG_DONE)
				return 0;
			if (h->nlmsg_type == NLMSG_ERROR) {
				errno = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
				return errno == 0 ? 0 : -1;
			}
			visit(h, arg);
		}
	}
}

static void ignore(const struct nlmsghdr *h, void *arg)
{
	(void)h;
	(void)arg;
}

static int ask(int fd, const struct nlmsghdr *q)
{
	if (send(fd, q, q->nlmsg_len, 0) < 0)
		return -1;
	return take_answer(fd, ignore, NULL);
}

static int dump(int fd, uint16_t type, void (*visit)(const struct nlmsghdr *h, void *arg),
                void *arg)
{
	struct request q;

	begin(&q, type, NLM_F_DUMP, sizeof(struct rtgenmsg));
	q.head.nlmsg_flags &= (uint16_t)~NLM_F_ACK;
	if (send(fd, &q, q.head.nlmsg_len, 0) < 0)
		return -1;
	return take_answer(fd, visit, arg);
}

/* ---- the interface ---- */

static void on_link(const struct nlmsghdr *h, void *arg)
{
	const struct ifinfomsg *link = NLMSG_DATA(h);
	unsigned *index = arg;

	if (h->nlmsg_type == RTM_NEWLINK && link->ifi_type == ARPHRD_ETHER &&
	    (*index == 0 || (unsigned)link->ifi_index < *index))
		*index = (unsigned)link->ifi_index;
}

/* 0 with errno: there is none. */
static unsigned find_interface(int fd, const char *name)
{
	unsigned index = 0;

	if (name[0] != '\0')
		return if_nametoindex(name);
	if (dump(fd, RTM_GETLINK, on_link, &index) == 0 && index == 0)
		errno = ENODEV;
	return index;
}

static int set_link(int fd, unsigned index, bool up, const uint8_t *mac)
{
	struct request q;
	struct ifinfomsg *link = begin(&q, RTM_NEWLINK, 0, sizeof(*link));

	link->ifi_index = (int)index;
	if (mac != NULL) {
		put(&q, IFLA_ADDRESS, mac, NETWORK_MAC_SIZE);
	} else {
		link->ifi_flags = up ? IFF_UP : 0;
		link->ifi_change = IFF_UP;
	}
	return ask(fd, &q.head);
}

/* Some drivers take another address only while they are down. */
static int set_mac(int fd, unsigned index, const uint8_t *mac)
{
	if (set_link(fd, index, false, mac) == 0)
		return 0;
	if (errno != EBUSY || set_link(fd, index, false, NULL) < 0)
		return -1;
	return set_link(fd, index, false, mac);
}

/* Addresses or default routes that are to go, as the kernel told of them. */
struct doomed {
	unsigned index;
	bool families[UINT8_MAX + 1]; /* the kernel has some past AF_MAX */
	_Alignas(struct nlmsghdr) uint8_t messages[ANSWER_MAX];
	size_t len;
	bool full;
};

static bool is_doomed(const struct nlmsghdr *h, const struct doomed *d)
{
	if (h->nlmsg_type == RTM_NEWADDR) {
		const struct ifaddrmsg *a = NLMSG_DATA(h);
		return a->ifa_index == d->index && d->families[a->ifa_family] &&
		       a->ifa_scope != RT_SCOPE_LINK;
	}
	const struct rtmsg *r = NLMSG_DATA(h);
	if (h->nlmsg_type != RTM_NEWROUTE || r->rtm_dst_len != 0 ||
	    r->rtm_table != RT_TABLE_MAIN || !d->families[r->rtm_family])
		return false;
	int len = (int)RTM_PAYLOAD(h);
	for (struct rtattr *a = RTM_RTA(r); RTA_OK(a, len); a = RTA_NEXT(a, len))
		if (a->rta_type == RTA_OIF && *(unsigned *)RTA_DATA(a) == d->index)
			return true;
	return false;
}

static void on_message(const struct nlmsghdr *h, void *arg)
{
	struct doomed *d = arg;

	if (!is_doomed(h, d))
		return;
	d->full |= d->len + NLMSG_ALIGN(h->nlmsg_len) > sizeof(d->messages);
	if (d->full)
		return;
	memcpy(d->messages + d->len, h, h->nlmsg_len);
	d->len += NLMSG_ALIGN(h->nlmsg_len);
}

/* Deleting is asked for with the message that told of it. Some have gone with others. */
static int delete_all(int fd, struct doomed *d, uint16_t get, uint16_t delete)
{
	d->len = 0;
	if (dump(fd, get, on_message, d) < 0)
		return -1;
	for (size_t at = 0; at < d->len;) {
		struct nlmsghdr *h = (struct nlmsghdr *)(d->messages + at);
		at += NLMSG_ALIGN(h->nlmsg_len);
		h->nlmsg_type = delete;
		h->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
		if (ask(fd, h) < 0 && errno != EADDRNOTAVAIL && errno != ESRCH)
			return -1;
	}
	errno = ENOBUFS;
	return d->full ? -1 : 0;
}

static uint8_t family_of(const struct network_ip *ip)
{
	return ip->len == 4 ? AF_INET : AF_INET6;
}

/* Given addresses leave none of their family's, nor its default routes. */
static int clear(int fd, unsigned index, const struct network *n)
{
	struct doomed d = {.index = index};

	for (size_t i = 0; i < n->address_count; i++)
		d.families[family_of(&n->addresses[i])] = true;
	if (delete_all(fd, &d, RTM_GETADDR, RTM_DELADDR) < 0)
		return -1;
	return delete_all(fd, &d, RTM_GETROUTE, RTM_DELROUTE);
}

static int add_address(int fd, unsigned index, const struct network_ip *ip)
{
	struct request q;
	struct ifaddrmsg *a = begin(&q, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, sizeof(*a));

	a->ifa_family = family_of(ip);
	a->ifa_prefixlen = ip->prefix;
	a->ifa_index = index;
	a->ifa_flags = IFA_F_NODAD; /* whoever gave it knows that it is free: use it at once */
	put(&q, IFA_LOCAL, ip->bytes, ip->len);
	put(&q, IFA_ADDRESS, ip->bytes, ip->len);
	return ask(fd, &q.head);
}

/* A gateway need not be within an address's prefix. */
static int add_gateway(int fd, unsigned index, const struct network_ip *ip)
{
	struct request q;
	struct rtmsg *r = begin(&q, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, sizeof(*r));

	r->rtm_family = family_of(ip);
	r->rtm_table = RT_TABLE_MAIN;
	r->rtm_protocol = RTPROT_STATIC;
	r->rtm_scope = RT_SCOPE_UNIVERSE;
	r->rtm_type = RTN_UNICAST;
	r->rtm_flags = RTNH_F_ONLINK;
	put(&q, RTA_GATEWAY, ip->bytes, ip->len);
	put(&q, RTA_OIF, &index, sizeof(index));
	return ask(fd, &q.head);
}

static int set_up(int fd, const struct network *n)
{
	unsigned index = find_interface(fd, n->interface);

	if (index == 0 || (n->has_mac && set_mac(fd, index, n->mac) < 0) ||
	    clear(fd, index, n) < 0)
		return -1;
	for (size_t i = 0; i < n->address_count; i++)
		if (add_address(fd, index, &n->addresses[i]) < 0)
			return -1;
	if (set_link(fd, index, true, NULL) < 0)
		return -1;
	for (size_t i = 0; i < n->gateway_count; i++)
		if (add_gateway(fd, index, &n->gateways[i]) < 0)
			return -1;
	return 0;
}

int network_set_up(const struct network *n)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return -1;
	int rc = set_up(fd, n), saved = errno;
	close(fd);
	errno = saved;
	return rc;
}
