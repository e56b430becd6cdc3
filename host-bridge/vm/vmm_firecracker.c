/* What Firecracker is asked through its API. A guest's memory is mapped privately from its
 * snapshot's file: pages are shared, and the file must never change. */
#include "host-bridge/vm/vmm_firecracker.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>

#include "host-bridge/vm/vmm.h"
#include "host-bridge/vm/vmm_room.h"
#include "proto/limits.h"

#define GUEST_CID 3 /* of no meaning: each VM's vsock is its own */
#define BOOT_ARGUMENTS                               \
	"console=ttyS0 reboot=k pci=off i8042.noaux" \
	" i8042.nomux i8042.dumbkbd" VMM_BOOT_ARGUMENTS

/* Names in the room, besides DISK_FILE. Saved ones are others than those shown: a snapshot is
 * not written over. */
#define KERNEL "kernel"
#define INITRD "initrd"
#define ROOT "root"
#define STATE "state"
#define MEMORY "memory"
#define SAVED_STATE "saved-state"
#define SAVED_MEMORY "saved-memory"

/* None is the root device: that is for a kernel without an initrd, which would be told of it. A
 * flush of the guest's need not reach the host's disk: the guest's lives no longer than its VM.
 */
static void add_drives(struct vmm_http_script *s, const struct vmm_boot *b)
{
	if (b->root[0] != '\0')
		vmm_http_add(s, "PUT", "/drives/root", "{s:s, s:s, s:b, s:b}", "drive_id",
		             "root", "path_on_host", ROOT, "is_root_device", 0, "is_read_only",
		             1);
	if (b->disk_mib > 0)
		vmm_http_add(s, "PUT", "/drives/disk", "{s:s, s:s, s:b, s:b, s:s}", "drive_id",
		             "disk", "path_on_host", DISK_FILE, "is_root_device", 0,
		             "is_read_only", 0, "cache_type", "Unsafe");
}

static int ask_boot(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	char words[VMM_WORDS_MAX], arguments[sizeof(BOOT_ARGUMENTS) + sizeof(words)];
	vmm_boot_words(&c->boot, words);
	snprintf(arguments, sizeof(arguments), BOOT_ARGUMENTS "%s", words);
	vmm_http_add(&s, "PUT", "/boot-source", "{s:s, s:s, s:s}", "kernel_image_path", KERNEL,
	             "initrd_path", INITRD, "boot_args", arguments);
	add_drives(&s, &c->boot);
	vmm_http_add(&s, "PUT", "/machine-config", "{s:i, s:i}", "vcpu_count",
	             (int)c->boot.vcpus, "mem_size_mib", (int)c->boot.memory_mib);
	vmm_http_add(&s, "PUT", "/vsock", "{s:i, s:s}", "guest_cid", GUEST_CID, "uds_path",
	             FIRECRACKER_VSOCK);
	vmm_http_add(&s, "PUT", "/entropy", "{}");
	vmm_http_add(&s, "PUT", "/actions", "{s:s}", "action_type", "InstanceStart");
	return room_ask(c, &s, VMM_CALL_S, e);
}

/* Recorded paths, the socket's and the disks', are relative to the room: those of this one are
 * found without its being told. Older versions refuse to be told another socket. */
static int ask_load(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	json_t *vsock = NULL;
	if (c->version >= ROOM_VERSION(1, 16, 0))
		vsock = json_pack("{s:s}", "uds_path", FIRECRACKER_VSOCK);
	vmm_http_add(&s, "PUT", "/snapshot/load", "{s:s, s:{s:s, s:s}, s:b, s:o*}",
	             "snapshot_path", STATE, "mem_backend", "backend_type", "File",
	             "backend_path", MEMORY, "resume_vm", 1, "vsock_override", vsock);
	return room_ask(c, &s, VMM_CALL_S, e);
}

/* A guest restored by 1.16.0 is deaf for ever: none is saved for it. */
static int ask_save(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	if (c->version == ROOM_VERSION(1, 16, 0))
		return err_set(e, ERR_LIMIT_UNSUPPORTED,
		               "Firecracker 1.16.0 cannot restore snapshots: use 1.16.1");
	vmm_http_add(&s, "PATCH", "/vm", "{s:s}", "state", "Paused");
	vmm_http_add(&s, "PUT", "/snapshot/create", "{s:s, s:s, s:s}", "snapshot_type", "Full",
	             "snapshot_path", SAVED_STATE, "mem_file_path", SAVED_MEMORY);
	return room_ask(c, &s, VMM_SAVE_S, e);
}

/* 1.16.0 and 1.16.1 lose all connections to come when they are merely paused and resumed. */
static int ask_pause(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	if (c->version == ROOM_VERSION(1, 16, 0) || c->version == ROOM_VERSION(1, 16, 1))
		return err_set(e, ERR_LIMIT_UNSUPPORTED,
		               "Firecracker 1.16.0 and 1.16.1 do not survive a pause");
	vmm_http_add(&s, "PATCH", "/vm", "{s:s}", "state", "Paused");
	return room_ask(c, &s, VMM_CALL_S, e);
}

static int ask_resume(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "PATCH", "/vm", "{s:s}", "state", "Resumed");
	return room_ask(c, &s, VMM_CALL_S, e);
}

/* ---- files ---- */

static int show_root(const struct vmm_call *c, struct err *e)
{
	return c->boot.root[0] != '\0' ? room_show(c, c->boot.root, ROOT, e) : 0;
}

static int show_boot(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	if (room_show(c, c->boot.kernel, KERNEL, e) < 0 || show_root(c, e) < 0 ||
	    room_take_disk(c, e) < 0)
		return -1;
	return room_show(c, c->boot.initrd, INITRD, e);
}

static int show_snapshot(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	if (room_show_saved(c, SNAPSHOT_STATE, STATE, e) < 0 || show_root(c, e) < 0 ||
	    room_load_disk(c, e) < 0)
		return -1;
	return room_show_saved(c, SNAPSHOT_MEMORY, MEMORY, e);
}

static int move_saved(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	if (room_move(c, SAVED_STATE, SNAPSHOT_STATE, e) < 0 || room_save_disk(c, e) < 0)
		return -1;
	return room_move(c, SAVED_MEMORY, SNAPSHOT_MEMORY, e);
}

/* ---- the calls ---- */

static struct vmm_call *begin(const struct vmm_target *t, const char *snapshot,
                              room_step *const *steps,
                              void (*on_done)(const struct err *e, void *arg), void *arg,
                              struct err *e)
{
	static const char *const names[] = {KERNEL, INITRD,      ROOT,         STATE,
	                                    MEMORY, SAVED_STATE, SAVED_MEMORY, NULL};
	static const struct room_vmm firecracker = {
	    .api = FIRECRACKER_API,
	    .names = names,
	    .version_path = "/version",
	    .version_key = "firecracker_version",
	    .state_path = "/",
	    .show_boot = show_boot,
	    .show_snapshot = show_snapshot,
	    .move_saved = move_saved,
	    .resume = ask_resume,
	};
	char socket[PATH_MAX];
	snprintf(socket, sizeof(socket), "%s", t->socket);
	const char *room = dirname(socket);
	return room_begin(&firecracker, t, room, strcmp(room, t->dir) != 0, snapshot, steps,
	                  on_done, arg, e);
}

ROOM_CALL(boot, room_ask_version, room_show_boot, ask_boot, room_hide)
ROOM_CALL(load, room_ask_version, room_show_snapshot, ask_load, room_hide)
ROOM_CALL(save, room_ask_version, ask_save, room_move_saved)
ROOM_CALL(go_on, room_ask_state, room_resume_if_paused, room_hide)
ROOM_CALL(stop, room_ask_version, ask_pause)
ROOM_CALL(cont, room_ask_state, room_resume_if_paused)

const struct vmm_ops vmm_firecracker = {
    .boot = boot,
    .load = load,
    .save = save,
    .go_on = go_on,
    .recover = go_on,
    .pause = stop,
    .resume = cont,
    .cancel = room_cancel,
};
