#include "host-bridge/sandbox/baked.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "host-bridge/exec/call_request.h"
#include "host-bridge/vm/vm_sweep.h"
#include "proto/limits.h"

#define DIRECTORY "baked"
#define PART ".part"
#define DIGEST_BYTES 16

static void add_text(crypto_generichash_state *h, const char *text)
{
	crypto_generichash_update(h, (const uint8_t *)text, strlen(text) + 1);
}

/* What is run in the boot that the snapshot is made of. */
static void add_command(crypto_generichash_state *h, const struct call_request *q)
{
	static const uint8_t none[CALL_DIGEST_BYTES];
	crypto_generichash_update(h, q != NULL ? q->digest : none, CALL_DIGEST_BYTES);
}

static void add_number(crypto_generichash_state *h, unsigned long long n)
{
	crypto_generichash_update(h, (const uint8_t *)&n, sizeof(n));
}

/* A file by what changes when it is made anew; reading all of it would take too long. */
static int add_file(crypto_generichash_state *h, const char *path, struct err *e)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "%s", path);
	add_text(h, path);
	add_number(h, (unsigned long long)st.st_size);
	add_number(h, (unsigned long long)st.st_ino);
	add_number(h, (unsigned long long)st.st_mtim.tv_sec);
	add_number(h, (unsigned long long)st.st_mtim.tv_nsec);
	return 0;
}

int baked_path(const char *state_dir, const struct launcher *l,
               const struct launcher_host *host, const struct launcher_request *r,
               char out[PATH_MAX], struct err *e)
{
	crypto_generichash_state h;
	uint8_t digest[DIGEST_BYTES];
	char hex[2 * DIGEST_BYTES + 1], program[PATH_MAX];

	if (launcher_program(l->program, program, e) < 0)
		return -1;
	crypto_generichash_init(&h, NULL, 0, sizeof(digest));
	add_text(&h, l->name);
	add_text(&h, l->isolation(host));
	add_number(&h, r->vcpus);
	add_number(&h, r->memory_mib);
	add_number(&h, r->disk_mib);
	add_command(&h, r->template.start);
	add_command(&h, r->template.ready);
	if (add_file(&h, r->template.kernel, e) < 0 ||
	    add_file(&h, r->template.initrd, e) < 0 || add_file(&h, program, e) < 0 ||
	    (r->template.root[0] != '\0' && add_file(&h, r->template.root, e) < 0))
		return -1;
	crypto_generichash_final(&h, digest, sizeof(digest));
	sodium_bin2hex(hex, sizeof(hex), digest, sizeof(digest));
	snprintf(out, PATH_MAX, "%s/" DIRECTORY "/%s", state_dir, hex);
	return 0;
}

bool baked_exists(const char *path)
{
	return access(path, F_OK) == 0;
}

void baked_discard(const char *path)
{
	vm_discard_dir(path);
}

void baked_used(const char *path)
{
	utimensat(AT_FDCWD, path, NULL, 0);
}

void baked_part(const char *path, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s" PART, path);
}

int baked_begin(const char *path, char out[PATH_MAX], struct err *e)
{
	baked_part(path, out);
	if (mkdir(out, 0700) == 0)
		return 0;
	if (errno == EEXIST)
		return err_set(e, ERR_INVALID_STATE, "this template is being baked already");
	return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", out);
}

void baked_drop(const char *path)
{
	char part[PATH_MAX];
	baked_part(path, part);
	vm_discard_dir(part);
}

int baked_keep(const char *path, struct err *e)
{
	char part[PATH_MAX];
	baked_part(path, part);
	if (rename(part, path) == 0)
		return 0;
	err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", path);
	baked_drop(path);
	return -1;
}

static bool is_part(const char *name)
{
	size_t len = strlen(name);
	return len > strlen(PART) && strcmp(name + len - strlen(PART), PART) == 0;
}

static bool is_stale(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && st.st_mtime + BAKED_KEPT_S < time(NULL);
}

int baked_sweep(const char *state_dir, struct err *e)
{
	char dir[PATH_MAX], path[PATH_MAX + 256];
	struct dirent *d;

	snprintf(dir, sizeof(dir), "%s/" DIRECTORY, state_dir);
	mkdir(dir, 0700);
	DIR *all = opendir(dir);
	if (all == NULL)
		return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", dir);
	while ((d = readdir(all)) != NULL) {
		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		if (is_part(d->d_name) || is_stale(path))
			vm_discard_dir(path);
	}
	closedir(all);
	return 0;
}
