/* The root of the machine. On the kernel's command line
 *
 *   sandgate.root=DEVICE   an ext4 image, never written to: the lower layer of the root
 *   sandgate.disk=DEVICE   an ext4 file system: the upper layer, else that is in memory
 *
 * Without an image the lower layer is what the kernel gave us: an initramfs, or a root that it
 * has mounted itself. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "guest-agent/init.h"
#include "guest-agent/init_private.h"

#define MODULES_LIST "/etc/sandgate/modules-disk"
#define DEVICE_WAIT_MS 10000
#define DEVICE_PAUSE_MS 10

/* Everything is put together on a file system in memory, which nobody sees afterwards. */
#define STAGE "/tmp"
#define IMAGE STAGE "/image"
#define LAYER STAGE "/layer"
#define ROOT STAGE "/root"

static dev_t disks[2]; /* of the upper layer, of the lower one */

const dev_t *init_disks(void)
{
	return disks;
}

/* A driver finds its devices in its own time. -1 with errno. */
static int wait_for(const char *device, struct stat *st)
{
	struct timespec pause = {.tv_nsec = DEVICE_PAUSE_MS * 1000000L};

	for (int waited = 0; stat(device, st) != 0 || !S_ISBLK(st->st_mode);
	     waited += DEVICE_PAUSE_MS) {
		if (waited >= DEVICE_WAIT_MS) {
			errno = ENODEV;
			return -1;
		}
		nanosleep(&pause, NULL);
	}
	return 0;
}

static int make_directory(const char *path)
{
	return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : -1;
}

static int mount_device(const char *device, const char *at, unsigned long flags,
                        struct stat *st)
{
	return make_directory(at) == 0 && wait_for(device, st) == 0 &&
	               mount(device, at, "ext4", flags, NULL) == 0
	           ? 0
	           : -1;
}

/* Where a name in the lower layer ends up in the upper one is written there, so that a
 * directory can be renamed; and a file keeps its number when it is first written to. */
static int join(const char *lower)
{
	char options[256];

	snprintf(options, sizeof(options),
	         "lowerdir=%s,upperdir=" LAYER "/files,workdir=" LAYER
	         "/work,redirect_dir=on,xino=on",
	         lower);
	if (make_directory(LAYER "/files") != 0 || make_directory(LAYER "/work") != 0 ||
	    make_directory(ROOT) != 0 || mount("overlay", ROOT, "overlay", 0, options) != 0)
		return -1;
	/* It holds on to its layers, which are nobody else's business. */
	umount2(LAYER, MNT_DETACH);
	umount2(IMAGE, MNT_DETACH);
	return 0;
}

static int mount_memory(const char *at, const char *options)
{
	return make_directory(at) == 0 && mount("tmpfs", at, "tmpfs", 0, options) == 0 ? 0 : -1;
}

/* NULL, or with errno what could not be had. */
static const char *put_together(const char *image, const char *disk)
{
	const char *lower = image[0] != '\0' ? IMAGE : "/";
	struct stat st;

	if (mount_memory(STAGE, "mode=700") != 0)
		return STAGE;
	if (image[0] != '\0' && mount_device(image, IMAGE, MS_RDONLY, &st) != 0)
		return image;
	if (disk[0] == '\0' && mount_memory(LAYER, "mode=755") != 0)
		return LAYER;
	if (disk[0] != '\0' && mount_device(disk, LAYER, MS_NOATIME, &st) != 0)
		return disk;
	disks[0] = disk[0] != '\0' ? st.st_rdev : 0;
	disks[1] = stat(lower, &st) == 0 ? st.st_dev : 0;
	return join(lower) == 0 ? NULL : "overlay";
}

static bool in_memory(int dir)
{
	struct statfs fs;

	return fstatfs(dir, &fs) == 0 && (fs.f_type == RAMFS_MAGIC || fs.f_type == TMPFS_MAGIC);
}

/* What is on `device`; closes `dir`. */
static void remove_files(int dir, dev_t device)
{
	DIR *all = fdopendir(dir);
	struct dirent *d;
	struct stat st;

	if (all == NULL) {
		close(dir);
		return;
	}
	while ((d = readdir(all)) != NULL) {
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
		    fstatat(dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
		    st.st_dev != device)
			continue;
		if (S_ISDIR(st.st_mode)) {
			int sub = openat(dir, d->d_name, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			if (sub >= 0)
				remove_files(sub, device);
		}
		unlinkat(dir, d->d_name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
	}
	closedir(all);
}

/* As initramfs's switch_root does, in the same process: the old root stays below the new one,
 * empty when it is memory that nobody needs. */
static int enter(bool needs_old)
{
	static const char *const along[] = {"/proc", "/sys", "/dev"};
	char to[32];
	struct stat st;
	int old = open("/", O_DIRECTORY | O_CLOEXEC);

	for (size_t i = 0; i < sizeof(along) / sizeof(along[0]); i++) {
		snprintf(to, sizeof(to), ROOT "%s", along[i]);
		make_directory(to);
		if (mount(along[i], to, NULL, MS_MOVE, NULL) != 0)
			init_failed("move", along[i]);
	}
	if (chdir(ROOT) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 ||
	    umount2(STAGE, MNT_DETACH) != 0 || chroot(".") != 0 || chdir("/") != 0) {
		init_failed("root", "/");
		return -1;
	}
	if (!needs_old && in_memory(old) && fstat(old, &st) == 0)
		remove_files(old, st.st_dev);
	else
		close(old);
	return 0;
}

int init_root(void)
{
	char image[64] = "", disk[64] = "";
	struct statvfs fs;
	bool asked = init_word("sandgate.root=", image, sizeof(image));

	asked |= init_word("sandgate.disk=", disk, sizeof(disk));
	if (!asked && (statvfs("/", &fs) != 0 || !(fs.f_flag & ST_RDONLY)))
		return 0;
	init_load_modules(MODULES_LIST);
	const char *missing = put_together(image, disk);
	if (missing == NULL)
		return enter(image[0] == '\0');
	init_failed("root", missing);
	umount2(LAYER, MNT_DETACH);
	umount2(IMAGE, MNT_DETACH);
	umount2(STAGE, MNT_DETACH);
	return asked ? -1 : 0;
}
