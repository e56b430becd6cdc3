#include "host-bridge/launcher/template.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/exec/call_request.h"
#include "host-bridge/http/doc.h"
#include "proto/limits.h"

#define FILE_NAME "template.json"

/* Names come from HTTP clients and become a path: nothing but these bytes, no leading dot. */
static int check_name(const char *name, struct err *e)
{
	static const char allowed[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t len = strlen(name);
	if (len == 0 || len > 63 || name[0] == '.' || strspn(name, allowed) != len)
		return err_field(e, ERR_TEMPLATE_NOT_FOUND, "template",
		                 "there is no such template");
	return 0;
}

/* ---- the document ---- */

static int invalid(struct err *e, const char *name, const char *field, const char *what)
{
	return err_set(e, ERR_LAUNCHER_FAILED, "%s/" FILE_NAME ": %s %s", name, field, what);
}

static int check_files(const char *name, const char *field, json_t *files, struct err *e)
{
	char path[128];
	const char *vmm;
	json_t *file;
	if (!json_is_object(files))
		return invalid(e, name, field, "must be an object of file names by VMM");
	json_object_foreach (files, vmm, file) {
		snprintf(path, sizeof(path), "%s.%.32s", field, vmm);
		if (!json_is_string(file))
			return invalid(e, name, path, "must be a file's name");
	}
	return 0;
}

static int check_number(const char *name, const char *field, const json_t *value,
                        json_int_t least, json_int_t most, struct err *e)
{
	char what[64];
	json_int_t n = json_integer_value(value);
	snprintf(what, sizeof(what), "must be a whole number from %lld to %lld",
	         (long long)least, (long long)most);
	return json_is_integer(value) && n >= least && n <= most
	           ? 0
	           : invalid(e, name, field, what);
}

static int check_resources(const char *name, json_t *resources, struct err *e)
{
	char path[96];
	const char *key;
	json_t *value;
	if (!json_is_object(resources))
		return invalid(e, name, "resources", "must be an object");
	json_object_foreach (resources, key, value) {
		int rc;
		snprintf(path, sizeof(path), "resources.%.32s", key);
		if (strcmp(key, "vcpus") == 0)
			rc = check_number(name, path, value, 1, VCPUS_MAX, e);
		else if (strcmp(key, "memory_mib") == 0)
			rc = check_number(name, path, value, MEMORY_MIN_MIB, MEMORY_MAX_MIB, e);
		else if (strcmp(key, "disk_mib") == 0)
			rc = check_number(name, path, value, DISK_MIN_MIB, DISK_MAX_MIB, e);
		else
			rc = invalid(e, name, path, "is not known");
		if (rc < 0)
			return -1;
	}
	return 0;
}

/* What of an ExecRequest `start` may say, and then `ready`. */
static int check_command_fields(const char *name, const char *key, json_t *json, struct err *e)
{
	static const char *const fields[] = {"cmd", "user", "env", "cwd", "timeout_seconds"};
	size_t known = sizeof(fields) / sizeof(*fields) - (strcmp(key, "start") == 0);
	char path[96];
	const char *field;
	json_t *value;
	if (!json_is_object(json))
		return invalid(e, name, key, "must be an object");
	json_object_foreach (json, field, value) {
		size_t i = 0;
		while (i < known && strcmp(field, fields[i]) != 0)
			i++;
		snprintf(path, sizeof(path), "%s.%.32s", key, field);
		if (i == known)
			return invalid(e, name, path, "is not known");
	}
	snprintf(path, sizeof(path), "%s.cmd", key);
	return json_object_get(json, "cmd") != NULL ? 0 : invalid(e, name, path, "is required");
}

/* `start` or `ready`, checked and converted as any ExecRequest. NULL with `e`. */
static struct call_request *parse_command(const char *name, const char *key, json_t *json,
                                          struct err *e)
{
	bool starts = strcmp(key, "start") == 0;
	char path[96], what[64];
	struct err why = {0};
	if (check_command_fields(name, key, json, e) < 0)
		return NULL;
	char *text = doc_text(json, 0);
	if (text == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	struct call_request *q = call_request_parse(text, strlen(text), NULL, starts, &why);
	free(text);
	if (q == NULL && why.code == ERR_CAPACITY) {
		*e = why;
		return NULL;
	}
	if (q == NULL) {
		snprintf(path, sizeof(path), "%s:", key);
		invalid(e, name, path, why.msg);
		return NULL;
	}
	if (!starts && !json_is_number(json_object_get(json, "timeout_seconds")))
		q->exec.timeout_ms = READY_DEFAULT_S * 1000;
	if (q->exec.timeout_ms <= READY_MAX_S * 1000)
		return q;
	snprintf(what, sizeof(what), "must be at most %d", READY_MAX_S);
	invalid(e, name, "ready.timeout_seconds", what);
	call_request_free(q);
	return NULL;
}

static int check_command(const char *name, const char *key, json_t *json, struct err *e)
{
	struct call_request *q = parse_command(name, key, json, e);
	call_request_free(q);
	return q != NULL ? 0 : -1;
}

static int check_member(const char *name, const char *key, json_t *value, struct err *e)
{
	char field[64];
	snprintf(field, sizeof(field), "%.48s", key);
	if (strcmp(key, "kernels") == 0 || strcmp(key, "initrds") == 0)
		return check_files(name, field, value, e);
	if (strcmp(key, "resources") == 0)
		return check_resources(name, value, e);
	if (strcmp(key, "start") == 0 || strcmp(key, "ready") == 0)
		return check_command(name, key, value, e);
	if (strcmp(key, "name") != 0 && strcmp(key, "description") != 0 &&
	    strcmp(key, "root") != 0 && strcmp(key, "uml_preload") != 0)
		return invalid(e, name, field, "is not known");
	if (!json_is_string(value))
		return invalid(e, name, field, "must be a string");
	if (strcmp(key, "name") == 0 && strcmp(json_string_value(value), name) != 0)
		return invalid(e, name, field, "must be that of its directory");
	return 0;
}

/* The document, checked whole whatever the VMM. NULL with `e`. */
static json_t *load(const char *rootfs_dir, const char *name, char dir[PATH_MAX], struct err *e)
{
	char path[PATH_MAX + sizeof(FILE_NAME)];
	const char *key;
	json_t *value, *json;
	struct err why = {0};
	if (check_name(name, e) < 0)
		return NULL;
	snprintf(dir, PATH_MAX, "%s/templates/%s", rootfs_dir, name);
	snprintf(path, sizeof(path), "%s/" FILE_NAME, dir);
	if (access(path, R_OK) < 0) {
		err_field(e, ERR_TEMPLATE_NOT_FOUND, "template", "there is no template %s",
		          name);
		return NULL;
	}
	json = doc_load(path, JSON_REJECT_DUPLICATES, ERR_LAUNCHER_FAILED, &why);
	if (!json_is_object(json)) {
		if (json != NULL)
			err_set(&why, ERR_LAUNCHER_FAILED, "another value");
		err_set(e, why.code, "%s/" FILE_NAME ": no JSON object: %.80s", name, why.msg);
		json_decref(json);
		return NULL;
	}
	json_object_foreach (json, key, value) {
		if (check_member(name, key, value, e) < 0) {
			json_decref(json);
			return NULL;
		}
	}
	return json;
}

/* ---- what one VMM needs ---- */

/* The file that `named`, the document's `field`, names, relative to its directory. */
static int find_file(const json_t *named, const char *field, const char *dir,
                     char out[PATH_MAX], struct err *e)
{
	const char *path = json_string_value(named), *name = strrchr(dir, '/') + 1;
	char joined[2 * PATH_MAX], what[112];
	struct stat st;
	if (path == NULL)
		return invalid(e, name, field, "is missing: the template is not for this VMM");
	snprintf(joined, sizeof(joined), "%s%s%s", path[0] == '/' ? "" : dir,
	         path[0] == '/' ? "" : "/", path);
	if (realpath(joined, out) != NULL && stat(out, &st) == 0 && S_ISREG(st.st_mode))
		return 0;
	snprintf(what, sizeof(what), "names %.80s, which is %s", path,
	         access(joined, F_OK) < 0 ? "missing" : "no file");
	return invalid(e, name, field, what);
}

/* One that has a file for each VMM. */
static int find_by_vmm(const json_t *json, const char *key, const char *vmm, const char *dir,
                       char out[PATH_MAX], struct err *e)
{
	char field[64];
	snprintf(field, sizeof(field), "%s.%s", key, vmm);
	return find_file(json_object_get(json_object_get(json, key), vmm), field, dir, out, e);
}

static unsigned number(const json_t *json, const char *key, unsigned otherwise)
{
	const json_t *value = json_object_get(json_object_get(json, "resources"), key);
	return value != NULL ? (unsigned)json_integer_value(value) : otherwise;
}

static int fill(const json_t *json, const char *dir, const char *vmm, struct template *t,
                struct err *e)
{
	char preload[64];
	snprintf(preload, sizeof(preload), "%s_preload", vmm);
	const json_t *library = json_object_get(json, preload);
	const json_t *root = json_object_get(json, "root");
	t->vcpus = number(json, "vcpus", 1);
	t->memory_mib = number(json, "memory_mib", 256);
	t->disk_mib = number(json, "disk_mib", 0);
	t->preload[0] = t->root[0] = '\0';
	if (find_by_vmm(json, "kernels", vmm, dir, t->kernel, e) < 0 ||
	    find_by_vmm(json, "initrds", vmm, dir, t->initrd, e) < 0)
		return -1;
	if (root != NULL && find_file(root, "root", dir, t->root, e) < 0)
		return -1;
	if ((root != NULL || t->disk_mib > 0) && strcmp(vmm, "uml") == 0)
		return invalid(e, strrchr(dir, '/') + 1,
		               root != NULL ? "root" : "resources.disk_mib",
		               "cannot be had from uml, which has no disks");
	return library != NULL ? find_file(library, preload, dir, t->preload, e) : 0;
}

static int take_commands(const json_t *json, const char *name, struct template *t,
                         struct err *e)
{
	json_t *start = json_object_get(json, "start"), *ready = json_object_get(json, "ready");
	t->start = start != NULL ? parse_command(name, "start", start, e) : NULL;
	t->ready = ready != NULL ? parse_command(name, "ready", ready, e) : NULL;
	if ((start == NULL || t->start != NULL) && (ready == NULL || t->ready != NULL))
		return 0;
	template_free(t);
	return -1;
}

void template_free(struct template *t)
{
	call_request_free(t->start);
	call_request_free(t->ready);
	t->start = t->ready = NULL;
}

int template_load(const char *rootfs_dir, const char *name, const char *vmm, struct template *t,
                  struct err *e)
{
	char dir[PATH_MAX];
	json_t *json = load(rootfs_dir, name, dir, e);
	if (json == NULL)
		return -1;
	int rc = fill(json, dir, vmm, t, e);
	if (rc == 0)
		rc = take_commands(json, name, t, e);
	json_decref(json);
	return rc;
}

/* ---- all of them ---- */

/* Those that it can boot on; when there is none, `why` says so, unless it told before. `image`:
 * the size of its root. */
static json_t *usable_vmms(const json_t *json, const char *dir, const char *name,
                           long long *image, struct err *why)
{
	static const char *const vmms[] = {"firecracker", "cloud-hypervisor", "qemu", "uml"};
	const json_t *kernels = json_object_get(json, "kernels");
	json_t *usable = json_array();
	struct err first = {0};
	for (size_t i = 0; i < sizeof(vmms) / sizeof(*vmms); i++) {
		struct template t = {0};
		struct stat st;
		if (json_object_get(kernels, vmms[i]) == NULL)
			continue;
		if (fill(json, dir, vmms[i], &t, first.code == ERR_NONE ? &first : NULL) < 0)
			continue;
		doc_append(&usable, json_string(vmms[i]));
		if (t.root[0] != '\0' && stat(t.root, &st) == 0)
			*image = st.st_size;
	}
	if (json_array_size(usable) == 0 && why->code == ERR_NONE)
		*why = first;
	if (json_array_size(usable) == 0 && why->code == ERR_NONE)
		invalid(why, name, "kernels", "names no VMM that is known");
	return usable;
}

static json_t *one_json(const char *rootfs_dir, const char *name)
{
	struct err why = {0};
	char dir[PATH_MAX];
	long long image = 0;
	json_t *json = load(rootfs_dir, name, dir, &why);
	json_t *usable = usable_vmms(json, dir, name, &image, &why);
	const json_t *text = json_object_get(json, "description");
	unsigned disk = number(json, "disk_mib", 0);
	json_t *result = json_pack("{s:s, s:s?, s:o, s:o, s:{s:i, s:i, s:o}, s:s?}", "name",
	                           name, "description", json_string_value(text), "vmms", usable,
	                           "root_bytes", image > 0 ? json_integer(image) : json_null(),
	                           "resources", "vcpus", (int)number(json, "vcpus", 1),
	                           "memory_mib", (int)number(json, "memory_mib", 256),
	                           "disk_mib", disk > 0 ? json_integer(disk) : json_null(),
	                           "error", why.code != ERR_NONE ? why.msg : NULL);
	json_decref(json);
	return result;
}

json_t *template_list(const char *rootfs_dir)
{
	char path[PATH_MAX];
	struct dirent **entries = NULL;
	json_t *items = json_array();
	snprintf(path, sizeof(path), "%s/templates", rootfs_dir);
	int count = scandir(path, &entries, NULL, alphasort);
	if (count < 0 && errno != ENOENT) { /* they are there, for all that is known */
		json_decref(items);
		return NULL;
	}
	for (int i = 0; i < count; i++) {
		if (check_name(entries[i]->d_name, NULL) == 0)
			doc_append(&items, one_json(rootfs_dir, entries[i]->d_name));
		free(entries[i]);
	}
	free(entries);
	return items;
}
