/*
 * What an ExecRequest may say (api.md section 3): its fields, checked, as a plain struct; and
 * a sandbox's exec_defaults, which are some of them. It converts nothing.
 */
#ifndef SANDGATE_EXEC_BODY_H
#define SANDGATE_EXEC_BODY_H

#include "host-bridge/http/body.h"

struct limit_fields {
	struct body_int memory_mib, swap_mib, pids, output_bytes, open_files, file_size_mib,
	    io_read_bps, io_write_bps;
	struct body_num cpus, cpu_seconds;
	struct body_bool oom_group;
};

struct exec_fields {
	struct body_str cmd, exec_id, cwd, user, input, input_base64;
	struct body_bool stdin_open, merge_stderr, no_new_privs;
	struct body_num timeout_seconds, grace_seconds;
	struct body_int on_disconnect, on_exit, output_encoding;
	json_t *argv, *env, *capabilities;
	struct limit_fields limits;
};

/* Each fills in a zeroed struct, whose strings and subtrees lie in the document. */

/* The document, for json_decref after the last use of `f`; NULL: see body_parse. */
json_t *exec_body_parse(const char *data, size_t len, struct exec_fields *f, struct err *e);
int exec_body_read_defaults(json_t *defaults, struct exec_fields *f, struct err *e);

#endif
