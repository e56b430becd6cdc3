/* What a Resume does to a machine: in namespaces of the test's own, with an /etc and a /run of
 * its own, so that this machine keeps its names. The clock has no namespace; guests show it. */
#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/renew.h"
#include "tests/suite_fixture.h"

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

static struct renewal *renewal;
static int tap = -1;

static bool enter_own_machine(void)
{
	return unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET) == 0 &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", "/etc", "tmpfs", 0, NULL) == 0 &&
	       mount("tmpfs", "/run", "tmpfs", 0, NULL) == 0;
}

static void setup(void)
{
	ck_assert(enter_own_machine());
}

static bool may_have_one(void)
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0)
		_exit(enter_own_machine() ? 0 : 1);
	waitpid(pid, &status, 0);
	return status == 0;
}

static uint8_t entropy[RESUME_ENTROPY_MAX];

static Sandgate__Resume clone_message(void)
{
	Sandgate__Resume m = SANDGATE__RESUME__INIT;
	m.role = SANDGATE__RESUME_ROLE__RESUME_CLONE;
	for (size_t i = 0; i < sizeof(entropy); i++)
		entropy[i] = (uint8_t)(i * 7);
	m.entropy = (ProtobufCBinaryData){RESUME_ENTROPY_MIN, entropy};
	return m;
}

/* The steps that failed. */
static int carry_out(const Sandgate__Resume *m)
{
	struct err e = {0};
	renewal_free(renewal);
	renewal = renewal_parse(m, &e);
	ck_assert_msg(renewal != NULL, "%s", e.msg);
	renewal->may_manage = true;
	return renew(renewal);
}

static void put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	ck_assert(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static const char *content(const char *path)
{
	static char text[256];
	FILE *f = fopen(path, "re");
	ck_assert_msg(f != NULL, "%s", path);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	return text;
}

/* ---- names ---- */

START_TEST(a_clone_gets_its_names)
{
	Sandgate__Resume m = clone_message();
	char host[65], before[64];

	put_file("/etc/hostname", "template\n");
	put_file("/etc/machine-id", "00000000000000000000000000000001\n");
	strcpy(before, content(BOOT_ID));
	m.hostname = BYTES("clone-1.example");
	m.machine_id = BYTES("0123456789abcdef");
	ck_assert_int_eq(carry_out(&m), 0);
	gethostname(host, sizeof(host));
	ck_assert_str_eq(host, "clone-1.example");
	ck_assert_str_eq(content("/etc/hostname"), "clone-1.example\n");
	ck_assert_str_eq(content("/etc/machine-id"), "30313233343536373839616263646566\n");
	ck_assert_str_ne(content(BOOT_ID), before);
	ck_assert_uint_eq(strlen(content(BOOT_ID)), strlen(before));
}
END_TEST

START_TEST(names_come_from_the_hosts_bytes_which_the_kernel_never_gets)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/machine-id", "x\n");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_mem_eq(renewal->instance, entropy, 16);
	/* Bytes 16 to 31 and 32 to 47, with the marks of a random UUID. */
	ck_assert_str_eq(content("/etc/machine-id"), "70777e858c934aa1a8afb6bdc4cbd2d9\n");
	ck_assert_str_eq(content(BOOT_ID), "e0e7eef5-fc03-4a11-981f-262d343b4249\n");
	ck_assert_uint_eq(renewal->entropy_len, RESUME_ENTROPY_MIN - RESUME_ENTROPY_NAMES);
	ck_assert_mem_eq(renewal->entropy, entropy + RESUME_ENTROPY_NAMES,
	                 renewal->entropy_len);
}
END_TEST

START_TEST(a_clone_of_a_clone_gets_its_names_too)
{
	Sandgate__Resume m = clone_message();
	char first[64];

	ck_assert_int_eq(carry_out(&m), 0);
	strcpy(first, content(BOOT_ID));
	entropy[32]++;
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_ne(content(BOOT_ID), first);
	ck_assert(umount(BOOT_ID) == 0);
	ck_assert_msg(umount(BOOT_ID) < 0, "one lies upon the other");
}
END_TEST

START_TEST(files_that_are_not_there_are_not_made)
{
	Sandgate__Resume m = clone_message();
	m.hostname = BYTES("clone");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert(access("/etc/hostname", F_OK) < 0);
	ck_assert(access("/etc/machine-id", F_OK) < 0);
}
END_TEST

START_TEST(a_symbolic_link_is_replaced_and_not_followed)
{
	Sandgate__Resume m = clone_message();
	struct stat st;

	put_file("/etc/target", "mine\n");
	ck_assert(symlink("target", "/etc/machine-id") == 0);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/target"), "mine\n");
	ck_assert(lstat("/etc/machine-id", &st) == 0 && S_ISREG(st.st_mode));
}
END_TEST

/* Its other name may be a user's. */
START_TEST(a_file_that_has_two_names_is_replaced)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/machine-id", "old\n");
	ck_assert(link("/etc/machine-id", "/etc/other") == 0);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/other"), "old\n");
	ck_assert_uint_eq(strlen(content("/etc/machine-id")), 33);
}
END_TEST

START_TEST(a_fifo_is_replaced_and_not_waited_for)
{
	Sandgate__Resume m = clone_message();

	ck_assert(mkfifo("/etc/machine-id", 0644) == 0);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_uint_eq(strlen(content("/etc/machine-id")), 33);
}
END_TEST

START_TEST(a_longer_text_leaves_no_rest)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/hostname", "a-name-that-is-longer-than-the-next\n");
	m.hostname = BYTES("short");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/hostname"), "short\n");
}
END_TEST

static unsigned mount_count(void)
{
	char line[512];
	unsigned count = 0;
	FILE *f = fopen("/proc/self/mounts", "re");
	while (fgets(line, sizeof(line), f) != NULL)
		count++;
	fclose(f);
	return count;
}

START_TEST(init_gets_the_boot_id_ready_and_leaves_it_as_it_is)
{
	Sandgate__Resume m = clone_message();
	char before[64];

	strcpy(before, content(BOOT_ID));
	renew_get_ready();
	ck_assert_str_eq(content(BOOT_ID), before);
	unsigned mounts = mount_count();
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_ne(content(BOOT_ID), before);
	ck_assert_uint_eq(mount_count(), mounts);
}
END_TEST

START_TEST(on_a_read_only_root_files_are_covered)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/hostname", "template\n");
	put_file("/etc/machine-id", "x\n");
	ck_assert(mount(NULL, "/etc", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	m.hostname = BYTES("a-long-name");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/hostname"), "a-long-name\n");
	m.hostname = BYTES("short");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/hostname"), "short\n");
}
END_TEST

START_TEST(what_fails_is_told_and_the_rest_is_done)
{
	Sandgate__Resume m = clone_message();
	char host[65];

	put_file("/etc/machine-id", "x\n");
	ck_assert(mount(NULL, "/etc", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	ck_assert(mount(NULL, "/run", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	m.hostname = BYTES("clone");
	ck_assert_int_eq(carry_out(&m), 1 << RENEW_MACHINE_ID | 1 << RENEW_BOOT_ID);
	gethostname(host, sizeof(host));
	ck_assert_str_eq(host, "clone");
}
END_TEST

/* The generator's ioctl fails on any other device. */
START_TEST(a_clone_without_entropy_stops_there)
{
	Sandgate__Resume m = clone_message();
	char before[65], after[65];

	ck_assert(mount("/dev/null", "/dev/urandom", NULL, MS_BIND, NULL) == 0);
	gethostname(before, sizeof(before));
	m.hostname = BYTES("clone");
	ck_assert_int_eq(carry_out(&m), 1 << RENEW_ENTROPY);
	gethostname(after, sizeof(after));
	ck_assert_str_eq(before, after);
}
END_TEST

/* ---- network ---- */

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
	tcase_add_test(tc, a_clone_gets_its_names);
	tcase_add_test(tc, names_come_from_the_hosts_bytes_which_the_kernel_never_gets);
	tcase_add_test(tc, a_clone_of_a_clone_gets_its_names_too);
	tcase_add_test(tc, files_that_are_not_there_are_not_made);
	tcase_add_test(tc, a_symbolic_link_is_replaced_and_not_followed);
	tcase_add_test(tc, a_file_that_has_two_names_is_replaced);
	tcase_add_test(tc, a_fifo_is_replaced_and_not_waited_for);
	tcase_add_test(tc, a_longer_text_leaves_no_rest);
	tcase_add_test(tc, init_gets_the_boot_id_ready_and_leaves_it_as_it_is);
	tcase_add_test(tc, on_a_read_only_root_files_are_covered);
	tcase_add_test(tc, what_fails_is_told_and_the_rest_is_done);
	tcase_add_test(tc, a_clone_without_entropy_stops_there);
	tcase_add_test(tc, a_clone_gets_the_network_it_is_told);
	tcase_add_test(tc, a_gateway_need_not_be_a_neighbour);
	tcase_add_test(tc, a_missing_interface_is_told);
	tcase_add_test(tc, faulty_networks_are_refused_by_field);
}

int main(void)
{
	TCase *t = new_case("renew", setup, NULL);
	if (may_have_one())
		add_tests(t);
	else
		printf("skipped: no namespaces of our own here\n");
	return run_suite("renew", t) != 0;
}
