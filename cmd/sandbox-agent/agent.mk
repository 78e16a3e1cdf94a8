# The agent: one static C program, embedded by internal/inside/agent. Run from the top with -f.
#
#   $(AGENT)     the program
#   agent-cc     prints its compiler
#   agent-asan   the harnesses of fuzz/, under AddressSanitizer and UBSan, in the
#                directory AGENT_ASAN
#
# Any libc will do; musl's (Debian: musl-tools) makes the smaller and faster
# program, and is taken where it is there: docs/adr/0005.

AGENT_DIR     := cmd/sandbox-agent
AGENT_SOURCES := $(wildcard $(AGENT_DIR)/*.c)
AGENT_HEADERS := $(wildcard $(AGENT_DIR)/*.h)
AGENT         ?= bin/sandbox-agent
AGENT_ASAN    ?= bin
AGENT_CC      ?= $(or $(shell command -v musl-gcc 2>/dev/null),$(CC))

AGENT_WARN := -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wconversion \
	-Wstrict-prototypes -Wvla -Wformat=2
AGENT_HARDEN := -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 \
	-fstack-clash-protection -ftrivial-auto-var-init=zero
AGENT_SMALL := -Os -fno-pie -ffunction-sections -fdata-sections
AGENT_LINK := -static -no-pie -Wl,-z,relro,-z,now,-z,noexecstack,--gc-sections,-s
# The kernel's headers, which musl does not bring.
AGENT_KERNEL := -idirafter /usr/include \
	-idirafter /usr/include/$(shell $(CC) -print-multiarch 2>/dev/null)

$(AGENT): $(AGENT_SOURCES) $(AGENT_HEADERS) $(AGENT_DIR)/agent.mk
	$(AGENT_CC) -fanalyzer $(AGENT_WARN) $(AGENT_HARDEN) $(AGENT_SMALL) \
		-o $@ $(AGENT_SOURCES) $(AGENT_KERNEL) $(AGENT_LINK)

.PHONY: agent-cc
agent-cc:
	@echo $(AGENT_CC)

AGENT_SANITIZE = $(CC) -O1 -g $(AGENT_WARN) -fsanitize=address,undefined \
	-fno-sanitize-recover=all -fno-omit-frame-pointer -I$(AGENT_DIR)

.PHONY: agent-asan
agent-asan:
	@mkdir -p $(AGENT_ASAN)
	$(AGENT_SANITIZE) -o $(AGENT_ASAN)/parse_fuzz $(AGENT_DIR)/fuzz/parse_fuzz.c \
		$(addprefix $(AGENT_DIR)/,payload.c request.c filter.c)
	$(AGENT_SANITIZE) -o $(AGENT_ASAN)/serve_fuzz $(AGENT_DIR)/fuzz/serve_fuzz.c \
		$(addprefix $(AGENT_DIR)/,connection.c detached.c drain.c event.c exec.c loop.c request.c) \
		-Wl,--wrap=fork,--wrap=syscall,--wrap=kill
	$(AGENT_SANITIZE) -o $(AGENT_ASAN)/drain_check $(AGENT_DIR)/fuzz/drain_check.c
