# make build   the programs, in bin/
# make run     a first sandbox: examples/first
# make test    the tests for each commit: lint, unit and integration tests without the long ones
# make test-all everything that is checked: also the long tests, and fuzzing
# make fuzz    each fuzz target for FUZZTIME, a part of make test-all
# make test-docker29 all tests with Docker, with dockerd 29
# make test-bats runc's own integration tests, with this runtime and with runc
# make test-kubernetes pods of a kubelet, with this runtime and with runc
# make test-packages programs of 100 Debian packages in sandboxes: installs the packages
# make test-projects real projects pass their tests in sandboxes, as on the host
# make test-pool the tests of do and up, by a launcher with a pool and by one without
# make test-vm the same on cgroup v2, in a virtual machine: integration/vm
# make bench   side by side with the peers, as ratios
# Each installs what it needs where it can, and says what is missing elsewhere.

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandbox-runtime
GO ?= go
# Static where libseccomp comes as a static library: docs/adr/0001.
TAGS := seccomp netgo osusergo urfave_cli_no_template
# For packagers: make VERSION=1.2.3-1 COMMIT=...
VERSION :=
COMMIT := $(shell scripts/commit)
OCI := github.com/sandbox-runtime/sandbox-runtime/internal/container/oci
STAMP = $(if $(VERSION),-X $(OCI).version=$(VERSION)) $(if $(COMMIT),-X $(OCI).stamped=$(COMMIT))
STATIC = $(wildcard $(shell pkg-config --variable=libdir libseccomp)/libseccomp.a)
LDFLAGS = -s -w $(STAMP) $(if $(STATIC),-linkmode external -extldflags "-static $(1)")
# Two programs in one file, each at an address of its own: docs/adr/0001.
JOINED = $(and $(STATIC),$(filter linux/amd64,$(shell $(GO) env GOOS)/$(shell $(GO) env GOARCH)))
PROGRAM = $(GO) build -trimpath -tags '$(TAGS) $(2)' -ldflags '$(call LDFLAGS,$(1))'
comma := ,
TOOLS := $(CACHE)/bin
GOLANGCI := $(TOOLS)/golangci-lint-v2.15.0
GOTESTSUM := $(TOOLS)/gotestsum-v1.13.0

.DEFAULT_GOAL := build
.PHONY: build run test test-all test-packages test-pool tools modules unit alone raced fuzz integration kills storms engines outside others-a-i others-j-z test-docker29 test-bats test-kubernetes test-projects vm test-vm bench lint clean deps programs

deps:
	@scripts/need cc=gcc /usr/include/stdio.h=libc6-dev pkg-config=pkg-config pc:libseccomp=libseccomp-dev

# The programs that run inside are committed: docs/adr/0018. New sources give new ones.
programs:
	@GO='$(GO)' scripts/programs update

build: deps programs
	$(call PROGRAM) -o $(if $(JOINED),bin/.parts/whole,bin/sandbox-runtime) ./cmd/sandbox-runtime
ifneq ($(JOINED),)
	$(call PROGRAM,-Wl$(comma)-Ttext-segment=0x20000000,oci_program) -o bin/.parts/oci ./cmd/sandbox-oci
	scripts/join bin/.parts/oci bin/.parts/whole bin/sandbox-runtime
endif

run: build
	@scripts/need /usr/bin/python3=python3
	@examples/first/run bin/sandbox-runtime

# Long tests are those that call testhost.Long. Tests that kill at many points take fewer of them in a short run.
SHORT ?= -short
test: modules lint unit
	@$(MAKE) integration GUEST=vm
test-all: SHORT :=
test-all: modules lint unit fuzz
	@$(MAKE) integration GUEST=vm
export SHORT

tools:
	@scripts/need ip=iproute2 /usr/sbin/nft=nftables strace=strace gdb=gdb git=git curl=curl wget=wget openssl=openssl ssh=openssh-client patch=patch python3=python3 perl=perl xz=xz-utils fish=fish zsh=zsh $(MKFS)
	@scripts/need -o musl-gcc=musl-tools

# What the Go module proxy has for what follows.
modules: deps programs
	@for d in . integration; do scripts/again $(GO) list -C $$d -deps -test -tags '$(TAGS)' ./... >/dev/null || exit; done

# Some tests are on a file system of each kind.
MKFS := /usr/sbin/mkfs.ext4=e2fsprogs /usr/sbin/mkfs.xfs=xfsprogs /usr/sbin/mkfs.btrfs=btrfs-progs

# The race detector makes tests up to five times slower, and sandboxes, too: their processes start from
# the test's program. Packages with one goroutine do without the detector. So do packages whose tests
# make many sandboxes. There the tests that testhost.Concurrent marks run a second time, with the detector.
ALONE := images/store internal/changes/apply internal/changes/patch internal/launcher internal/inside/agent internal/network/egress netns/router sandbox cmd/sandbox-runtime
# Tests run their own binary again and again: no second's sleep at each exit.
unit: export GORACE = atexit_sleep_ms=0
unit: deps tools programs $(GOTESTSUM)
	integration/setup
	@$(MAKE) -j2 alone raced
alone raced: GOTEST = scripts/gotest $(GOTESTSUM) -tags '$(TAGS)' -timeout 50m $(SHORT)
alone:
	$(GOTEST) $(ALONE:%=./%)
raced:
	$(GOTEST) -race -run "$$(scripts/concurrent $(ALONE))" $(ALONE:%=./%)
	$(GOTEST) -race $$($(GO) list -tags '$(TAGS)' ./... | grep -vE '$(subst $() ,|,$(ALONE:%=/%$$))')

# Fuzz targets of Go, as PACKAGE:TARGET. What fuzzes C is a test that takes
# FUZZTIME itself.
FUZZ := internal/inside/agent:FuzzParseEvent internal/inside/agent:FuzzParseList internal/channel:FuzzReceive   \
	internal/launcher/server:FuzzServer
# Parsers of a few lines, which take less.
FUZZ_SMALL := internal/inside/streams:FuzzReadersSurviveAnyFile internal/changes/patch:FuzzQuote internal/changes/patch:FuzzTerminal internal/inside/files:FuzzParseAnswer   \
	internal/inside/files:FuzzParseRequest spec:FuzzLookup internal/network/rules:FuzzParse   \
	internal/network/egress/answer:FuzzAnswer internal/network/egress/sniff:FuzzRead   \
	internal/network/egress/sniff:FuzzRequestsToAProxy   \
	internal/network/egress/link:FuzzParseReport internal/network/egress:FuzzReports images/index:FuzzBuild images/inflate:FuzzCopy   \
	images/source:FuzzParse images/source:FuzzDocument images/name:FuzzParse internal/network/nameserver:FuzzConfig
FUZZTIME ?= 10s
FUZZTIME_SMALL ?= 3s
fuzz: deps programs
	@for f in $(FUZZ); do GO='$(GO)' scripts/fuzz $(FUZZTIME) $$f -tags '$(TAGS)' || exit; done
	@for f in $(FUZZ_SMALL); do GO='$(GO)' scripts/fuzz $(FUZZTIME_SMALL) $$f -tags '$(TAGS)' || exit; done
	FUZZTIME=$(FUZZTIME) $(GO) test -count=1 -timeout 10m -v -run 'SurvivesAnything$$' ./internal/inside/agent

# Six worlds at once, as a test often waits: commands that are killed, other storms, tests with engines, attacks
# and networks, and two halves of the rest, by their names. GUEST=vm adds the guest.
KILLS := Killed
STORMS := Thousand|Many|FullDisk|Damaged|AtRandom
ENGINES := Podman|Docker|Containerd|Ctr|CRI
OUTSIDE := Attack|Network|Proxied|Full|Clients|Rules|Published|Quota
integration: tools
	integration/setup
	@[ "$$(id -u)" != 0 ] || integration/setup-debian
	@$(MAKE) -j7 kills storms engines outside others-a-i others-j-z $(GUEST)
kills storms engines outside others-a-i others-j-z test-docker29 test-bats test-kubernetes test-packages test-pool test-projects: GOTEST = cd integration && $(NICE) ../scripts/gotest $(GOTESTSUM) -tags '$(TAGS)' -count=1 -timeout 60m
kills storms engines outside others-a-i others-j-z: GOTEST += $(SHORT)
kills: build $(GOTESTSUM)
	$(GOTEST) -run '$(KILLS)' .
storms: build $(GOTESTSUM)
	$(GOTEST) -run '$(STORMS)' -skip '$(KILLS)' .
engines: build $(GOTESTSUM)
	$(GOTEST) -run '$(ENGINES)' -skip '$(KILLS)|$(STORMS)|Docker29|Kubernetes' .
outside: build $(GOTESTSUM)
	$(GOTEST) -run '$(OUTSIDE)' -skip '$(KILLS)|$(STORMS)|$(ENGINES)|Docker29|Kubernetes|TestProjects' .
others-a-i others-j-z: build $(GOTESTSUM)
	$(GOTEST) -run '^Test[$(if $(filter %-i,$@),,^)A-I]' -skip '$(KILLS)|$(STORMS)|$(ENGINES)|$(OUTSIDE)|Docker29|Kubernetes|TestProjects|TestBats' ./...
# dockerd 29 is built once: some 16 minutes of processor time.
test-docker29: export SANDBOX_RUNTIME_INTEGRATION_DOCKER29 = all
test-docker29: export SANDBOX_RUNTIME_INTEGRATION_ENGINES = all
test-docker29: export GOTESTSUM_FORMAT ?= standard-verbose
test-docker29: build $(GOTESTSUM)
	integration/setup
	integration/setup-docker29
	$(GOTEST) -run 'Docker' .

# All files of tests, or those that BATS names: BATS=exec,kill
BATS ?= all
test-bats: export SANDBOX_RUNTIME_INTEGRATION_BATS = $(BATS)
test-bats: export GOTESTSUM_FORMAT ?= standard-verbose
test-bats: build $(GOTESTSUM)
	@scripts/need jq=jq gawk=gawk
	integration/setup
	integration/setup-bats
	$(GOTEST) -run 'TestBats' .

# The packages take 5 GB. What is installed already is tested by make test.
PACKAGES = $(shell sed -n 's/^\([a-z][^|]*\)|.*/\1/p' integration/testdata/packages)
test-packages: export SANDBOX_RUNTIME_INTEGRATION_PACKAGES = all
test-packages: export GOTESTSUM_FORMAT ?= standard-verbose
test-packages: build $(GOTESTSUM)
	@scripts/need $(foreach p,$(sort $(PACKAGES)),/usr/share/doc/$p=$p)
	$(GOTEST) -run 'ProgramsOfPackages' .

# Left out are tests with a network, a mount namespace, cgroups or a launcher of their own, one that looks
# for leftovers while a pool has blanks, and one that runs a command line which the program has printed.
NOT_THROUGH := Publish|Killed|Launcher|BelowUsr|WithoutAWritableCgroup|RefusesWrongUsage|InterruptedApply
test-pool: export GOTESTSUM_FORMAT ?= standard-quiet
test-pool: build $(GOTESTSUM)
	integration/setup
	SANDBOX_RUNTIME_INTEGRATION_THROUGH=launcher $(GOTEST) -run '^Test(Do|Up)[A-Z]' -skip '$(NOT_THROUGH)' .
	SANDBOX_RUNTIME_INTEGRATION_THROUGH=pool $(GOTEST) -run '^Test(Do|Up)[A-Z]' -skip '$(NOT_THROUGH)' .

test-kubernetes: export GOTESTSUM_FORMAT ?= standard-verbose
test-kubernetes: build $(GOTESTSUM)
	integration/setup
	integration/setup-kubernetes
	$(GOTEST) -run 'Kubernetes' .

# Processor time inside as a multiple of the host's is printed, and not asserted.
PAIRS ?= 3
test-projects: export GOTESTSUM_FORMAT ?= standard-verbose
test-projects: NICE := nice -n 10
test-projects: export SANDBOX_RUNTIME_INTEGRATION_PAIRS = $(PAIRS)
test-projects: build $(GOTESTSUM)
	integration/setup-projects
	$(GOTEST) -run 'TestProjects' .

# The cgroup v2 guest. test has a part of it, and where the guest cannot be had
# says so; in CI it has to be. LIST names other parts: see integration/vm/run.
vm: build
	@why=$$(integration/vm/setup -w); if [ -n "$$why" ] && [ "$$CI" != true ]; \
		then echo "vm: skipped: $$why"; else $(MAKE) test-vm BUILT=yes LIST=slice GOTESTSUM_FORMAT=standard-quiet; fi

LIST ?= all
test-vm: export GOTESTSUM_FORMAT ?= standard-verbose
test-vm: $(if $(BUILT),,build) $(GOTESTSUM)
	@scripts/need /usr/sbin/mke2fs=e2fsprogs xz=xz-utils
	integration/setup
	integration/vm/setup
	CI=true SKIPS=integration/vm/skips scripts/gotest $(GOTESTSUM) --raw-command integration/vm/run $(LIST)

# All rounds take an hour. BENCH="-n 12 -crowd 100" takes a tenth of that.
bench: build tools
	integration/setup
	$(GO) build -C integration -tags '$(TAGS)' -o ../bin/bench ./bench
	bin/bench $(BENCH)

# Another run on this machine, also of another clone, goes first.
lint: deps programs $(GOLANGCI)
	$(GOLANGCI) run --allow-serial-runners --build-tags '$(TAGS)' ./...
	cd integration && $(GOLANGCI) run --allow-serial-runners --build-tags '$(TAGS)' ./...

# Tools are built once, from the Go module proxy.
$(TOOLS)/golangci-lint-%: module = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/gotestsum-%: module = gotest.tools/gotestsum
$(GOLANGCI) $(GOTESTSUM):
	@mkdir -p $@.new
	GOBIN=$@.new scripts/again $(GO) install $(module)@v$(lastword $(subst -v, ,$(@F)))
	@mv $@.new/* $@ && rmdir $@.new

clean:
	rm -rf bin
