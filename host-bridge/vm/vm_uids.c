#include "host-bridge/vm/vm_uids.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/limits.h"
#include "proto/log.h"

int vm_uids_parse(const char *text, struct vm_uids *u)
{
	char *end;
	unsigned long first = strtoul(text, &end, 10), count = 0;
	if (end != text && *end == ':' && end[1] >= '0' && end[1] <= '9')
		count = strtoul(end + 1, &end, 10);
	if (*end != '\0' || count == 0 || count > UID_LAST || first < UID_FIRST_MIN ||
	    first > UID_LAST - count + 1)
		return -1;
	/* Those that 16-bit interfaces take for nobody, or for "no change". */
	if (first <= 65535 && first + count > VM_UID)
		return -1;
	*u = (struct vm_uids){.first = (uid_t)first, .count = (unsigned)count};
	return 0;
}

/* Lines of uid_map and gid_map: first inside, first outside, count; user_namespaces(7). */
static bool is_mapped(const char *map, const struct vm_uids *u)
{
	unsigned long inside, outside, count;
	bool found = false;
	FILE *f = fopen(map, "re");
	while (f != NULL && !found && fscanf(f, "%lu %lu %lu", &inside, &outside, &count) == 3)
		found =
		    u->first >= inside && (unsigned long)u->first + u->count <= inside + count;
	if (f != NULL)
		fclose(f);
	return found;
}

int vm_uids_open(struct vm_uids *u, const char *text, struct err *e)
{
	bool asked = text != NULL && text[0] != '\0';
	if (vm_uids_parse(asked ? text : VM_UIDS_DEFAULT, u) < 0)
		return err_field(e, ERR_INVALID_FIELD, "vm-uids",
		                 "vm-uids: %.48s is no range of user ids", text);
	if (geteuid() != 0 ||
	    (is_mapped("/proc/self/uid_map", u) && is_mapped("/proc/self/gid_map", u)))
		return 0;
	if (asked)
		return err_field(e, ERR_INVALID_FIELD, "vm-uids",
		                 "vm-uids: this user namespace does not have %.48s", text);
	log_warn("vm", NULL,
	         "this user namespace does not have the user ids " VM_UIDS_DEFAULT
	         ": all VMs run as %u",
	         VM_UID);
	*u = (struct vm_uids){0};
	return 0;
}

uid_t vm_uids_pick(struct vm_uids *u, bool (*is_taken)(uid_t uid, void *arg), void *arg,
                   struct err *e)
{
	if (geteuid() != 0 || u->count == 0)
		return VM_UID;
	for (unsigned i = 0; i < u->count; i++) {
		uid_t uid = u->first + u->next;
		u->next = (u->next + 1) % u->count;
		if (!is_taken(uid, arg))
			return uid;
	}
	err_set(e, ERR_CAPACITY, "each of the %u user ids for VMs is in use", u->count);
	return 0;
}
