# The agent: one static C program, embedded by internal/agent. Included by the
# Makefile at the top, or run from there with -f.
#
#   internal/agent/sandbox-agent   the program
#   agent-asan                     the payload parser's fuzz harness, under
#                                  AddressSanitizer and UBSan, at AGENT_ASAN

AGENT_DIR     := cmd/sandbox-agent
AGENT_SOURCES := $(wildcard $(AGENT_DIR)/*.c)
AGENT_HEADERS := $(wildcard $(AGENT_DIR)/*.h)
AGENT_ASAN    ?= bin/agent-payload-fuzz

AGENT_WARN := -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wconversion \
	-Wstrict-prototypes -Wvla -Wformat=2
AGENT_HARDEN := -fstack-protector-strong -D_FORTIFY_SOURCE=2 \
	-fstack-clash-protection -ftrivial-auto-var-init=zero
AGENT_LINK := -static -Wl,-z,relro,-z,now,-z,noexecstack,--gc-sections,-s

internal/agent/sandbox-agent: $(AGENT_SOURCES) $(AGENT_HEADERS) $(AGENT_DIR)/agent.mk
	$(CC) -Os -fanalyzer $(AGENT_WARN) $(AGENT_HARDEN) \
		-ffunction-sections -fdata-sections \
		-o $@ $(AGENT_SOURCES) $(AGENT_LINK)

.PHONY: agent-asan
agent-asan:
	@mkdir -p $(dir $(AGENT_ASAN))
	$(CC) -O1 -g $(AGENT_WARN) -fsanitize=address,undefined \
		-fno-sanitize-recover=all -fno-omit-frame-pointer \
		-I$(AGENT_DIR) -o $(AGENT_ASAN) \
		$(AGENT_DIR)/fuzz/payload_fuzz.c $(AGENT_DIR)/payload.c
