/* Stands for a VMM that is locked up: says whom it is and what it sees, as JSON, and ends. */
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

static void say_entries(void)
{
	const char *comma = "";
	DIR *root = opendir("/");
	printf("\"root\":[");
	for (struct dirent *d; root != NULL && (d = readdir(root)) != NULL;)
		if (d->d_name[0] != '.') {
			printf("%s\"%s\"", comma, d->d_name);
			comma = ",";
		}
	printf("],");
}

static void say_openable(const char *path, int flags)
{
	printf("\"%s\":%s,", path, open(path, flags, 0600) >= 0 ? "true" : "false");
}

static void say_interfaces(void)
{
	int n = 0;
	struct if_nameindex *all = if_nameindex();
	for (; all != NULL && all[n].if_index != 0; n++)
		;
	printf("\"interfaces\":%d", n);
}

int main(int argc, char **argv)
{
	printf("{\"uid\":%d,\"gid\":%d,\"groups\":%d,\"pid\":%d,\"arguments\":\"%s %s\",",
	       (int)getuid(), (int)getgid(), getgroups(0, NULL), (int)getpid(),
	       argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
	say_openable("/dev/kvm", O_RDWR);
	say_openable("/dev/urandom", O_RDONLY);
	say_openable("/dev/null", O_RDWR);
	say_openable("/etc/passwd", O_RDONLY);
	say_openable("/own", O_WRONLY | O_CREAT);
	say_entries();
	say_interfaces();
	printf("}\n");
	return 1;
}
