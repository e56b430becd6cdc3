/* The handlers that the table of routes names, by the file that holds them. */
#ifndef SANDGATE_HANDLERS_H
#define SANDGATE_HANDLERS_H

#include <stddef.h>

struct api_request;

/* api_node.c */
void api_healthz(struct api_request *r, char *data, size_t len);
void api_readyz(struct api_request *r, char *data, size_t len);
void api_version(struct api_request *r, char *data, size_t len);
void api_openapi(struct api_request *r, char *data, size_t len);
void api_metrics(struct api_request *r, char *data, size_t len);
void api_node_get(struct api_request *r, char *data, size_t len);
void api_node_drain(struct api_request *r, char *data, size_t len);
void api_quota(struct api_request *r, char *data, size_t len);

/* api_sandboxes.c */
void api_sandbox_create(struct api_request *r, char *data, size_t len);
void api_template_list(struct api_request *r, char *data, size_t len);
void api_sandbox_list(struct api_request *r, char *data, size_t len);
void api_sandbox_get(struct api_request *r, char *data, size_t len);
void api_sandbox_patch(struct api_request *r, char *data, size_t len);
void api_sandbox_lifecycle(struct api_request *r, char *data, size_t len);
void api_lifecycle_patch(struct api_request *r, char *data, size_t len);
void api_sandbox_delete(struct api_request *r, char *data, size_t len);

/* api_snapshots.c */
void api_snapshot_create(struct api_request *r, char *data, size_t len);
void api_snapshot_list(struct api_request *r, char *data, size_t len);
void api_snapshot_get(struct api_request *r, char *data, size_t len);
void api_snapshot_delete(struct api_request *r, char *data, size_t len);
void api_sandbox_pause(struct api_request *r, char *data, size_t len);
void api_sandbox_hibernate(struct api_request *r, char *data, size_t len);
void api_sandbox_wake(struct api_request *r, char *data, size_t len);
void api_sandbox_resume(struct api_request *r, char *data, size_t len);

/* api_bracket.c */
void api_sandbox_prepare(struct api_request *r, char *data, size_t len);
void api_sandbox_resumed(struct api_request *r, char *data, size_t len);

/* api_sandbox_metrics.c */
void api_sandbox_metrics(struct api_request *r, char *data, size_t len);

/* api_wait.c */
void api_sandbox_wait(struct api_request *r, char *data, size_t len);

/* api_events.c */
void api_events(struct api_request *r, char *data, size_t len);
void api_sandbox_events(struct api_request *r, char *data, size_t len);

/* api_fork.c */
void api_sandbox_fork(struct api_request *r, char *data, size_t len);
void api_sandbox_fork_tree(struct api_request *r, char *data, size_t len);

/* api_execs.c */
void api_exec_run(struct api_request *r, char *data, size_t len);
void api_exec_stream(struct api_request *r, char *data, size_t len);
void api_exec_start(struct api_request *r, char *data, size_t len);
void api_exec_watch(struct api_request *r, char *data, size_t len);

/* api_exec_list.c */
void api_exec_list(struct api_request *r, char *data, size_t len);

/* api_exec_control.c */
void api_exec_get(struct api_request *r, char *data, size_t len);
void api_exec_kill(struct api_request *r, char *data, size_t len);
void api_exec_signal(struct api_request *r, char *data, size_t len);
void api_exec_delete(struct api_request *r, char *data, size_t len);

/* api_exec_io.c */
void api_exec_output(struct api_request *r, char *data, size_t len);
void api_exec_stdin(struct api_request *r, char *data, size_t len);

#endif
