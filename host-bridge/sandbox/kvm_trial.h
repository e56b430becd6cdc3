/*
 * Whether guests run under KVM here. That /dev/kvm exists and answers proves nothing: some
 * hosts have one under which no stock kernel boots. So a small guest is booted once, in the
 * background, and the answer is kept in the state directory until the host boots again.
 * sandbox_set calls it; creates meanwhile do without KVM.
 */
#ifndef SANDGATE_KVM_TRIAL_H
#define SANDGATE_KVM_TRIAL_H

#include <ev.h>
#include <stdbool.h>

#include "host-bridge/sandbox/launcher.h"

struct kvm_trial;

/* The kept answer: 1, 0, or -1 when there is none yet. */
int kvm_trial_known(const char *state_dir);
/* Boot a guest in `dir`, for KVM_TRIAL_S at most, and keep the answer in `state_dir`.
 * `on_answer` once, never inside; the trial is gone then. NULL when nothing could be started,
 * or nothing is there to try (no /dev/kvm, no template `base`). */
struct kvm_trial *kvm_trial_start(struct ev_loop *loop, const struct launcher_host *host,
                                  const char *state_dir, const char *dir,
                                  void (*on_answer)(bool usable, void *arg), void *arg);
/* Kill the guest; no answer. NULL is fine. */
void kvm_trial_cancel(struct kvm_trial *t);

#endif
