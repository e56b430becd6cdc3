/* The version that the agent reports. */
#ifndef SANDGATE_VERSION_H
#define SANDGATE_VERSION_H

#define AGENT_VERSION "0.1.0"

#endif
