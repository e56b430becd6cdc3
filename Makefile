# Sandgate. Output goes to build/$(VARIANT) only. `make help` lists the targets.

# As many jobs as processors, unless -j says otherwise or the order of several goals matters.
ifeq ($(MAKELEVEL)$(filter clean deps test-deps,$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
MAKEFLAGS += --no-print-directory

CC       ?= gcc
SAN      ?=
VARIANT  := $(if $(SAN),san,release)
B        := build/$(VARIANT)
DEPS     := build/deps

CFLAGS   ?= -O2 -g
CFLAGS   += -std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
            -Wpointer-arith -Wformat=2 -fno-strict-aliasing -fno-common -D_GNU_SOURCE
CPPFLAGS += -I. -I$(B) -I$(DEPS)/llhttp/include -DLLHTTP_STRICT_MODE=1 -MMD -MP
LDFLAGS  += -Wl,--gc-sections
CFLAGS   += -ffunction-sections -fdata-sections
ifneq ($(SAN),)
CFLAGS   += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS  += -fsanitize=$(SAN)
STATIC   :=
else
CFLAGS   += -fstack-protector-strong -D_FORTIFY_SOURCE=2
STATIC   := -static
endif

PROTO_SRC  := $(wildcard proto/*.c)
AGENT_SRC  := $(wildcard guest-agent/*.c)
BRIDGE_SRC := $(wildcard host-bridge/*.c host-bridge/*/*.c)
LLHTTP_SRC := $(addprefix $(DEPS)/llhttp/,api.c http.c llhttp.c)
PB         := $(B)/proto/sandgate.pb-c

obj         = $(patsubst %.c,$(B)/%.o,$(1))
PROTO_OBJ  := $(call obj,$(PROTO_SRC)) $(PB).o
AGENT_LIB  := $(call obj,$(filter-out guest-agent/main.c,$(AGENT_SRC)))
BRIDGE_LIB := $(call obj,$(filter-out host-bridge/main.c,$(BRIDGE_SRC))) \
              $(patsubst $(DEPS)/%.c,$(B)/deps/%.o,$(LLHTTP_SRC))

AGENT_LDLIBS  := -lprotobuf-c -lev -lcap -lm -lpthread
BRIDGE_LDLIBS := -lprotobuf-c -lev -lcap -ljansson -lsqlite3 -lsodium -lm
TEST_LDLIBS   := -lcheck -lsubunit -lrt

AGENT  := $(B)/guest-agent/guest-agent
BRIDGE := $(B)/host-bridge/host-bridge
CHECKS := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/check_*.c))
ROOTFS := $(B)/rootfs
STATE  := build/state
TEMPLATES := $(notdir $(wildcard rootfs/templates/*))
PREFIX ?= /usr/local
C_FILES := $(wildcard proto/*.[ch] guest-agent/*.[ch] host-bridge/*.[ch] host-bridge/*/*.[ch] \
                      tests/*.[ch] tests/*/*.[ch])
CONFORMANCE := $(B)/tests/conformance/conformance

# What a rule prints: `CC file`, or with V=1 the command itself.
say = $(if $(V),,@printf '  %-8s%s\n' $(1) $@;)

.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:

all: $(AGENT) $(BRIDGE)  ## build guest-agent and host-bridge
	@:

$(AGENT): $(call obj,guest-agent/main.c) $(AGENT_LIB) $(PROTO_OBJ)
	@mkdir -p $(@D)
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) $(STATIC) -o $@ $^ $(AGENT_LDLIBS)
	$(if $(SAN),,$(call say,STRIP) objcopy --only-keep-debug $@ $@.debug && strip --strip-all $@)

$(BRIDGE): $(call obj,host-bridge/main.c) $(BRIDGE_LIB) $(PROTO_OBJ)
	@mkdir -p $(@D)
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(BRIDGE_LDLIBS)

# Recompile when the flags change: the stamp holds them and is rewritten only then.
FLAGS_STAMP := $(B)/flags
FLAGS_NOW   := $(CC) $(CPPFLAGS) $(CFLAGS)
ifneq ($(FLAGS_NOW),$(file <$(FLAGS_STAMP)))
$(shell mkdir -p $(B))
$(file >$(FLAGS_STAMP),$(FLAGS_NOW))
endif

$(B)/%.o: %.c $(FLAGS_STAMP) | $(PB).h $(DEPS)/llhttp/include/llhttp.h
	@mkdir -p $(@D)
	$(call say,CC) $(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# Taken in by the assembler, which no dependency file tells of.
$(B)/host-bridge/api/openapi.o: host-bridge/api/openapi.json

$(B)/deps/%.o: $(DEPS)/%.c $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(call say,CC) $(CC) $(CPPFLAGS) $(CFLAGS) -w -c -o $@ $<

$(PB).o: $(PB).c
	$(call say,CC) $(CC) $(CPPFLAGS) $(CFLAGS) -w -c -o $@ $<

$(PB).c $(PB).h &: proto/sandgate.proto
	@mkdir -p $(@D)
	$(call say,PROTOC) protoc-c --c_out=$(B) $<

$(B)/tests/check_%: $(B)/tests/check_%.o $(AGENT_LIB) $(BRIDGE_LIB) $(PROTO_OBJ)
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(TEST_LDLIBS) $(AGENT_LDLIBS) $(BRIDGE_LDLIBS)

# Made by tests/fuzz/run, with clang and SAN=fuzzer-no-link,…
$(B)/tests/fuzz/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(AGENT_LIB) $(BRIDGE_LIB) $(PROTO_OBJ)
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(AGENT_LDLIBS) $(BRIDGE_LDLIBS)

$(CONFORMANCE): $(call obj,$(wildcard tests/conformance/*.c)) $(PROTO_OBJ)
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lprotobuf-c

# llhttp: the library where Debian has one, else the sources of Debian's package.
$(LLHTTP_SRC) $(DEPS)/llhttp/include/llhttp.h &:
	rootfs/fetch-llhttp $(DEPS)/llhttp

deps:  ## install what building and the demo need (Debian packages)
	@rootfs/deps build

test-deps:  ## install what tests, lint, fuzz and bench need besides
	@rootfs/deps build templates test

template-deps:
	@rootfs/deps templates

rootfs: $(AGENT)  ## build the guest images and the base template
	$(call say,ROOTFS) rootfs/build $(AGENT) $(ROOTFS)

# Each is made once of the same package versions, and kept in build/deps/images.
templates: rootfs $(addprefix template-,$(TEMPLATES))  ## build the templates code-interpreter and postgres, too
template-%: | rootfs template-deps
	@rootfs/template rootfs/templates/$* $(ROOTFS)

# An image is replaced, by a whole one, never written into: sandboxes have it open, and creates
# may come while it is copied.
share = $(DESTDIR)$(PREFIX)/share
install: all rootfs  ## install under PREFIX (/usr/local); the configuration in /etc/sandgate
	@$(MAKE) install-files

install-files:
	install -D -m 755 $(BRIDGE) $(DESTDIR)$(PREFIX)/bin/host-bridge
	install -D -m 755 $(AGENT) $(DESTDIR)$(PREFIX)/lib/sandgate/guest-agent
	install -d $(share)/doc/sandgate/proxy
	rm -rf $(share)/sandgate/rootfs.new
	install -d $(share)/sandgate/rootfs.new
	cp -R $(ROOTFS)/. $(share)/sandgate/rootfs.new
	cd $(share)/sandgate/rootfs.new && find . -type d -exec mkdir -p ../rootfs/{} \; \
		-o -exec mv {} ../rootfs/{} \;
	rm -r $(share)/sandgate/rootfs.new
	install -m 644 host-bridge/proxy/* $(share)/doc/sandgate/proxy
	install -D -m 644 host-bridge/host-bridge.1 $(share)/man/man1/host-bridge.1
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in sandgate.service sandgate.socket; do \
		sed 's,/usr/local,$(PREFIX),' host-bridge/systemd/$$unit \
			>$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done
	install -d $(DESTDIR)/etc/sandgate
	[ -e $(DESTDIR)/etc/sandgate/host-bridge.conf ] || \
		sed 's,/usr/local,$(PREFIX),' host-bridge/host-bridge.conf \
			>$(DESTDIR)/etc/sandgate/host-bridge.conf

# These install first and then build, whatever -j says.
demo: deps  ## run commands in a microVM and show every reply
	@$(MAKE) all rootfs
	@tests/demo $(BRIDGE) $(ROOTFS)

demo-postgres: deps  ## run a database in a microVM and fork it
	@$(MAKE) all rootfs template-postgres
	@tests/demo-postgres $(BRIDGE) $(ROOTFS)

serve: deps  ## keep the bridge up (SANDGATE_LISTEN, SANDGATE_TOKEN, SANDGATE_LAUNCHER)
	@$(MAKE) all rootfs
	@tests/serve $(BRIDGE) $(ROOTFS) $(STATE)

test: test-deps  ## run every test layer; does all its own set-up
	@tests/run

unit: test-deps  ## run the unit tests
	@$(MAKE) $(CHECKS)
	@set -e; for c in $(CHECKS); do $$c; done

conformance: deps  ## judge the agent at TARGET by the protocol (unix:PATH, hybrid:PATH, vsock:CID:PORT)
	@$(MAKE) $(CONFORMANCE)
	@$(if $(TARGET),$(CONFORMANCE) $(TARGET),echo "built $(CONFORMANCE)")

bench: test-deps  ## measure against the machine's own floor; table and build/bench.json
	@$(MAKE) all rootfs $(B)/tests/bench/bench-driver $(B)/tests/bench/guest-bench
	SANDGATE_BUILD=$(B) tests/bench/run build/bench.json

$(B)/tests/bench/guest-bench: $(B)/tests/bench/guest_bench.o
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) -static -o $@ $^

$(B)/tests/bench/bench-driver: $(B)/tests/bench/driver.o
	$(call say,LINK) $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^

fuzz: test-deps  ## run the fuzzers (FUZZ_SECONDS each, default 60)
	tests/fuzz/run $(or $(FUZZ_SECONDS),60)

lint: test-deps  ## compile each header alone, check the map of the source, formatting, common mistakes
	@$(MAKE) headers
	@for f in $(filter-out api_%,$(basename $(notdir $(AGENT_SRC) $(BRIDGE_SRC)))); do \
		grep -q "[\`/]$$f[\`.]" docs/source.md || { echo "docs/source.md lacks $$f"; exit 1; }; done
	clang-format --dry-run --Werror $(C_FILES)
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr --enable=warning,portability \
		$(patsubst %,--include=%,$(wildcard /usr/include/*/sys/queue.h) /usr/include/jansson.h) \
		-D__$(shell uname -m)__ -DPROTOBUF_C_VERSION_NUMBER=1004000 -I. -I$(B) \
		$(PROTO_SRC) $(AGENT_SRC) $(BRIDGE_SRC)

headers: $(PB).h
	@set -e; for h in $(filter %.h,$(C_FILES)); do \
		$(CC) $(CPPFLAGS) -MF /dev/null $(CFLAGS) -fsyntax-only -x c $$h; done

# A VM outlives its bridge, so its files are not taken from under it.
clean:  ## remove what was built, keep downloaded packages
	@! find /proc/[0-9]*/cwd /proc/[0-9]*/root /proc/[0-9]*/fd -lname '$(CURDIR)/$(STATE)*' \
		2>/dev/null | grep -q . || { echo "$(STATE) is in use by a bridge or by VMs:" \
		"run make serve, delete the sandboxes, end it" >&2; exit 1; }
	rm -rf build/release build/san $(STATE)

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16
	@echo; echo "V=1 prints whole commands; SAN=address,undefined builds with sanitizers."

.PHONY: all deps test-deps template-deps rootfs templates install install-files demo \
        demo-postgres serve test unit conformance bench fuzz lint headers clean help

-include $(shell find $(B) -name '*.d' 2>/dev/null)
