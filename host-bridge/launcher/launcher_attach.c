/* A VM that somebody else owns: there is nothing to start, and nothing to stop. */
#include "host-bridge/launcher/launcher.h"

static const char *isolation(const struct launcher_host *host)
{
	(void)host;
	return "none";
}

static int probe(const struct launcher_host *host, struct err *e)
{
	(void)host;
	(void)e;
	return 0;
}

static int plan(const struct launcher_host *host, const struct launcher_request *r,
                struct vm_plan *plan, struct err *e)
{
	(void)host;
	if (r->attach == NULL)
		return err_set(e, ERR_LAUNCHER_FAILED, "attach needs an endpoint");
	plan->endpoint = *r->attach;
	return 0;
}

const struct launcher launcher_attach = {
    .name = "attach",
    .external = true,
    .isolation = isolation,
    .probe = probe,
    .plan = plan,
};
