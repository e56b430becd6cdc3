/* Launchers with real VMs: create, ask the agent, delete; nothing of it is left behind; and
 * a second bridge takes up what the first one made. What this machine lacks is skipped with
 * its reason: the agent next to this program, the guest image in SANDGATE_ROOTFS (or
 * build/rootfs), the VMM. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/device/vsock_device.h"
#include "host-bridge/launcher/launcher.h"

#define PATIENCE_S 60. /* a boot under emulation, on a busy machine */
#include "tests/sandbox_fixture.h"

static char base_dir[] = "/tmp/sgl.XXXXXX"; /* of the whole run */
static char state_dir[64], agent[PATH_MAX];
static char rootfs[PATH_MAX];
static const char *launcher;
static bool ponged;

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	(void)owner;
	ponged = f->body_case == SANDGATE__GUEST_FRAME__BODY_PONG;
	link_destroy(l, false);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	(void)l;
	(void)sent;
	(void)refused;
	(void)owner;
	ck_abort_msg("%s", why->msg);
}

static void start_bridge(void)
{
	struct sandbox_set_config c = {.state_dir = state_dir,
	                               .rootfs_dir = rootfs,
	                               .node = "n1",
	                               .launcher = launcher,
	                               .agent_path = agent};
	loop = ev_loop_new(0);
	open_set(&c);
}

static void stop_bridge(void)
{
	sandbox_set_destroy(set);
	ev_loop_destroy(loop);
}

/* As if KVM had been tried before. */
static void answer_kvm(void)
{
	char path[PATH_MAX], boot[64];
	snprintf(path, sizeof(path), "%s/kvm", state_dir);
	FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re"), *out = fopen(path, "we");
	ck_assert(in != NULL && out != NULL && fgets(boot, sizeof(boot), in) != NULL);
	fprintf(out, "%.36s qemu -\n", boot);
	fclose(in);
	fclose(out);
}

static void setup_with(const char *name)
{
	launcher = name;
	snprintf(state_dir, sizeof(state_dir), "%s/XXXXXX", base_dir);
	ck_assert_ptr_nonnull(mkdtemp(state_dir));
	answer_kvm();
	memset(&heard, 0, sizeof(heard));
	start_bridge();
}

static void setup_local(void)
{
	setup_with("local");
}

static void setup_qemu(void)
{
	setup_with("qemu");
}

static void setup_uml(void)
{
	setup_with("uml");
}

static void teardown(void)
{
	stop_bridge();
	remove_tree(state_dir);
}

/* Processes of this machine whose working directory or root is below `dir`, or that name it
 * in their arguments; each is sent `sig`. */
static int signal_processes(const char *below, int sig)
{
	char path[PATH_MAX], text[4096];
	int n = 0;
	DIR *proc = opendir("/proc");
	for (struct dirent *d; (d = readdir(proc)) != NULL;) {
		if (d->d_name[0] < '0' || d->d_name[0] > '9' || atoi(d->d_name) == getpid())
			continue;
		bool ours = false;
		static const char *const links[] = {"cwd", "root"};
		for (int i = 0; i < 2; i++) {
			snprintf(path, sizeof(path), "/proc/%s/%s", d->d_name, links[i]);
			ssize_t len = readlink(path, text, sizeof(text) - 1);
			text[len > 0 ? len : 0] = '\0';
			ours |= strncmp(text, below, strlen(below)) == 0;
		}
		snprintf(path, sizeof(path), "/proc/%s/cmdline", d->d_name);
		FILE *f = fopen(path, "re");
		size_t len = f != NULL ? fread(text, 1, sizeof(text), f) : 0;
		if (f != NULL)
			fclose(f);
		ours |= memmem(text, len, below, strlen(below)) != NULL;
		n += ours && kill(atoi(d->d_name), sig) == 0;
	}
	closedir(proc);
	return n;
}

static int processes(void)
{
	return signal_processes(state_dir, 0);
}

static int entries(const char *path)
{
	int n = 0;
	DIR *dir = opendir(path);
	for (struct dirent *d; (d = readdir(dir)) != NULL;)
		n += d->d_name[0] != '.';
	closedir(dir);
	return n;
}

static int files(void)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/vm", state_dir);
	return entries(path);
}

static int descriptors(void)
{
	return entries("/proc/self/fd");
}

static struct sandbox *create(void)
{
	struct sandbox_spec spec = {.template = "base", .workspace = "w", .ttl_seconds = 600};
	return create_running(&spec);
}

static void ping(struct sandbox *s)
{
	static const struct link_handlers handlers = {.on_frame = on_frame,
	                                              .on_closed = on_closed};
	struct err e = {0};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Ping p = SANDGATE__PING__INIT;
	struct link *l = sandbox_link(s, false, &e);
	ck_assert_msg(l != NULL, "%s", e.msg);
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &p;
	ponged = false;
	ck_assert_int_eq(link_open(l, &open, 5000, &handlers, NULL, &e), 0);
	UNTIL(ponged);
}

START_TEST(created_sandbox_answers_and_leaves_nothing)
{
	int before = descriptors();
	struct sandbox *s = create();
	ck_assert_int_gt(processes(), 0);
	ping(s);
	json_t *j = sandbox_json(s);
	ck_assert_ptr_nonnull(
	    json_string_value(json_object_get(json_object_get(j, "agent"), "version")));
	json_decref(j);
	char id[128];
	snprintf(id, sizeof(id), "%s", sandbox_id(s));
	delete_and_wait(s);
	ck_assert(sandbox_was_deleted(set, id, "w"));
	ck_assert_int_eq(processes(), 0);
	ck_assert_int_eq(files(), 0);
	ck_assert_int_eq(descriptors(), before);
}
END_TEST

START_TEST(next_bridge_adopts_and_deletes_it)
{
	char id[128];
	struct err e = {0};
	snprintf(id, sizeof(id), "%s", sandbox_id(create()));
	stop_bridge();
	ck_assert_int_gt(processes(), 0);
	start_bridge();
	struct sandbox *s = sandbox_find(set, id, "w", &e);
	ck_assert_msg(s != NULL, "%s", e.msg);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_RUNNING);
	ping(s);
	delete_and_wait(s);
	ck_assert_int_eq(processes(), 0);
	ck_assert_int_eq(files(), 0);
}
END_TEST

START_TEST(create_that_is_given_up_leaves_nothing)
{
	struct sandbox_spec spec = {.template = "base", .workspace = "w"};
	struct sandbox *s = create_only(&spec);
	sandbox_creator_gone(s);
	delete_and_wait(s);
	ck_assert_int_eq(heard.ready, 0);
	ck_assert_int_eq(processes(), 0);
	ck_assert_int_eq(files(), 0);
}
END_TEST

START_TEST(create_interrupted_by_the_bridges_end_is_cleaned_up_by_the_next)
{
	struct sandbox_spec spec = {.template = "base", .workspace = "w"};
	create_only(&spec);
	stop_bridge();
	start_bridge();
	ck_assert_ptr_null(sandbox_next(set, NULL));
	UNTIL(processes() == 0 && files() == 0);
}
END_TEST

START_TEST(vm_that_dies_under_the_bridge_is_a_lost_sandbox)
{
	struct err e = {0};
	struct sandbox *s = create();
	char path[PATH_MAX];
	/* the VMM is the oldest process in the VM's directory but for the device */
	int victim = INT_MAX;
	DIR *proc = opendir("/proc");
	for (struct dirent *d; (d = readdir(proc)) != NULL;) {
		char text[PATH_MAX] = "";
		snprintf(path, sizeof(path), "/proc/%s/cwd", d->d_name);
		bool ours = readlink(path, text, sizeof(text) - 1) > 0 &&
		            strncmp(text, state_dir, strlen(state_dir)) == 0;
		snprintf(path, sizeof(path), "/proc/%s/cmdline", d->d_name);
		FILE *f = ours ? fopen(path, "re") : NULL;
		size_t len = f != NULL ? fread(text, 1, sizeof(text), f) : 0;
		if (f != NULL)
			fclose(f);
		if (len > 0 && memmem(text, len, "vsock-device", 12) == NULL &&
		    atoi(d->d_name) < victim)
			victim = atoi(d->d_name);
	}
	closedir(proc);
	ck_assert_int_lt(victim, INT_MAX);
	kill(victim, SIGKILL);
	UNTIL(sandbox_status(s) == SANDBOX_FAILED);
	ck_assert_ptr_null(sandbox_link(s, false, &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_LOST);
	UNTIL(processes() == 0 && files() == 0);
	delete_and_wait(s);
}
END_TEST

START_TEST(auto_tries_kvm_once_and_keeps_the_answer)
{
	char path[PATH_MAX];
	struct stat before, after;
	snprintf(path, sizeof(path), "%s/kvm", state_dir);
	stop_bridge();
	ck_assert_int_eq(unlink(path), 0);
	launcher = "auto";
	start_bridge();
	ping(create());
	UNTIL(access(path, F_OK) == 0);
	delete_and_wait(sandbox_next(set, NULL));
	UNTIL(processes() == 0 && files() == 0);
	ck_assert_int_eq(stat(path, &before), 0);
	stop_bridge();
	start_bridge();
	ck_assert_int_eq(processes(), 0);
	ck_assert_int_eq(stat(path, &after), 0);
	ck_assert_int_eq(before.st_ino, after.st_ino);
	launcher = "qemu";
}
END_TEST

static bool usable(const char *name)
{
	struct err e = {0};
	struct launcher_host host = {.rootfs_dir = rootfs, .agent_path = agent};
	const struct launcher *l = launcher_choose(name, &host, &e);
	struct template t;
	if (l != NULL && (l->template_kind == NULL ||
	                  template_load(rootfs, "base", l->template_kind, &t, &e) == 0))
		return true;
	printf("skipped: launcher %s: %s\n", name, e.msg);
	return false;
}

static TCase *case_of(const char *name, SFun setup)
{
	TCase *t = new_case(name, setup, teardown);
	tcase_set_timeout(t, 2 * PATIENCE_S);
	tcase_add_test(t, created_sandbox_answers_and_leaves_nothing);
	tcase_add_test(t, next_bridge_adopts_and_deletes_it);
	tcase_add_test(t, create_that_is_given_up_leaves_nothing);
	tcase_add_test(t, create_interrupted_by_the_bridges_end_is_cleaned_up_by_the_next);
	tcase_add_test(t, vm_that_dies_under_the_bridge_is_a_lost_sandbox);
	if (strcmp(name, "qemu") == 0 && access("/dev/kvm", R_OK | W_OK) == 0)
		tcase_add_test(t, auto_tries_kvm_once_and_keeps_the_answer);
	return t;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *launcher;
		SFun setup;
	} kinds[] = {{"local", setup_local}, {"qemu", setup_qemu}, {"uml", setup_uml}};
	TCase *cases[sizeof(kinds) / sizeof(*kinds) + 1] = {NULL}, **next = cases;
	char self[PATH_MAX - 64] = "";
	/* Launchers start this very program again as a VM's vsock device. */
	if (argc > 1 && strcmp(argv[1], "vsock-device") == 0)
		return vsock_device_main(argc - 1, argv + 1);
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return 1;
	snprintf(agent, sizeof(agent), "%s/../guest-agent/guest-agent", dirname(self));
	const char *given = getenv("SANDGATE_ROOTFS");
	snprintf(rootfs, sizeof(rootfs), "%s%s", given != NULL ? given : self,
	         given != NULL ? "" : "/../rootfs");
	if (mkdtemp(base_dir) == NULL)
		return 1;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if ((argc < 2 || strcmp(argv[1], kinds[i].launcher) == 0) &&
		    usable(kinds[i].launcher))
			*next++ = case_of(kinds[i].launcher, kinds[i].setup);
	int failed = run_cases("launchers", cases);
	/* What a failed test left running. */
	signal_processes(base_dir, SIGKILL);
	remove_tree(base_dir);
	return failed != 0;
}
