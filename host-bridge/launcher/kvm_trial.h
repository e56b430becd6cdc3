/*
 * Whether guests run under KVM here, and by which launcher. That /dev/kvm exists and answers
 * proves nothing: some hosts have one under which no stock kernel boots, and a VMM may be too
 * old for the guest. So a small guest is booted once by each launcher that may be chosen, the
 * strongest first, until one comes to life, in the background. The answer is kept in the state
 * directory until the host boots again or other launchers may be chosen. sandbox_set calls it;
 * creates meanwhile do without KVM.
 */
#ifndef SANDGATE_KVM_TRIAL_H
#define SANDGATE_KVM_TRIAL_H

#include <ev.h>
#include <stdbool.h>

#include "host-bridge/launcher/launcher.h"

struct kvm_trial;

/* Where: the answer's directory, the VM's directory and its cgroup ("" for none). */
struct kvm_trial_place {
	const char *state_dir, *dir, *cgroup;
};

/* The kept answer for the launcher `name`, or "auto": `by` whom guests run, NULL for nobody.
 * False when there is none yet. */
bool kvm_trial_known(const struct launcher_host *host, const char *name, const char *state_dir,
                     const struct launcher **by);
/* Boot guests, each for KVM_TRIAL_S at most, and keep the answer. `on_answer` once, never
 * inside; the trial is gone then. NULL when there is nothing to try: no /dev/kvm that answers,
 * or no launcher for it that has its programs and the template `base`.
 */
struct kvm_trial *kvm_trial_start(struct ev_loop *loop, const struct launcher_host *host,
                                  const char *name, const struct kvm_trial_place *place,
                                  void (*on_answer)(const struct launcher *by, void *arg),
                                  void *arg);
/* Kill the guest; no answer. NULL is fine. */
void kvm_trial_cancel(struct kvm_trial *t);

#endif
