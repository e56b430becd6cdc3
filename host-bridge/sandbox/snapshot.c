#include "host-bridge/sandbox/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/vm/vm_sweep.h"
#include "host-bridge/vm/vmm.h"
#include "proto/clock.h"
#include "proto/log.h"

void snapshot_dir(const struct sandbox_set *set, const struct snapshot *n, bool part,
                  char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s/snapshots/%s%s", set->state_dir, n->id,
	         part ? ".part" : "");
}

static void free_snapshot(struct snapshot *n)
{
	json_decref(n->metadata);
	json_decref(n->exec_defaults);
	free(n);
}

/* ---- finding ---- */

struct snapshot *snapshot_find(struct sandbox_set *set, const char *id, const char *workspace,
                               struct err *e)
{
	struct snapshot *n;
	TAILQ_FOREACH (n, &set->snapshots, entry)
		if (!n->deleted && strcmp(n->id, id) == 0 &&
		    (workspace == NULL || strcmp(n->workspace, workspace) == 0))
			return n;
	err_set(e, ERR_SNAPSHOT_NOT_FOUND, "there is no such snapshot");
	return NULL;
}

struct snapshot *snapshot_next(struct sandbox_set *set, const struct snapshot *after)
{
	struct snapshot *n =
	    after != NULL ? TAILQ_NEXT(after, entry) : TAILQ_FIRST(&set->snapshots);
	while (n != NULL && (n->deleted || n->kind == SNAPSHOT_PASSING))
		n = TAILQ_NEXT(n, entry);
	return n;
}

static int children(struct sandbox_set *set, const struct snapshot *n)
{
	int count = 0;
	for (struct sandbox *s = NULL; (s = sandbox_next(set, s)) != NULL;)
		count += strcmp(s->spec.snapshot, n->id) == 0;
	return count;
}

json_t *snapshot_json(struct sandbox_set *set, const struct snapshot *n)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:i, s:O, s:o}", "id", n->id,
	                 "sandbox_id", n->sandbox_id, "template", n->template, "vmm",
	                 n->launcher, "isolation", n->isolation, "node", set->node,
	                 "created_at", sandbox_instant(n->created_ms), "bytes",
	                 (json_int_t)n->bytes, "children", children(set, n), "metadata",
	                 n->metadata, "resources",
	                 sandbox_resources_json(n->vcpus, n->memory_mib, n->disk_mib));
}

/* ---- the row ---- */

static char *info_text(const struct snapshot *n)
{
	json_t *info = json_pack(
	    "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:I, s:O, s:O?}", "sandbox_id",
	    n->sandbox_id, "template", n->template, "launcher", n->launcher, "isolation",
	    n->isolation, "vcpus", (int)n->vcpus, "memory_mib", (int)n->memory_mib, "disk_mib",
	    (int)n->disk_mib, "image", n->image, "bytes", (json_int_t)n->bytes, "metadata",
	    n->metadata, "exec_defaults", n->exec_defaults);
	char *text = doc_text(info, JSON_COMPACT);
	json_decref(info);
	return text;
}

static int write_down(struct sandbox_set *set, const struct snapshot *n, struct err *e)
{
	char *info = info_text(n);
	if (info == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	struct registry_snapshot row = {
	    .id = n->id, .workspace = n->workspace, .info = info, .created_ms = n->created_ms};
	int rc = registry_put_snapshot(set->registry, &row, e);
	free(info);
	return rc;
}

static int read_info(struct snapshot *n, const char *text, struct err *e)
{
	const char *sandbox_id, *template, *launcher, *isolation, *image = "";
	json_error_t why;
	json_t *metadata, *defaults, *info = doc_parse(text, strlen(text), 0, &why);
	json_int_t bytes;
	int vcpus, memory, disk = 0;
	if (info == NULL && doc_no_memory(&why))
		return err_set(e, ERR_CAPACITY, "out of memory");
	int rc = json_unpack(info, "{s:s, s:s, s:s, s:s, s:i, s:i, s?i, s?s, s:I, s:o, s:o}",
	                     "sandbox_id", &sandbox_id, "template", &template, "launcher",
	                     &launcher, "isolation", &isolation, "vcpus", &vcpus, "memory_mib",
	                     &memory, "disk_mib", &disk, "image", &image, "bytes", &bytes,
	                     "metadata", &metadata, "exec_defaults", &defaults);
	if (rc == 0) {
		snprintf(n->sandbox_id, sizeof(n->sandbox_id), "%s", sandbox_id);
		snprintf(n->template, sizeof(n->template), "%s", template);
		snprintf(n->launcher, sizeof(n->launcher), "%s", launcher);
		snprintf(n->isolation, sizeof(n->isolation), "%s", isolation);
		n->vcpus = (unsigned)vcpus;
		n->memory_mib = (unsigned)memory;
		n->disk_mib = (unsigned)disk;
		snprintf(n->image, sizeof(n->image), "%s", image);
		n->bytes = (uint64_t)bytes;
		n->metadata = json_incref(metadata);
		n->exec_defaults = json_is_object(defaults) ? json_incref(defaults) : NULL;
	}
	json_decref(info);
	return rc;
}

/* The rows, and what may be removed because none speaks of it. */
struct loading {
	struct sandbox_set *set;
	json_t
	    *unread; /* ids of those whose rows say nothing to this bridge; NULL: no memory */
};

static void no_memory(struct loading *l)
{
	json_decref(l->unread);
	l->unread = NULL;
}

static void load_row(const struct registry_snapshot *row, void *arg)
{
	struct loading *l = arg;
	struct sandbox_set *set = l->set;
	struct snapshot *n = calloc(1, sizeof(*n));
	struct err e = {0};
	char dir[PATH_MAX];
	if (n == NULL) {
		no_memory(l);
		return;
	}
	snprintf(n->id, sizeof(n->id), "%s", row->id);
	snprintf(n->workspace, sizeof(n->workspace), "%s", row->workspace);
	n->created_ms = row->created_ms;
	snapshot_dir(set, n, false, dir);
	n->deleted = access(dir, F_OK) < 0 && errno == ENOENT; /* when its row could not go */
	if (read_info(n, row->info, &e) == 0) {
		TAILQ_INSERT_TAIL(&set->snapshots, n, entry);
		return;
	}
	if (e.code == ERR_CAPACITY) {
		no_memory(l);
	} else {
		log_error("snapshot", n->id, "its row cannot be read");
		doc_append(&l->unread, json_string(n->id));
		set->unread = true;
	}
	free_snapshot(n);
}

static void forget_rows(struct sandbox_set *set)
{
	struct snapshot *n, *next;
	struct err e = {0};
	for (n = TAILQ_FIRST(&set->snapshots); n != NULL; n = next) {
		next = TAILQ_NEXT(n, entry);
		if (!n->deleted)
			continue;
		if (registry_delete_snapshot(set->registry, n->id, &e) < 0)
			log_warn("snapshot", n->id, "%s", e.msg);
		TAILQ_REMOVE(&set->snapshots, n, entry);
		free_snapshot(n);
	}
}

/* What has no row was not finished, or was being deleted. */
static void sweep(const struct loading *l, const char *dir, DIR *all)
{
	char path[PATH_MAX + 256];
	struct dirent *d;
	while ((d = readdir(all)) != NULL) {
		if (d->d_name[0] == '.' || doc_has(l->unread, d->d_name) ||
		    snapshot_find(l->set, d->d_name, NULL, NULL) != NULL)
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		vm_discard_dir(path);
	}
}

int snapshot_load_all(struct sandbox_set *set, struct err *e)
{
	struct loading l = {.set = set, .unread = json_array()};
	char dir[PATH_MAX];
	snprintf(dir, sizeof(dir), "%s/snapshots", set->state_dir);
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return err_errno(e, ERR_INTERNAL, errno, "%s", dir);
	DIR *all = opendir(dir); /* not there, say not mounted, is not empty */
	if (all == NULL) {
		json_decref(l.unread);
		return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", dir);
	}
	int rc = registry_each_snapshot(set->registry, load_row, &l, e);
	if (rc == 0 && l.unread == NULL)
		rc = err_set(e, ERR_CAPACITY, "out of memory");
	if (rc == 0) {
		forget_rows(set);
		sweep(&l, dir, all);
	}
	json_decref(l.unread);
	closedir(all);
	return rc;
}

void snapshot_forget_all(struct sandbox_set *set)
{
	struct snapshot *n;
	while ((n = TAILQ_FIRST(&set->snapshots)) != NULL) {
		TAILQ_REMOVE(&set->snapshots, n, entry);
		free_snapshot(n);
	}
}

/* ---- making ---- */

/* Those that are made at the same time end in any order. */
static void insert(struct sandbox_set *set, struct snapshot *n)
{
	struct snapshot *before = TAILQ_LAST(&set->snapshots, snapshots);
	while (before != NULL && strcmp(before->id, n->id) > 0)
		before = TAILQ_PREV(before, snapshots, entry);
	if (before != NULL)
		TAILQ_INSERT_AFTER(&set->snapshots, before, n, entry);
	else
		TAILQ_INSERT_HEAD(&set->snapshots, n, entry);
}

static int make_dir(const struct sandbox_set *set, const struct snapshot *n, struct err *e)
{
	char dir[PATH_MAX];
	snapshot_dir(set, n, true, dir);
	if (mkdir(dir, 0700) == 0)
		return 0;
	return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", dir);
}

struct snapshot *snapshot_begin(struct sandbox *s, json_t *metadata, enum snapshot_kind kind,
                                struct err *e)
{
	struct snapshot *n = calloc(1, sizeof(*n));
	json_t *defaults, *own = metadata != NULL ? metadata : json_object();
	int rc = doc_copy(&defaults, s->spec.exec_defaults, NULL);
	if (n == NULL || own == NULL || rc < 0) {
		json_decref(own);
		json_decref(defaults);
		free(n);
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	n->metadata = own;
	n->kind = kind;
	n->exec_defaults = defaults;
	snprintf(n->workspace, sizeof(n->workspace), "%s", s->spec.workspace);
	snprintf(n->sandbox_id, sizeof(n->sandbox_id), "%s", s->id);
	snprintf(n->template, sizeof(n->template), "%s", s->spec.template);
	snprintf(n->launcher, sizeof(n->launcher), "%s", s->launcher->name);
	snprintf(n->isolation, sizeof(n->isolation), "%s", s->isolation);
	n->vcpus = s->spec.vcpus;
	n->memory_mib = s->spec.memory_mib;
	n->disk_mib = s->spec.disk_mib;
	snprintf(n->image, sizeof(n->image), "%s", s->spec.image);
	n->created_ms = clock_wall_ms();
	if (sandbox_set_new_id(s->set, "snap", n->id, sizeof(n->id), e) < 0 ||
	    make_dir(s->set, n, e) < 0) {
		free_snapshot(n);
		return NULL;
	}
	return n;
}

static uint64_t disk_bytes(const char *dir)
{
	static const char *const names[] = {SNAPSHOT_STATE, SNAPSHOT_MEMORY, DISK_FILE};
	char path[PATH_MAX + 16];
	uint64_t bytes = 0;
	struct stat st;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		if (stat(path, &st) == 0)
			bytes += (uint64_t)st.st_blocks * 512;
	}
	return bytes;
}

int snapshot_keep(struct sandbox_set *set, struct snapshot *n, struct err *e)
{
	char part[PATH_MAX], dir[PATH_MAX];
	snapshot_dir(set, n, true, part);
	snapshot_dir(set, n, false, dir);
	n->bytes = disk_bytes(part);
	if (rename(part, dir) < 0) {
		err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", dir);
		snapshot_abandon(set, n);
		return -1;
	}
	if (n->kind == SNAPSHOT_KEPT && write_down(set, n, e) < 0) {
		vm_discard_dir(dir);
		free_snapshot(n);
		return -1;
	}
	insert(set, n);
	return 0;
}

void snapshot_abandon(struct sandbox_set *set, struct snapshot *n)
{
	char part[PATH_MAX];
	snapshot_dir(set, n, true, part);
	vm_discard_dir(part);
	free_snapshot(n);
}

/* ---- the end ---- */

static void remove_files(struct sandbox_set *set, struct snapshot *n)
{
	char dir[PATH_MAX];
	snapshot_dir(set, n, false, dir);
	vm_discard_dir(dir);
	TAILQ_REMOVE(&set->snapshots, n, entry);
	free_snapshot(n);
}

int snapshot_delete(struct sandbox_set *set, struct snapshot *n, struct err *e)
{
	char dir[PATH_MAX];
	struct err full = {0};
	if (n->kind == SNAPSHOT_KEPT &&
	    registry_delete_snapshot(set->registry, n->id, &full) < 0) {
		if (full.code != ERR_STORAGE_FULL || n->loading > 0) {
			*e = full;
			return -1;
		}
		/* Its files make room for its row to go, and a row without files is none. */
		snapshot_dir(set, n, false, dir);
		vm_discard_dir(dir);
		if (registry_delete_snapshot(set->registry, n->id, &full) < 0)
			log_warn("snapshot", n->id, "%s", full.msg);
	}
	n->deleted = true;
	if (n->loading == 0)
		remove_files(set, n);
	return 0;
}

void snapshot_hold(struct snapshot *n)
{
	n->loading++;
}

void snapshot_release(struct sandbox_set *set, struct snapshot *n)
{
	n->loading--;
	if (n->loading == 0 && n->deleted)
		remove_files(set, n);
}
