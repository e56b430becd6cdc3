/* What Cloud Hypervisor is asked through its API (vmm/src/api/openapi/cloud-hypervisor.yaml and
 * docs/snapshot_restore.md of its sources). It names files relative to its room. A guest that
 * resets would be started anew, without anybody being told: since no kernel is in the room any
 * more, that ends the VMM. */
#include "host-bridge/vm/vmm_cloud_hypervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/vm/vmm_room.h"
#include "proto/limits.h"

#define GUEST_CID 3 /* of no meaning: each VM's vsock is its own */
#ifdef __aarch64__
#define CONSOLE "ttyAMA0"
#else
#define CONSOLE "ttyS0"
#endif
#define BOOT_ARGUMENTS "console=" CONSOLE VMM_BOOT_ARGUMENTS

/* Names in the room; the last three are Cloud Hypervisor's own (docs/snapshot_restore.md). */
#define KERNEL "kernel"
#define INITRD "initrd"
#define CONFIG "config.json"
#define STATE "state.json"
#define MEMORY "memory-ranges"

/* What a snapshot has besides. */
#define SNAPSHOT_CONFIG "config"
#define SNAPSHOT_VERSION "version"
#define CONFIG_MAX (256 * KIB)

#define SNAPSHOTS_SINCE ROOM_VERSION(52, 0, 0)
#define NESTED_SINCE ROOM_VERSION(51, 0, 0)
#define IMAGE_TYPE_SINCE ROOM_VERSION(51, 0, 0)

/* ---- configurations ---- */

/* Older versions find out what kind of image it is, and newer ones do not let a guest write to
 * the first sector of one that they were not told of. */
static void add_disk(json_t **disks, const char *path, bool readonly, unsigned version)
{
	json_t *disk = json_pack("{s:s, s:b}", "path", path, "readonly", readonly);
	if (version >= IMAGE_TYPE_SINCE)
		doc_set(&disk, "image_type", json_string("Raw"));
	doc_append(disks, disk);
}

static json_t *make_disks(const struct vmm_boot *b, unsigned version)
{
	json_t *disks = json_array();
	if (b->root[0] != '\0')
		add_disk(&disks, b->root, true, version);
	if (b->disk_mib > 0)
		add_disk(&disks, DISK_FILE, false, version);
	return disks;
}

/* Memory that is shared (with nobody) is a file to it, of whose holes it makes a snapshot's. */
json_t *cloud_hypervisor_config(const struct vmm_boot *b, unsigned version)
{
	char words[VMM_WORDS_MAX], arguments[sizeof(BOOT_ARGUMENTS) + sizeof(words)];
	json_t *nested = version >= NESTED_SINCE ? json_false() : NULL;
	vmm_boot_words(b, words);
	snprintf(arguments, sizeof(arguments), BOOT_ARGUMENTS "%s", words);
	return json_pack(
	    "{s:{s:s, s:s, s:s}, s:{s:i, s:i, s:o*}, s:{s:I, s:b}, s:{s:i, s:s}, s:{s:s},"
	    " s:{s:s}, s:o}",
	    "payload", "kernel", KERNEL, "initramfs", INITRD, "cmdline", arguments, "cpus",
	    "boot_vcpus", (int)b->vcpus, "max_vcpus", (int)b->vcpus, "nested", nested, "memory",
	    "size", (json_int_t)b->memory_mib * MIB, "shared", 1, "vsock", "cid", GUEST_CID,
	    "socket", CLOUD_HYPERVISOR_VSOCK, "serial", "mode", "Tty", "console", "mode", "Off",
	    "disks", make_disks(b, version));
}

/* It insists on opening the initramfs, which the guest has long unpacked. The CID is kept, as
 * the guest knows it. */
int cloud_hypervisor_edit(json_t *config, const struct vmm_boot *b)
{
	json_t *payload = json_object_get(config, "payload");
	json_t *vsock = json_object_get(config, "vsock"), *disk, *path;
	json_t *disks = json_object_get(config, "disks"), *wanted = make_disks(b, 0);
	size_t i;
	int rc = json_array_size(disks) == json_array_size(wanted) ? 0 : -1;
	if (wanted == NULL || !json_is_object(payload) ||
	    json_object_set_new(vsock, "socket", json_string(CLOUD_HYPERVISOR_VSOCK)) < 0)
		rc = -1;
	json_object_del(payload, "initramfs");
	json_array_foreach (wanted, i, disk) {
		path = json_object_get(disk, "path");
		if (rc == 0 && json_object_set(json_array_get(disks, i), "path", path) < 0)
			rc = -1;
	}
	json_decref(wanted);
	return rc;
}

/* ---- boot ---- */

static int ask_boot(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "PUT", "/api/v1/vm.create", "o",
	             cloud_hypervisor_config(&c->boot, c->version));
	vmm_http_add(&s, "PUT", "/api/v1/vm.boot", NULL);
	return room_ask(c, &s, VMM_CALL_S, e);
}

static int show_boot(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	int rc = room_show(c, c->boot.kernel, KERNEL, e);
	return rc == 0 ? room_show(c, c->boot.initrd, INITRD, e) : rc;
}

/* ---- snapshots ---- */

/* The room as a URL: it writes a snapshot there, and reads one. */
static void room_url(const struct vmm_call *c, char out[PATH_MAX + 8])
{
	snprintf(out, PATH_MAX + 8, "file://%s", c->jailed ? "/" : c->room);
}

/* Earlier versions leave the guest's connections hanging in what they restore, and do not tell
 * the guest that their peers are gone. */
static int ask_save(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	char url[PATH_MAX + 8];
	if (c->version < SNAPSHOTS_SINCE)
		return err_set(e, ERR_LIMIT_UNSUPPORTED,
		               "Cloud Hypervisor %u leaves connections hanging in restored"
		               " guests: use v52 or newer",
		               c->version / ROOM_VERSION(1, 0, 0));
	room_url(c, url);
	vmm_http_add(&s, "PUT", "/api/v1/vm.pause", NULL);
	vmm_http_add(&s, "PUT", "/api/v1/vm.snapshot", "{s:s}", "destination_url", url);
	return room_ask(c, &s, VMM_SAVE_S, e);
}

static int ask_load(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	char url[PATH_MAX + 8];
	room_url(c, url);
	vmm_http_add(&s, "PUT", "/api/v1/vm.restore", "{s:s, s:b}", "source_url", url, "resume",
	             1);
	return room_ask(c, &s, VMM_SAVE_S, e);
}

static int write_version(const struct vmm_call *c, struct err *e)
{
	char path[PATH_MAX];
	room_saved(c, SNAPSHOT_VERSION, path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	int rc = fd >= 0 && dprintf(fd, "%u\n", c->version) > 0 ? 0 : -1;
	if (rc < 0)
		err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		          "a snapshot's " SNAPSHOT_VERSION);
	if (fd >= 0)
		close(fd);
	return rc;
}

/* None promises to load another's state, and the state does not tell whose it is. */
static int check_version(const struct vmm_call *c, struct err *e)
{
	char path[PATH_MAX];
	unsigned version = 0;
	room_saved(c, SNAPSHOT_VERSION, path);
	FILE *f = fopen(path, "re");
	bool same = f != NULL && fscanf(f, "%u", &version) == 1 && version == c->version;
	if (f != NULL)
		fclose(f);
	return same ? 0
	            : err_set(e, ERR_LAUNCHER_FAILED,
	                      "the snapshot is of another version of Cloud Hypervisor");
}

/* It takes what a file lacks at its end for zeroes. */
static int check_memory(const struct vmm_call *c, struct err *e)
{
	char path[PATH_MAX];
	struct stat st;
	room_saved(c, SNAPSHOT_MEMORY, path);
	if (stat(path, &st) == 0 && st.st_size == (off_t)c->boot.memory_mib * MIB)
		return 0;
	return err_set(e, ERR_LAUNCHER_FAILED, "the snapshot's memory is not whole");
}

static int write_config(const struct vmm_call *c, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	struct stat st;
	room_saved(c, SNAPSHOT_CONFIG, from);
	room_path(c, CONFIG, to);
	struct err why = {0};
	json_t *config = stat(from, &st) == 0 && st.st_size <= CONFIG_MAX
	                     ? doc_load(from, 0, ERR_LAUNCHER_FAILED, &why)
	                     : NULL;
	int rc = 0;
	if (why.code == ERR_CAPACITY)
		rc = err_set(e, why.code, CONFIG ": %.120s", why.msg);
	else if (cloud_hypervisor_edit(config, &c->boot) < 0)
		rc = err_set(e, ERR_LAUNCHER_FAILED,
		             "the snapshot's configuration is not what was saved");
	else if (json_dump_file(config, to, JSON_COMPACT) < 0 || chmod(to, 0444) < 0)
		rc = err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno, CONFIG);
	json_decref(config);
	return rc;
}

static int show_snapshot(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	if (check_version(c, e) < 0 || check_memory(c, e) < 0 || write_config(c, e) < 0 ||
	    room_load_disk(c, e) < 0 || room_show_saved(c, SNAPSHOT_STATE, STATE, e) < 0)
		return -1;
	return room_show_saved(c, SNAPSHOT_MEMORY, MEMORY, e);
}

static int move_saved(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	if (room_move(c, CONFIG, SNAPSHOT_CONFIG, e) < 0 ||
	    room_move(c, STATE, SNAPSHOT_STATE, e) < 0 ||
	    room_move(c, MEMORY, SNAPSHOT_MEMORY, e) < 0 || room_save_disk(c, e) < 0)
		return -1;
	return write_version(c, e);
}

/* ---- pause and resume ---- */

static int ask_pause(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "PUT", "/api/v1/vm.pause", NULL);
	return room_ask(c, &s, VMM_CALL_S, e);
}

static int ask_resume(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "PUT", "/api/v1/vm.resume", NULL);
	return room_ask(c, &s, VMM_CALL_S, e);
}

/* ---- the calls ---- */

static struct vmm_call *begin(const struct vmm_target *t, const char *snapshot,
                              room_step *const *steps,
                              void (*on_done)(const struct err *e, void *arg), void *arg,
                              struct err *e)
{
	static const char *const names[] = {KERNEL, INITRD, CONFIG, STATE, MEMORY, NULL};
	static const struct room_vmm cloud_hypervisor = {
	    .api = CLOUD_HYPERVISOR_API,
	    .names = names,
	    .version_path = "/api/v1/vmm.ping",
	    .version_key = "version",
	    .state_path = "/api/v1/vm.info",
	    .show_boot = show_boot,
	    .show_snapshot = show_snapshot,
	    .move_saved = move_saved,
	    .resume = ask_resume,
	};
	return room_begin(&cloud_hypervisor, t, t->dir, geteuid() == 0, snapshot, steps,
	                  on_done, arg, e);
}

ROOM_CALL(boot, room_ask_version, room_show_boot, ask_boot, room_hide)
ROOM_CALL(load, room_ask_version, room_show_snapshot, ask_load, room_hide)
ROOM_CALL(save, room_ask_version, ask_save, room_move_saved)
ROOM_CALL(go_on, room_ask_state, room_resume_if_paused, room_hide)
ROOM_CALL(stop, ask_pause)
ROOM_CALL(cont, room_ask_state, room_resume_if_paused)

const struct vmm_ops vmm_cloud_hypervisor = {
    .boot = boot,
    .load = load,
    .save = save,
    .go_on = go_on,
    .recover = go_on,
    .pause = stop,
    .resume = cont,
    .cancel = room_cancel,
};
