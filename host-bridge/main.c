/* host-bridge: `serve` (the default), `token` and `vsock-device`, one program for all. */
#include <stdio.h>
#include <string.h>

#include "host-bridge/bridge.h"
#include "host-bridge/device/vsock_device.h"
#include "host-bridge/settings.h"
#include "host-bridge/token_command.h"

static int serve(int argc, char **argv)
{
	struct settings c;
	struct err e;
	if (settings_load(&c, argc, argv, &e) < 0) {
		fprintf(stderr, "host-bridge: %s\n", e.msg);
		return 2;
	}
	if (c.help) {
		settings_help(stdout);
		return 0;
	}
	if (c.version) {
		puts("host-bridge " BRIDGE_VERSION);
		return 0;
	}
	return bridge_serve(&c);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "vsock-device") == 0)
		return vsock_device_main(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "token") == 0)
		return token_command_main(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "serve") == 0)
		return serve(argc - 1, argv + 1);
	return serve(argc, argv);
}
