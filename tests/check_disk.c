/* Disks of sandboxes and the images below them, as files of this host. */
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/sandbox/image.h"
#include "host-bridge/vm/disk.h"
#include "host-bridge/vm/vmm.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

static char dir[] = "/tmp/check-disk-XXXXXX";
static struct err e;

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	e = (struct err){0};
}

static void teardown(void)
{
	remove_tree(dir);
}

static const char *at(const char *name)
{
	static char paths[4][PATH_MAX];
	static unsigned next;
	char *path = paths[next++ % 4];
	snprintf(path, PATH_MAX, "%s/%s", dir, name);
	return path;
}

static void write_at(const char *name, off_t offset, const char *text)
{
	int fd = open(at(name), O_WRONLY | O_CREAT, 0644);
	ck_assert_int_eq(pwrite(fd, text, strlen(text), offset), (int)strlen(text));
	close(fd);
}

static struct stat look(const char *name)
{
	struct stat st;
	ck_assert_int_eq(lstat(at(name), &st), 0);
	return st;
}

static uint16_t half_at(const char *name, off_t offset)
{
	uint8_t b[2];
	int fd = open(at(name), O_RDONLY);
	ck_assert_int_eq(pread(fd, b, 2, offset), 2);
	close(fd);
	return (uint16_t)(b[0] | b[1] << 8);
}

/* ---- disks ---- */

START_TEST(a_disk_is_sparse_and_has_a_file_system_without_a_journal)
{
	ck_assert_int_eq(disk_make(at("disk"), 1024, 0, &e), 0);
	ck_assert_int_eq(look("disk").st_blocks, 0);
	ck_assert_msg(disk_format(at("disk"), &e) == 0, "%s", e.msg);
	struct stat st = look("disk");
	ck_assert_int_eq(st.st_size, 1024 * MIB);
	ck_assert_int_lt(st.st_blocks * 512, 1 * MIB);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_assert_uint_eq(half_at("disk", 1024 + 56), 0xef53);  /* s_magic of ext4 */
	ck_assert_uint_eq(half_at("disk", 1024 + 92) & 0x4, 0); /* has_journal */
}
END_TEST

START_TEST(a_disk_is_its_owners)
{
	ck_assert_int_eq(disk_make(at("disk"), DISK_MIN_MIB, 70007, &e), 0);
	ck_assert_uint_eq(look("disk").st_uid, 70007);
	ck_assert_uint_eq(look("disk").st_gid, 70007);
	ck_assert_int_eq(disk_format(at("disk"), &e), 0);
}
END_TEST

START_TEST(the_smallest_and_the_largest_disk_can_be_formatted)
{
	ck_assert_int_eq(disk_make(at("disk"), _i == 0 ? DISK_MIN_MIB : DISK_MAX_MIB, 0, &e),
	                 0);
	ck_assert_msg(disk_format(at("disk"), &e) == 0, "%s", e.msg);
	ck_assert_int_lt(look("disk").st_blocks * 512, 32 * MIB);
}
END_TEST

START_TEST(what_cannot_be_formatted_is_told)
{
	ck_assert_int_lt(disk_format(at("missing"), &e), 0);
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
	ck_assert_ptr_nonnull(strstr(e.msg, "mke2fs: "));
	ck_assert_int_lt(disk_make(at("missing/disk"), 16, 0, &e), 0);
	write_at("disk", 0, "there already");
	ck_assert_int_lt(disk_make(at("disk"), 16, 0, &e), 0);
}
END_TEST

START_TEST(a_host_that_is_full_is_told_apart)
{
	ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ck_assert_int_eq(mount("tmpfs", dir, "tmpfs", 0, "size=16k"), 0);
	ck_assert_int_eq(disk_make(at("disk"), 64, 0, &e), 0);
	ck_assert_int_lt(disk_format(at("disk"), &e), 0);
	ck_assert_int_eq(e.code, ERR_STORAGE_FULL);
	ck_assert_int_lt(disk_save(at("disk"), at("copy"), false, &e), 0);
	ck_assert_int_eq(e.code, ERR_STORAGE_FULL);
	ck_assert_int_lt(access(at("copy"), F_OK), 0);
	ck_assert_int_eq(umount(dir), 0);
}
END_TEST

START_TEST(a_disk_is_copied_and_the_last_time_renamed)
{
	ck_assert_int_eq(disk_make(at("disk"), 16, 0, &e), 0);
	write_at("disk", MIB, "data");
	ck_assert_int_eq(disk_save(at("disk"), at("copy"), false, &e), 0);
	ck_assert_int_eq(disk_save(at("disk"), at("kept"), true, &e), 0);
	ck_assert_uint_ne(look("copy").st_ino, look("disk").st_ino);
	ck_assert_uint_eq(look("kept").st_ino, look("disk").st_ino);
	ck_assert_int_eq(look("copy").st_size, 16 * MIB);
	ck_assert_uint_eq(half_at("copy", MIB), 'd' | 'a' << 8);
}
END_TEST

START_TEST(only_a_file_of_its_own_is_taken_for_a_disk)
{
	write_at("secret", 0, "of the host");
	ck_assert_int_eq(symlink(at("secret"), at("link")), 0);
	ck_assert_int_eq(mkfifo(at("fifo"), 0600), 0);
	for (int last = 0; last < 2; last++) {
		ck_assert_int_lt(disk_save(at("link"), at("saved"), last, &e), 0);
		ck_assert_int_lt(disk_save(at("fifo"), at("saved"), last, &e), 0);
		ck_assert_int_lt(access(at("saved"), F_OK), 0);
	}
	ck_assert_int_eq(link(at("secret"), at("second")), 0);
	ck_assert_int_eq(disk_save(at("second"), at("saved"), true, &e), 0);
	ck_assert_uint_ne(look("saved").st_ino, look("secret").st_ino);
}
END_TEST

START_TEST(the_guest_is_told_its_name_and_disks)
{
	static struct vmm_boot b;
	char words[VMM_WORDS_MAX];
	b = (struct vmm_boot){0};
	vmm_boot_words(&b, words);
	ck_assert_str_eq(words, "");
	b.disk_mib = 16;
	vmm_boot_words(&b, words);
	ck_assert_str_eq(words, " sandgate.disk=/dev/vda");
	strcpy(b.root, "/image");
	vmm_boot_words(&b, words);
	ck_assert_str_eq(words, " sandgate.root=/dev/vda sandgate.disk=/dev/vdb");
	b.disk_mib = 0;
	vmm_boot_words(&b, words);
	ck_assert_str_eq(words, " sandgate.root=/dev/vda");
	strcpy(b.hostname, "sb-1");
	vmm_boot_words(&b, words);
	ck_assert_str_eq(words, " hostname=sb-1 sandgate.root=/dev/vda");
}
END_TEST

/* ---- images ---- */

static char key[IMAGE_KEY_MAX], path[PATH_MAX];

static void keep(const char *name)
{
	ck_assert_msg(image_keep(dir, at(name), key, &e) == 0, "%s", e.msg);
}

START_TEST(an_image_outlives_its_templates_next_one)
{
	char first[IMAGE_KEY_MAX];
	write_at("root", 0, "the first");
	ino_t inode = look("root").st_ino;
	keep("root");
	strcpy(first, key);
	keep("root");
	ck_assert_str_eq(key, first);
	write_at("new", 0, "the second");
	ck_assert_int_eq(rename(at("new"), at("root")), 0);
	keep("root");
	ck_assert_str_ne(key, first);
	ck_assert_int_eq(image_path(dir, first, path, &e), 0);
	struct stat st;
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_ino, inode);
}
END_TEST

START_TEST(an_image_that_was_written_to_is_refused)
{
	write_at("root", 0, "as it was");
	keep("root");
	write_at("root", 100, "and more");
	ck_assert_int_lt(image_path(dir, key, path, &e), 0);
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
	ck_assert_int_lt(image_path(dir, "0123", path, &e), 0);
	ck_assert_int_lt(image_keep(dir, at("none"), key, &e), 0);
	ck_assert_int_lt(image_keep(dir, dir, key, &e), 0);
}
END_TEST

START_TEST(an_image_that_vms_may_not_read_is_refused)
{
	write_at("root", 0, "for root alone");
	ck_assert_int_eq(chmod(at("root"), 0600), 0);
	ck_assert_int_lt(image_keep(dir, at("root"), key, &e), 0);
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
}
END_TEST

/* /dev/shm stands for another file system than /tmp's. */
START_TEST(an_image_elsewhere_is_referred_to)
{
	char other[] = "/dev/shm/check-disk-XXXXXX";
	int fd = mkstemp(other);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fchmod(fd, 0644), 0);
	ck_assert_int_eq(write(fd, "image", 5), 5);
	ck_assert_int_eq(image_keep(dir, other, key, &e), 0);
	ck_assert_int_eq(image_path(dir, key, path, &e), 0);
	ck_assert_str_eq(path, other);
	ck_assert_int_eq(pwrite(fd, "changed", 7, 9), 7);
	close(fd);
	int rc = image_path(dir, key, path, &e);
	unlink(other);
	ck_assert_int_lt(rc, 0);
	ck_assert_int_lt(image_path(dir, key, path, &e), 0);
}
END_TEST

static bool is_needed(const char *one, void *arg)
{
	return strcmp(one, arg) == 0;
}

START_TEST(what_nothing_needs_is_let_go)
{
	char first[IMAGE_KEY_MAX];
	write_at("root", 0, "first");
	keep("root");
	strcpy(first, key);
	write_at("other", 0, "other one");
	keep("other");
	image_sweep(dir, is_needed, first);
	ck_assert_int_eq(image_path(dir, first, path, &e), 0);
	ck_assert_int_lt(image_path(dir, key, path, &e), 0);
	ck_assert_int_eq(access(at("other"), F_OK), 0);
}
END_TEST

int main(void)
{
	TCase *disks = new_case("disks", setup, teardown);
	tcase_add_test(disks, a_disk_is_sparse_and_has_a_file_system_without_a_journal);
	if (geteuid() == 0) {
		tcase_add_test(disks, a_disk_is_its_owners);
		tcase_add_test(disks, a_host_that_is_full_is_told_apart);
	}
	tcase_add_loop_test(disks, the_smallest_and_the_largest_disk_can_be_formatted, 0, 2);
	tcase_add_test(disks, what_cannot_be_formatted_is_told);
	tcase_add_test(disks, a_disk_is_copied_and_the_last_time_renamed);
	tcase_add_test(disks, only_a_file_of_its_own_is_taken_for_a_disk);
	tcase_add_test(disks, the_guest_is_told_its_name_and_disks);
	TCase *images = new_case("images", setup, teardown);
	tcase_add_test(images, an_image_outlives_its_templates_next_one);
	tcase_add_test(images, an_image_that_was_written_to_is_refused);
	tcase_add_test(images, an_image_elsewhere_is_referred_to);
	if (geteuid() == 0)
		tcase_add_test(images, an_image_that_vms_may_not_read_is_refused);
	tcase_add_test(images, what_nothing_needs_is_let_go);
	return run_suite("disk", disks, images) != 0;
}
