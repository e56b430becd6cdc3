#include "host-bridge/sandbox/image.h"

#include <dirent.h>
#include <errno.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIRECTORY "images"

/* Of what changes when the file is made anew, or written to; to read it would take too long. */
static int make_key(const char *path, char key[IMAGE_KEY_MAX], struct err *e)
{
	uint8_t digest[IMAGE_KEY_MAX / 2];
	struct stat st;
	if (stat(path, &st) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "the template's root");
	if (!S_ISREG(st.st_mode))
		return err_set(e, ERR_LAUNCHER_FAILED, "the template's root is no file");
	if (geteuid() == 0 && !(st.st_mode & S_IROTH))
		return err_set(e, ERR_LAUNCHER_FAILED,
		               "the template's root is not readable by everybody: VMs run as"
		               " users of their own");
	const uint64_t facts[] = {(uint64_t)st.st_ino, (uint64_t)st.st_size,
	                          (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
	crypto_generichash(digest, sizeof(digest), (const uint8_t *)facts, sizeof(facts), NULL,
	                   0);
	sodium_bin2hex(key, IMAGE_KEY_MAX, digest, sizeof(digest));
	return 0;
}

static void kept_path(const char *state_dir, const char *key, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s/" DIRECTORY "/%.32s", PATH_MAX - 64, state_dir, key);
}

int image_keep(const char *state_dir, const char *path, char key[IMAGE_KEY_MAX], struct err *e)
{
	char kept[PATH_MAX];
	if (make_key(path, key, e) < 0)
		return -1;
	kept_path(state_dir, "", kept);
	mkdir(kept, 0700);
	kept_path(state_dir, key, kept);
	if (link(path, kept) == 0 || errno == EEXIST || symlink(path, kept) == 0 ||
	    errno == EEXIST)
		return 0;
	return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
	                 "the template's root");
}

int image_path(const char *state_dir, const char *key, char out[PATH_MAX], struct err *e)
{
	char kept[PATH_MAX], now[IMAGE_KEY_MAX] = "";
	kept_path(state_dir, key, kept);
	if (realpath(kept, out) != NULL && make_key(out, now, e) < 0)
		return -1;
	if (strcmp(now, key) != 0)
		return err_set(e, ERR_LAUNCHER_FAILED,
		               "the root image that it was made from is gone, or has changed");
	return 0;
}

void image_sweep(const char *state_dir, bool (*is_needed)(const char *key, void *arg),
                 void *arg)
{
	char path[PATH_MAX];
	struct dirent *d;
	kept_path(state_dir, "", path);
	DIR *all = opendir(path);
	while (all != NULL && (d = readdir(all)) != NULL) {
		if (d->d_name[0] == '.' || is_needed(d->d_name, arg))
			continue;
		kept_path(state_dir, d->d_name, path);
		unlink(path);
	}
	if (all != NULL)
		closedir(all);
}
