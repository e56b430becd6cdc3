#include "host-bridge/device/vsock_options.h"

#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NOBODY 65534

static void usage(FILE *to, int status)
{
	fputs(
	    "usage: host-bridge vsock-device --socket PATH --uds PATH [OPTION]...\n\n"
	    "The vsock device of one virtual machine, in a process of its own.\n\n"
	    "  --socket PATH   where the VMM connects, over vhost-user\n"
	    "  --uds PATH      the hybrid socket: \"CONNECT PORT\" reaches the guest, and its\n"
	    "                  own connections come to PATH_PORT\n"
	    "  --guest-cid N   of the guest (3)\n"
	    "  --uid N         whom to become when started by root (65534) ...\n"
	    "  --gid N         ... and in which group (65534)\n"
	    "  --help\n\n"
	    "Says \"ready\" once both sockets are there; ends a minute after the VMM did.\n",
	    to);
	exit(status);
}

static uint64_t number(const char *s, uint64_t least, uint64_t most)
{
	char *end_of = NULL;
	errno = 0;
	unsigned long long n = strtoull(s, &end_of, 10);
	if (errno != 0 || end_of == s || *end_of != '\0' || *s == '-' || n < least || n > most)
		usage(stderr, 2);
	return n;
}

struct vsock_options vsock_options_parse(int argc, char **argv)
{
	static const struct option longs[] = {{"socket", required_argument, NULL, 's'},
	                                      {"uds", required_argument, NULL, 'u'},
	                                      {"guest-cid", required_argument, NULL, 'c'},
	                                      {"uid", required_argument, NULL, 'U'},
	                                      {"gid", required_argument, NULL, 'G'},
	                                      {"help", no_argument, NULL, 'h'},
	                                      {NULL, 0, NULL, 0}};
	struct vsock_options o = {.guest_cid = 3, .uid = NOBODY, .gid = NOBODY};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's')
			o.socket = optarg;
		else if (c == 'u')
			o.uds = optarg;
		else if (c == 'c')
			o.guest_cid = number(optarg, 3, UINT32_MAX - 1);
		else if (c == 'U')
			o.uid = (uid_t)number(optarg, 1, UINT32_MAX - 1);
		else if (c == 'G')
			o.gid = (gid_t)number(optarg, 1, UINT32_MAX - 1);
		else
			usage(c == 'h' ? stdout : stderr, c == 'h' ? 0 : 2);
	}
	if (optind != argc || o.socket == NULL || o.uds == NULL)
		usage(stderr, 2);
	return o;
}
