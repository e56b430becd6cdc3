/*
 * Every cap of the project, with its unit and its reason. A number that bounds
 * something and is not here is a defect.
 */
#ifndef SANDGATE_LIMITS_H
#define SANDGATE_LIMITS_H

#define KIB 1024u
#define MIB (1024u * 1024u)

/* ---- the wire ---- */

/* Protocol version that this tree speaks, and the oldest that it accepts. */
#define PROTOCOL_VERSION 1
#define PROTOCOL_VERSION_MIN 1

/* vsock port of the agent: below 1024, so only a privileged process can take it. */
#define AGENT_PORT 523

/* Bytes in one frame from the host, header excluded: a command, its environment and
 * its initial stdin in one piece. Also the bound of what the agent buffers a session. */
#define FRAME_MAX_TO_GUEST (4 * MIB)

/* Bytes in one frame from the guest, header excluded: a chunk and its header. The
 * bridge trusts nothing longer. */
#define FRAME_MAX_TO_HOST (128 * KIB)

/* What one such frame may take in the bridge's memory once unpacked: the longest list of
 * execs, generously. */
#define UNPACK_MAX (1 * MIB)

/* Bytes of output or stdin in one chunk: a pipe's default capacity, and the largest
 * packet of the virtio-vsock devices. */
#define CHUNK_MAX (64 * KIB)

/* From the first byte of Open to its last (seconds). A session that has sent nothing is a
 * spare link and has no deadline; of these the oldest are closed past the cap, but none so
 * young (ms): its Open may be under way. */
#define OPEN_DEADLINE_S 10
#define SESSIONS_UNOPENED_MAX 64
#define SESSION_YOUNG_MS 1000

/* Sessions at once in one agent. A Firecracker VM carries at most 1023 connections. */
#define SESSIONS_MAX 1100

/* Output that a session hands to the kernel in one turn of the loop (bytes, a budget: one
 * fast exec does not hold the loop), and in how many frames. */
#define SESSION_WRITE_BUDGET (256 * KIB)
#define SESSION_WRITE_FRAMES 16

/* accept(2) is out of descriptors or memory: pause before the next try (ms). */
#define ACCEPT_PAUSE_MS 100

/* The answer to Shutdown gets so long to reach the host before the power goes (ms). */
#define SHUTDOWN_LINGER_MS 1000

/* RLIMIT_NOFILE of the agent: 1024 execs with four descriptors and a session each, and what
 * they drain afterwards. */
#define AGENT_NOFILE 65536

/* Execs in one ExecList frame, so that it stays under FRAME_MAX_TO_HOST. */
#define LIST_FRAME_EXECS 64

/* Unsent bytes of a session that follows which execs end, at which it is closed: its host can
 * ask anew. */
#define FOLLOW_QUEUE_MAX (256 * KIB)

/* Opened waits so long for Started, and Started for output or Exit, so that they leave in
 * one write (ms): under emulation a packet costs as much as a tenth of a spawn. */
#define OPENED_HOLD_MS 100
#define STARTED_HOLD_MS 10

/* ---- Prepare and Resume ---- */

/* A session whose host has not taken its last frames is closed so long after Prepare (ms). */
#define SUSPEND_LINGER_MS 1000

/* Prepare waits so long for sync(2): a snapshot holds what is not written yet, too (s). */
#define SYNC_DEADLINE_S 10

/* A prepared agent that hears nothing goes on by itself (seconds). */
#define SELF_RESUME_S 30

/* The wall clock is set when it is off by more (ms): the host's own is no better. */
#define CLOCK_STEP_MS 100

/* Entropy of a Resume (bytes): what names a clone (its instance, machine and boot id, 16
 * each), and for the generator at least the 32 that its key has. */
#define RESUME_ENTROPY_NAMES 48
#define RESUME_ENTROPY_MIN (RESUME_ENTROPY_NAMES + 32)
#define RESUME_ENTROPY_MAX 512

/* What a Resume does to the machine takes at most so long (seconds): a dead FUSE mount on
 * /etc blocks for ever. */
#define RENEW_DEADLINE_S 5

/* A host's name in Linux (bytes); addresses, gateways and name servers of an interface. */
#define HOSTNAME_MAX 64
#define NETWORK_ADDRESSES_MAX 16

/* ---- execs ---- */

/* Execs that run at once in a sandbox. */
#define EXECS_RUNNING_MAX 1024

/* Length of an exec id (bytes of A-Za-z0-9._-). */
#define EXEC_ID_MAX 64

/* Length of a request's digest (bytes): a SHA-512 at most. */
#define EXEC_DIGEST_MAX 64

/* timeout_seconds: largest, and the default of a foreground exec. */
#define EXEC_TIMEOUT_MAX_S 86400
#define EXEC_TIMEOUT_DEFAULT_S 600

/* grace_seconds between SIGTERM and the kill: default and largest. */
#define EXEC_GRACE_DEFAULT_MS 1000
#define EXEC_GRACE_MAX_S 600

/* cpu_seconds, largest: a thousand processors busy for the longest timeout. */
#define CPU_SECONDS_MAX (1000 * EXEC_TIMEOUT_MAX_S)

/* How long an exec whose bridge vanished waits for an Attach (seconds). */
#define LINK_GRACE_S 30

/* Variables in one request's environment: each is looked up among the others. */
#define ENV_COUNT_MAX 4096

/* A spawn that has not reached execve after this long (or the exec's timeout, if that is
 * less) is killed: a dead FUSE mount as working directory blocks for ever. */
#define SPAWN_DEADLINE_S 5

/* Spawn threads: one, and one more each time that the queue stood still for so long, up to
 * as many hung working directories at once. */
#define SPAWN_THREADS_MAX 16
#define SPAWN_HUNG_MS 50

/* The same of threads that serve pipes: one of a process that holds its pipe's lock takes a
 * thread for as long. Past that many, output waits for the end of its command. */
#define PIPE_THREADS_MAX 128

/* Output of an exec kept for a buffered reply or for replay, bytes a stream. */
#define OUTPUT_BYTES_DEFAULT (8 * MIB)
#define OUTPUT_BYTES_MAX (64 * MIB)

/* What all retained output of one agent may hold together, as a share of the guest's
 * RAM: past it the oldest finished execs lose theirs first, then running ones wrap. */
#define RETAINED_RAM_SHARE 8

/* Unsent output that an attached owner may be behind before its pipes are not read. */
#define OWNER_WINDOW (256 * KIB)

/* Capacity of an output pipe (bytes, F_SETPIPE_SZ). */
#define OUTPUT_PIPE (256 * KIB)

/* Input accepted for a process that does not read it (bytes): then stdin stalls. */
#define STDIN_WINDOW (64 * KIB)

/* Drain after the leader's exit while leftovers hold the pipes: idle, and at most. */
#define DRAIN_IDLE_MS 100
#define DRAIN_MAX_MS 2000

/* Finished execs that keep their result: how many that keep their output besides (those with
 * an id that a client chose, streams, detached ones), how many others, and for how long
 * (seconds). One costs about 2 KiB. */
#define RETAINED_RESULTS_MAX 1024
#define RETAINED_UNCHOSEN_MAX 128
#define RETAINED_RESULTS_S 600

/* Results that are too many go this long after the last exec (ms), not in its way. */
#define SWEEP_PAUSE_MS 50

/* A forgotten id that was never seen refuses a late start for this long (seconds). */
#define TOMBSTONE_S 60
#define TOMBSTONES_MAX 4096

/* How long a killed leaf may stay populated before the result says cleanup_pending, and
 * how often the kill is repeated meanwhile: a fork may have raced it. */
#define CLEANUP_WAIT_MS 2000
#define CLEANUP_RETRY_MS 50

/* CPU time is polled at remaining/ncpu, but not more often than this (ms). */
#define CPU_POLL_MIN_MS 10

/* Default pids.max of a leaf. */
#define PIDS_DEFAULT 4096

/* RLIMIT_NOFILE of a command, soft and hard (the usual values of a login). */
#define NOFILE_SOFT 1024
#define NOFILE_HARD 524288

/* Memory that execs together may not touch, so that the agent and the kernel live
 * (MiB): the larger of this and 1/16 of RAM; memory.min of the agent's own leaf. */
#define RESERVE_MIB 24
#define RESERVE_RAM_SHARE 16
#define AGENT_MEMORY_MIN_MIB 8

/* Cgroups nested in a leaf by what runs there, and how many of them one look visits. */
#define CGROUP_DEPTH_MAX 8
#define CGROUP_WALK_MAX 1024

/* Linux refuses a longer argv or env string (MAX_ARG_STRLEN), bytes with the NUL. */
#define ARG_STRING_MAX (128 * KIB)

/* ---- HTTP ---- */

/* Request head: request line and headers in bytes; header count; the deadline from the
 * first byte to the end of the head (seconds). */
#define HTTP_HEAD_MAX (32 * KIB)
#define HTTP_HEADERS_MAX 100
#define HTTP_HEAD_DEADLINE_S 10

/* Idle keep-alive connection (seconds), and the minimum body rate (bytes a second,
 * judged over windows of BODY_WINDOW_S). */
#define HTTP_IDLE_S 75
#define HTTP_BODY_MIN_RATE 1024
#define HTTP_BODY_WINDOW_S 10

/* A JSON body; bytes read ahead of the response (pipelining); chunk extensions. */
#define HTTP_BODY_MAX (16 * MIB)
#define HTTP_READAHEAD_MAX (64 * KIB)
#define HTTP_CHUNK_EXT_MAX (16 * KIB)

/* A peer that takes no byte of the response for this long is gone; an owner that takes no
 * byte of a streamed body for this long is given up (seconds). */
#define HTTP_STALL_S 120
#define HTTP_PAUSE_MAX_S 600

/* How long a connection lingers after an error reply, so that no reset eats it. */
#define HTTP_LINGER_S 2

/* Unsent response bytes at which a producer is asked to stop, and to go on. */
#define HTTP_HIGH_WATER (256 * KIB)
#define HTTP_LOW_WATER (64 * KIB)

/* Connections of one bridge: bounded by RLIMIT_NOFILE less this. */
#define HTTP_FD_RESERVE 256

/* ---- API ---- */

#define SSE_COMMENT_S 15         /* a comment on a quiet stream */
#define SSE_HEADERS_MS 500       /* headers go out at the latest after this */
#define TTL_DEFAULT_S 1800       /* ttl_seconds */
#define LIFETIME_DEFAULT_S 86400 /* max_lifetime_seconds */
#define TTL_MAX_S (30 * 86400)   /* bound of both */
#define END_LOOK_MIN_S 0.1       /* between two looks whether one is idle, at least */
#define IDEMPOTENCY_S 86400      /* an Idempotency-Key is remembered */
#define IDEMPOTENCY_ORPHAN_S 60  /* an unclaimed sandbox waits for its replay */
#define DELETED_S 86400          /* a deleted id answers 204 and 410 */
#define WAIT_MAX_S 600           /* wait_seconds, and timeout_seconds of a sandbox wait */
#define WAIT_DEFAULT_S 60        /* of the latter */
#define LIST_LIMIT_DEFAULT 100
#define LIST_LIMIT_MAX 1000
#define METADATA_KEYS_MAX 64
#define METADATA_KEY_MAX 127
#define METADATA_BYTES_MAX (16 * KIB)
#define PARTIAL_BYTES_MAX (64 * KIB) /* of each stream of a lost exec, in its error */
#define TOKENS_LINES_MAX 4096        /* of a token file: each costs a comparison a request */
#define REQUEST_ID_MAX 128           /* bytes of an X-Request-Id that is echoed */

/* An agent that is asked for a sandbox's metrics is waited for so long (s). */
#define METRICS_ANSWER_S 2

/* A workspace's quota: when it pays to ask again for what frees itself with an exec's end, and
 * for what frees itself with a sandbox's (seconds); and how long the agents of its sandboxes
 * are waited for when they are asked what runs. */
#define QUOTA_RETRY_EXECS_S 1
#define QUOTA_RETRY_SANDBOXES_S 10
#define QUOTA_COUNT_MS 2000

/* Output that the bridge holds for buffered replies, of all calls together, until clients have
 * taken it (bytes); and what it keeps of each stream in spite of that. */
#define BUFFERED_MAX (512 * MIB)
#define BUFFERED_STREAM_MIN (64 * KIB)

/* Initial stdin that travels inside the request; the rest follows in chunks, so that the
 * frame stays under FRAME_MAX_TO_GUEST. */
#define STDIN_INLINE_MAX (1 * MIB)

/* What the bridge waits beyond an exec's own deadline, grace and drain before it calls the
 * guest silent (seconds). */
#define EXEC_WATCHDOG_S 15

/* A link broke: how often it is tried to go on over another before the guest is called lost,
 * and the pause before each try of those who wait for an end (ms). */
#define REATTACH_TRIES 3
#define REATTACH_PAUSE_MS 100

/* Such tries count in a row: a link that has held for so long (seconds), or has brought
 * something, was good. */
#define REATTACH_GOOD_S 5

/* ---- vsock device ---- */

/* Connections of one VM, as in Firecracker, so that nothing relies on more. */
#define VSOCK_CONNS_MAX 1023

/* Guest-to-host bytes that a connection may have in flight or unread by the host: a few
 * packets of the largest size, so that a stream does not wait for each credit. */
#define VSOCK_BUF_ALLOC (256 * KIB)

/* Payload of one packet (bytes): the Linux driver's own limit. */
#define VSOCK_PKT_MAX (64 * KIB)

/* Packets taken from the guest, and bytes given to it by one connection, before the loop
 * turns: what a busy stream may delay its neighbours by. */
#define VSOCK_TX_BUDGET 64
#define VSOCK_RX_BUDGET (256 * KIB)

/* Packets taken from the guest are handed back at the latest when they are this part of the
 * ring (less than the longest chain would fill), or so old. */
#define VSOCK_TX_HELD_SHARE 32
#define VSOCK_TX_HELD_MS 10

/* Receive buffers (4 KiB in Linux) filled by one readv. */
#define VSOCK_RX_BATCH 16

/* Resets owed to the guest: over the first number its packets wait. The capacity adds one
 * for each connection, and is a power of two. */
#define VSOCK_RESETS_BUSY 2048
#define VSOCK_RESETS_MAX 4096

/* "CONNECT <port>\n" is at most this long (bytes), as in Firecracker. */
#define VSOCK_LINE_MAX 32

/* A device that no VMM has connected to after this long is an orphan (seconds). */
#define VSOCK_VMM_WAIT_S 60

/* Descriptors of a ring, segments of a chain (a header and the 17 pages of the largest
 * packet, with room), regions of a memory table. */
#define VIRTQUEUE_NUM_MAX 1024
#define VIRTQUEUE_SEGMENTS_MAX 24
#define GUEST_REGIONS_MAX 8

/* Private memory of the device: every connection's buffer full, and the rest (MiB). */
#define VSOCK_DEVICE_DATA_MIB 320

/* ---- links ---- */

#define CONNECT_DEADLINE_MS 10000 /* connect + Open, retries included */
#define CONNECT_TRY_MS 1500       /* one try of it */
#define CONNECT_BACKOFF_MIN_MS 5  /* pause between tries, doubled each time up to … */
#define CONNECT_BACKOFF_MAX_MS 80 /* … this: a booting guest is noticed soon enough */
#define SILENCE_DEADLINE_S 10     /* an agent with calls in progress says nothing: ask it … */
#define PULSE_S 2                 /* how often that is looked after */
#define PING_DEADLINE_S 5         /* … and count it as lost when it is silent so long still */
#define ANSWER_DEADLINE_S 20      /* each answer that an opened session owes */
#define STARTED_DEADLINE_S 60     /* … but Started: an exec may queue to be spawned */
#define DRAIN_DEFAULT_S 20        /* --drain-seconds */
#define STALL_S 2           /* the bridge has not turned its loop for longer: it stood still */
#define STALL_LOOK_S 1      /* … and turns it at least so often */
#define LINK_LINGER_MS 1000 /* a closed link goes on sending what was queued */

/* How often a link looks whether the guest still stands still (seconds). */
#define GATE_LOOK_S 1

/* Links of one sandbox that calls use at once: what a VM carries, less the spare one and those
 * that close. The last LINKS_RESERVED are for calls that end something. More wait in
 * line, for CONNECT_DEADLINE_MS at most. */
#define LINKS_MAX (VSOCK_CONNS_MAX - 8)
#define LINKS_RESERVED 31

/* Of them, those that Opened has not answered yet: with the reserved and the spare one no more
 * than SESSIONS_UNOPENED_MAX, or the agent would close one whose Open is under way. */
#define LINKS_OPENING_MAX 32

/* One more waits so long for its turn (seconds): a slow guest, asked to start as many execs as
 * it may run, is busy for half a minute. */
#define LINK_TURN_S 60

/* Unsent bytes to a guest at which a sender is asked to stop, and to go on. */
#define LINK_HIGH_WATER (256 * KIB)
#define LINK_LOW_WATER (64 * KIB)

/* ---- sandboxes ---- */

#define BOOT_DEADLINE_S 60      /* from the start of a VM to its agent's first answer */
#define ATTACH_DEADLINE_S 10    /* the same of a VM that is attached to: it runs already */
#define DEVICE_DEADLINE_MS 5000 /* until a VM's vsock device has made its socket */
#define DELETE_CANCEL_MS 3000   /* calls get this long to end by themselves */
#define DELETE_RETRY_S 2        /* … and the registry, when it cannot be written, so long */
#define DELETE_ANSWER_S 10      /* … and a VM that cannot be removed, until that is told */
#define SHORTAGE_RETRY_S .1     /* what must not fail is tried again in a shortage of ours */
#define SPARE_DELAY_MS \
	25 /* the next spare link is made so long after one was taken: past a short exec */
#define SPARE_RETRY_MS 500 /* … and this long after one died */
#define KVM_TRIAL_S 8      /* a trial boot that takes longer says: no KVM here */

/* A disk with less room than this (bytes) was full when writing to it has failed. */
#define DISK_FULL_BYTES (1 * MIB)

/* Host memory that guests may not take (MiB): the host's own, and the bridge's buffers; and
 * what one VM costs besides its RAM. */
#define HOST_RESERVE_MIB (256 + BUFFERED_MAX / MIB)
#define VM_OVERHEAD_MIB 48

/* The warm pool: VMs of one template and size at most, and how long one is kept that nobody
 * takes (seconds). */
#define WARM_POOL_MAX 16
#define WARM_KEPT_S 600
/* One that nobody has taken for so long (seconds) runs a first exec, which does nothing and may
 * take so long (ms): the later ones are quicker by that. */
#define REHEARSAL_AFTER_S 0.5
#define REHEARSAL_MS 5000

/* One is to hibernate, but a call is in progress that is no activity (an exec is looked at): it
 * is tried again so soon. */
#define HIBERNATE_RETRY_MS 200

/* Execs that run on without a call (detached ones, say): how many of a sandbox it keeps in mind
 * to tell of their ends. Its link to the agent for that is opened so long after one was left,
 * not in the way of the next call; again so long after it broke; and closed so long after the
 * last has ended (s). */
#define WATCHED_MAX (2 * EXECS_RUNNING_MAX)
#define WATCH_DELAY_S 0.05
#define WATCH_RETRY_S 1
#define WATCH_LINGER_S 10

/* Events of sandboxes that a stream may still ask for. */
#define EVENTS_KEPT 4096

/* What a template's `ready` waits for, or `start` alone, takes at most so long (seconds),
 * unless the template says otherwise: no more than a caller would wait for. The pause between
 * two tries (ms) is doubled each time up to the second number: they cost a slow guest more than
 * a little. */
#define READY_DEFAULT_S 60
#define READY_MAX_S 600
#define READY_PAUSE_MIN_MS 250
#define READY_PAUSE_MAX_MS 1000

/* Of what each of them prints, the end of each stream that is told when they have failed
 * (bytes); and how long that of a `start` that has ended is waited for (ms). */
#define START_SAID_MAX 512
#define START_SAID_WAIT_MS 1000

/* A template's snapshot that no create has used for so long is removed at the next start. */
#define BAKED_KEPT_S (7 * 24 * 3600)

/* Children of one fork. */
#define FORK_MAX 16

/* An agent's answer to Prepare, its sync included, and to Resume. */
#define PREPARE_ANSWER_MS 20000
#define RESUME_ANSWER_MS 10000
#define RESUME_ENTROPY_BYTES 128

/* A Resume that was answered so late (ms) has set a clock that is late: it is told again, so
 * often in all. */
#define CLOCK_LATE_MS 1000
#define CLOCK_TOLD_MAX 3

/* A prepared sandbox whose owner does not say how it goes on: from SELF_RESUME_S on its agent
 * is asked that often whether it went on by itself, each time for so long (s); it may not
 * answer while the VM is paused, but after so long callers are told that. */
#define BRACKET_LOOK_S 1
#define BRACKET_ANSWER_S 3
#define BRACKET_MAX_S 600

/* A tmpfs of less is none to keep guests' memory on. */
#define SHM_MIN_MIB 512

/* A VMM's answer to one call (pause, save the state, load it); copies of memory not counted. */
#define VMM_CALL_S 15.
/* … and to one that lets it write the guest's memory to a disk. */
#define VMM_SAVE_S 300.
/* What QEMU may write of a state in a second (bytes): all at once. */
#define SAVE_BANDWIDTH (64ll * 1024 * MIB)

/* One answer of a VMM's HTTP API (bytes, with its head); ours are far shorter. */
#define VMM_HTTP_ANSWER_MAX (16 * KIB)

/* One message of QEMU's monitor (bytes); ours are answered by far shorter ones. */
#define QMP_LINE_MAX (16 * KIB)

/* The end of a VM's first output that is kept to explain a failed start (bytes): a kernel's
 * panic is told before its stack and registers. How much of it a line of the log holds. */
#define BOOT_TAIL_MAX 4096
#define BOOT_TAIL_LOGGED 300

/* A VM's cgroup that is not empty yet is looked at again after this (ms), for CLEANUP_WAIT_MS
 * at most. */
#define CGROUP_LEAVE_MS 2

/* Bounds of a VM's cgroup: to stop a VMM that has been taken over, never one that is well.
 * Memory (MiB): twice the guest's, for a VMM may write it to a file system in memory, and what
 * its programs may take: code that an emulator has translated, 1 GiB; the device's buffers; the
 * rest. Processes: a VMM has some hundreds of threads, User-mode Linux one process for each of
 * its guest's. CPUs: one besides the guest's own, for the VMM and the device. */
#define VM_CGROUP_RAM_TIMES 2
#define VM_CGROUP_MEMORY_MIB (1024 + VSOCK_DEVICE_DATA_MIB + 256)
#define VM_CGROUP_PIDS 4096
#define VM_CGROUP_SPARE_CPUS 1

/* User ids for VMs: below are a host's own users, above is what means "no change". Without a
 * setting, those that no convention gives to anyone (systemd's UIDS-GIDS). */
#define UID_FIRST_MIN 1000
#define UID_LAST 4294967293
#define VM_UIDS_DEFAULT "1879048192:65536"

/* Bounds of a sandbox's resources. */
#define VCPUS_MAX 64
#define MEMORY_MIN_MIB 64
#define MEMORY_MAX_MIB (1024 * 1024)
#define DISK_MIN_MIB 16
#define DISK_MAX_MIB (1024 * 1024)

#endif
