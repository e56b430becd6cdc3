/* A clone's network, in a network namespace of the test's own, on a tap device. */
#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/renew_fixture.h"

static int tap = -1;

static bool has_interface(const char *name)
{
	struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
	strcpy(r.ifr_name, name);
	tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	if (tap >= 0 && ioctl(tap, TUNSETIFF, &r) == 0)
		return true;
	printf("skipped: no tap device here\n");
	return false;
}

static bool has_address(const char *interface, const char *want)
{
	struct ifaddrs *all;
	bool found = false;

	ck_assert(getifaddrs(&all) == 0);
	for (struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
		char text[INET6_ADDRSTRLEN] = "";
		if (a->ifa_addr == NULL || strcmp(a->ifa_name, interface) != 0)
			continue;
		if (a->ifa_addr->sa_family == AF_INET)
			inet_ntop(AF_INET, &((struct sockaddr_in *)a->ifa_addr)->sin_addr, text,
			          sizeof(text));
		else if (a->ifa_addr->sa_family == AF_INET6)
			inet_ntop(AF_INET6, &((struct sockaddr_in6 *)a->ifa_addr)->sin6_addr,
			          text, sizeof(text));
		found |= strcmp(text, want) == 0;
	}
	freeifaddrs(all);
	return found;
}

/* Default routes of IPv4 through `gateway`, or through any when it is 0. */
static int default_routes(const char *interface, in_addr_t gateway)
{
	char line[256], name[64];
	unsigned to, via;
	int count = 0;
	FILE *f = fopen("/proc/self/net/route", "re");

	ck_assert(f != NULL);
	while (fgets(line, sizeof(line), f) != NULL)
		count += sscanf(line, "%63s %x %x", name, &to, &via) == 3 && to == 0 &&
		         strcmp(name, interface) == 0 && (gateway == 0 || via == gateway);
	fclose(f);
	return count;
}

struct wish {
	Sandgate__Network network;
	Sandgate__Address address[2], *addresses[2];
	uint8_t ip[2][16];
	ProtobufCBinaryData gateway, server;
	uint8_t gateway_ip[4], server_ip[4];
};

/* `addresses` up to NULL, each with a prefix of `prefix` bits. */
static Sandgate__Network *network(struct wish *w, const char *const addresses[],
                                  const char *gateway, unsigned prefix)
{
	*w = (struct wish){.network = SANDGATE__NETWORK__INIT};
	for (size_t i = 0; addresses[i] != NULL; i++) {
		bool v6 = strchr(addresses[i], ':') != NULL;
		sandgate__address__init(&w->address[i]);
		ck_assert(inet_pton(v6 ? AF_INET6 : AF_INET, addresses[i], w->ip[i]) == 1);
		w->address[i].ip = (ProtobufCBinaryData){v6 ? 16 : 4, w->ip[i]};
		w->address[i].prefix_length = v6 ? 64 : prefix;
		w->addresses[i] = &w->address[i];
		w->network.n_addresses++;
	}
	w->network.addresses = w->addresses;
	if (gateway != NULL) {
		ck_assert(inet_pton(AF_INET, gateway, w->gateway_ip) == 1);
		w->gateway = (ProtobufCBinaryData){4, w->gateway_ip};
		w->network.gateways = &w->gateway;
		w->network.n_gateways = 1;
	}
	return &w->network;
}

START_TEST(a_clone_gets_the_network_it_is_told)
{
	Sandgate__Resume m = clone_message();
	const char *old[] = {"10.9.0.2", NULL}, *new[] = {"192.0.2.7", "2001:db8::7", NULL};
	struct wish w;
	struct ifreq r = {0};

	if (!has_interface("eth7"))
		return;
	m.network = network(&w, old, "10.9.0.1", 24);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert(has_address("eth7", "10.9.0.2"));
	ck_assert_int_eq(default_routes("eth7", inet_addr("10.9.0.1")), 1);

	m.network = network(&w, new, "192.0.2.1", 24);
	w.network.interface = BYTES("eth7");
	w.network.mac = BYTES("\x02\x01\x02\x03\x04\x05");
	inet_pton(AF_INET, "192.0.2.53", w.server_ip);
	w.server = (ProtobufCBinaryData){4, w.server_ip};
	w.network.name_servers = &w.server;
	w.network.n_name_servers = 1;
	for (int times = 0; times < 2; times++) {
		ck_assert_int_eq(carry_out(&m), 0);
		ck_assert(!has_address("eth7", "10.9.0.2"));
		ck_assert(has_address("eth7", "192.0.2.7"));
		ck_assert(has_address("eth7", "2001:db8::7"));
		ck_assert_int_eq(default_routes("eth7", inet_addr("192.0.2.1")), 1);
		ck_assert_int_eq(default_routes("eth7", 0), 1);
	}
	ck_assert_str_eq(content("/etc/resolv.conf"), "nameserver 192.0.2.53\n");
	strcpy(r.ifr_name, "eth7");
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert(ioctl(fd, SIOCGIFHWADDR, &r) == 0);
	ck_assert_mem_eq(r.ifr_hwaddr.sa_data, "\x02\x01\x02\x03\x04\x05", 6);
	close(fd);
}
END_TEST

START_TEST(a_gateway_need_not_be_a_neighbour)
{
	Sandgate__Resume m = clone_message();
	const char *address[] = {"192.0.2.7", NULL};
	struct wish w;

	if (!has_interface("eth7"))
		return;
	m.network = network(&w, address, "169.254.1.1", 32);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_int_eq(default_routes("eth7", inet_addr("169.254.1.1")), 1);
}
END_TEST

START_TEST(a_missing_interface_is_told)
{
	Sandgate__Resume m = clone_message();
	Sandgate__Network any = SANDGATE__NETWORK__INIT;

	m.network = &any;
	ck_assert_int_eq(carry_out(&m), 1 << RENEW_NETWORK);
	any.interface = BYTES("eth9");
	ck_assert_int_eq(carry_out(&m), 1 << RENEW_NETWORK);
}
END_TEST

START_TEST(faulty_networks_are_refused_by_field)
{
	Sandgate__Resume m = clone_message();
	const char *address[] = {"192.0.2.7", NULL};
	struct err e;
	struct wish w;

#define REFUSED(name)                                \
	e = (struct err){0};                         \
	ck_assert(renewal_parse(&m, &e) == NULL);    \
	ck_assert_int_eq(e.code, ERR_INVALID_FIELD); \
	ck_assert_str_eq(e.field, name);             \
	m.network = network(&w, address, "192.0.2.1", 24)

	m.network = network(&w, address, NULL, 33);
	REFUSED("network.addresses");
	w.address[0].ip.len = 5;
	REFUSED("network.addresses");
	w.gateway.len = 0;
	REFUSED("network.gateways");
	w.network.interface = BYTES("sixteen-letters-");
	REFUSED("network.interface");
	w.network.interface = BYTES("e\0h");
	REFUSED("network.interface");
	w.network.mac = BYTES("12345");
	REFUSED("network.mac");
#undef REFUSED
	ck_assert((renewal = renewal_parse(&m, &e)) != NULL);
}
END_TEST

static void add_tests(TCase *tc)
{
	tcase_add_test(tc, a_clone_gets_the_network_it_is_told);
	tcase_add_test(tc, a_gateway_need_not_be_a_neighbour);
	tcase_add_test(tc, a_missing_interface_is_told);
	tcase_add_test(tc, faulty_networks_are_refused_by_field);
}

int main(void)
{
	return run_own_machine_suite("network", add_tests);
}
