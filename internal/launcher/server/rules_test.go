package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestRulesThatAreNone(t *testing.T) {
	for name, test := range map[string]struct{ text, says string }{
		"no JSON":              {"peers", "invalid character"},
		"an unknown field":     {`{"peers":[{"user":7,"workspace":"/w"}]}`, "unknown field"},
		"an unknown network":   {`{"peers":[{"user":7,"networks":["none","proxy"]}]}`, `networks[1]: unknown network "proxy"`},
		"an unknown profile":   {`{"peers":[{"user":7,"seccomp":["strict","nope"]}]}`, `seccomp[1]: "nope" is not a built-in profile; use ["default" "strict" "debug"]`},
		"a profile's file":     {`{"peers":[{"user":7,"seccomp":["/etc/profile.json"]}]}`, `seccomp[0]: "/etc/profile.json" is not a built-in profile`},
		"a profile's no name":  {`{"peers":[{"user":7,"seccomp":[""]}]}`, `seccomp[0]: "" is not a built-in profile`},
		"two documents":        {`{} {}`, "something follows"},
		"no user":              {`{"peers":[{}]}`, "user: is missing"},
		"nobody's name":        {`{"peers":[{"user":"no-such-user"}]}`, "no-such-user"},
		"root":                 {`{"peers":[{"user":"root"}]}`, "root may do everything"},
		"everybody":            {`{"peers":[{"user":65534}]}`, "other user namespaces"},
		"one user twice":       {`{"peers":[{"user":7},{"user":"7"}]}`, "second rule"},
		"a relative workspace": {`{"peers":[{"user":7,"workspaces":["w"]}]}`, "not an absolute path"},
		"one that is not":      {`{"peers":[{"user":7,"workspaces":["/no/such"]}]}`, "workspaces[0]"},
		"negative":             {`{"peers":[{"user":7,"calls":-1}]}`, "calls: -1"},
		"negative blanks":      {`{"peers":[{"user":7,"blanks":-1}]}`, "blanks: -1"},
		"negative images":      {`{"peers":[{"user":7,"images":-1}]}`, "images: -1"},
		"tiny limits":          {`{"peers":[{"user":7,"limits":{"memory":1}}]}`, "limits.memory"},
		"a number too far":     {`{"peers":[{"user":4294967296}]}`, "peers[0].user: write the name or the number"},
		"a text for a number":  {"{\n\"peers\":[{\"user\":7,\n\"calls\":\"many\"}]}", `line 3: "peers.calls" is a JSON string; write a number`},
		"a list of users":      {`{"peers":{"user":7}}`, `"peers" is a JSON object; write an array`},
		"a list in place":      {`[]`, "the file is a JSON array; write an object"},
		"a wrong size":         {`{"peers":[{"user":7},{"user":8,"limits":{"memory":"much"}}]}`, "peers[1].limits.memory: "},
		"nothing":              {"", "file is empty"},
		"half of it":           {`{"peers":[`, "file ends before its closing brace"},
		"a line":               {"{\"peers\":[\n{\"usr\":7}]}", `line 2: unknown field "usr"`},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := parseRules([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "json: ") || strings.Contains(err.Error(), "server.") {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestRulesWithEachBuiltInProfile(t *testing.T) {
	r, err := parseRules([]byte(`{"peers":[{"user":7,"seccomp":["debug","default","strict"]}]}`))
	if err != nil || len(r.Peers[0].Seccomp) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRulesOfAFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "rules.json")
	text := `{"peers":[{"user":"1001","workspaces":["` + dir + `/link"],"limits":{"memory":"2g"},"sandboxes":3,"blanks":0}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := ReadRules(path)
	if err != nil {
		t.Fatal(err)
	}
	got := r.forUser(1001)
	if got == nil || got.Workspaces[0] != dir || got.Limits.Memory != 2<<30 || got.Limits.Pids != 128 ||
		got.Sandboxes != 3 || got.Blanks == nil || *got.Blanks != 0 || got.Calls != defaultCalls || got.all {
		t.Errorf("%+v", got)
	}
	if r.forUser(1002) != nil || !r.forUser(0).all || !r.forUser(uint32(os.Geteuid())).all {
		t.Error("others' rules are wrong")
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRules(path); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("writable by others: %v", err)
	}
}

func TestRulesAreAFileOfBoundedSize(t *testing.T) {
	dir := t.TempDir()
	fifo, long := filepath.Join(dir, "fifo"), filepath.Join(dir, "long.json")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(long, []byte("{}"+strings.Repeat(" ", maxRules)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{fifo: "not a regular file", long: "at most 1048576"} {
		if _, err := ReadRules(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("rules %s: %v", path, err)
		}
	}
}

func TestARuleAllowsNoPublishedPorts(t *testing.T) {
	rule := &Rule{User: "1001", Networks: spec.Networks(), NetworkAllow: []string{"pypi.org"}}
	if err := rule.complete(); err != nil {
		t.Fatal(err)
	}
	for _, network := range spec.Networks() {
		c := spec.Config{Network: network}
		if err := rule.allow(&protocol.Create{Config: c}, nil); err != nil {
			t.Errorf("the network %s: %v", network, err)
		}
		c.Publish = []string{"8080:80"}
		if err := rule.allow(&protocol.Create{Config: c}, nil); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("ports with %s: %v", network, err)
		}
	}
}

// A user can allow addresses inside those of the rule. Only single addresses of the rule open the host
// and other sandboxes.
func TestWhatNetworkAllowAllows(t *testing.T) {
	rule := &Rule{User: "1001", Networks: []spec.Network{spec.NetworkFull}, NetworkAllow: []string{"10.20.0.0/16:5432-5440", "192.0.2.5:80", "192.0.2.0/24:80-81", "fd00::/8"}}
	if err := rule.complete(); err != nil {
		t.Fatal(err)
	}
	for allow, want := range map[string]string{
		"10.20.0.0/16:5432-5440": "inside", "10.20.3.4:5433": "inside", "10.20.3.0/24:5433-5434": "inside", "fd00::1": "inside", "[fd00::]/64:80": "inside",
		"192.0.2.5:80": "named", "192.0.2.5:81": "inside", "192.0.2.5:80-81": "inside", "192.0.2.5/32:80": "named",
		"10.20.3.4": "refused", "10.20.3.4:5431-5433": "refused", "10.20.0.0/15:5432": "refused", "10.21.0.1:5432": "refused", "0.0.0.0/0:5432": "refused",
		"::/0": "refused", "192.0.2.5": "refused", "::ffff:192.0.2.5": "wrong", "10.20.3.4:5433:": "wrong", "": "wrong",
	} {
		grant := &spec.NetworkGrant{Network: spec.NetworkFull, Allow: []string{allow}, Deny: []string{"10.0.0.1"}}
		named, err := rule.allowGrant(grant)
		var wrong *fault.ConfigError
		got := "inside"
		switch {
		case errors.Is(err, fault.ErrRefused):
			got = "refused"
		case errors.As(err, &wrong):
			got = "wrong"
		case err != nil:
			t.Errorf("%s: %v", allow, err)
		case slices.Equal(named, grant.Allow):
			got = "named"
		case len(named) > 0:
			t.Errorf("%s: %q are named", allow, named)
		}
		if got != want {
			t.Errorf("%q is %s, want %s: %v", allow, got, want, err)
		}
		create := protocol.Create{Config: spec.Config{}.WithNetwork(*grant)}
		if err := rule.allow(&create, nil); (err == nil) != (want == "inside" || want == "named") || !slices.Equal(create.Named, named) {
			t.Errorf("create with %q: %q, %v", allow, create.Named, err)
		}
	}
	for text, says := range map[string]string{"10.0.0.1/8": "network_allow[0]", "": "network_allow[0]"} {
		bad := &Rule{User: "1001", Networks: []spec.Network{spec.NetworkFull}, NetworkAllow: []string{text}}
		if err := bad.complete(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("network_allow %q: %v", text, err)
		}
	}
	none := &Rule{User: "1001", NetworkAllow: []string{"10.0.0.1"}}
	if err := none.complete(); err == nil {
		t.Error("network_allow without full")
	}
}

// TestWhatARuleAllows has a peer that is this process's user, so that it owns
// what it opens.
func TestWhatARuleAllows(t *testing.T) {
	dir := t.TempDir()
	mine, outside := filepath.Join(dir, "mine"), t.TempDir()
	for _, d := range []string{mine, mine + "/sub"} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := mine + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := mine + "/foreign"
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(foreign, 4711, 4711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(mine+"-too", 0o700); err != nil {
		t.Fatal(err)
	}
	rule := &Rule{User: "1001", Workspaces: []string{mine}, Limits: spec.Limits{Memory: 512 << 20, FileSize: 100 << 20, IORead: 1 << 20, NetworkRate: 1 << 20}}
	if err := rule.complete(); err != nil {
		t.Fatal(err)
	}
	rule.uid = uint32(os.Geteuid())
	open := func(flags int) func(string) *os.File {
		return func(path string) *os.File {
			f, err := os.OpenFile(path, flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}
	}
	read, readWrite, named := open(os.O_RDONLY), open(os.O_RDWR), open(unix.O_PATH)
	none := func(string) *os.File { return nil }
	for name, test := range map[string]struct {
		config spec.Config
		open   func(string) *os.File
		says   string // "": allowed
	}{
		"nothing":                 {spec.Config{}, none, ""},
		"much to be kept":         {spec.Config{Env: map[string]string{"X": strings.Repeat("<", 200<<10)}}, none, "bytes"},
		"a workspace":             {spec.Config{Workspace: mine}, read, ""},
		"one below":               {spec.Config{Workspace: mine + "/sub"}, read, ""},
		"one beside":              {spec.Config{Workspace: mine + "-too"}, read, "does not lie in"},
		"one outside":             {spec.Config{Workspace: outside}, read, "does not lie in"},
		"another's":               {spec.Config{Workspace: foreign}, read, "does not belong to you"},
		"one that is only named":  {spec.Config{Workspace: mine}, named, "cannot read it"},
		"one without descriptor":  {spec.Config{Workspace: mine}, none, "open it itself"},
		"a root":                  {spec.Config{Rootfs: mine}, read, ""},
		"a root outside":          {spec.Config{Rootfs: "/usr"}, read, "does not"},
		"a bind":                  {spec.Config{Binds: []spec.Bind{{Source: file}}}, read, ""},
		"a writable bind":         {spec.Config{Binds: []spec.Bind{{Source: file, Writable: true}}}, readWrite, ""},
		"a writable directory":    {spec.Config{Binds: []spec.Bind{{Source: mine, Writable: true}}}, read, ""},
		"one that is not":         {spec.Config{Binds: []spec.Bind{{Source: file, Writable: true}}}, read, "cannot write it"},
		"an overlay":              {spec.Config{Overlays: []string{mine}}, read, ""},
		"an overlay outside":      {spec.Config{Overlays: []string{outside}}, read, "does not lie in"},
		"another's overlay":       {spec.Config{Overlays: []string{foreign}}, read, "does not belong to you"},
		"the whole host":          {spec.Config{Overlays: []string{"/"}}, read, "does not"},
		"more disk":               {spec.Config{Limits: spec.Limits{Disk: 1 << 30}}, none, "limits.disk"},
		"more files":              {spec.Config{Limits: spec.Limits{Files: 1 << 20}}, none, "limits.files"},
		"a bind outside":          {spec.Config{Binds: []spec.Bind{{Source: "/etc/passwd"}}}, read, "does not"},
		"network none":            {spec.Config{Network: spec.NetworkNone}, none, ""},
		"another network":         {spec.Config{Network: "full"}, none, "network"},
		"a pid namespace":         {spec.Config{PID: spec.PIDPrivate}, none, ""},
		"the host's pids":         {spec.Config{PID: spec.PIDHost}, none, "pid_host"},
		"the strict profile":      {spec.Config{Seccomp: "strict"}, none, ""},
		"the debug profile":       {spec.Config{Seccomp: "debug"}, none, "seccomp"},
		"a profile of one's own":  {spec.Config{Seccomp: file}, read, "seccomp"},
		"memory as allowed":       {spec.Config{Limits: spec.Limits{Memory: 512 << 20}}, none, ""},
		"more memory":             {spec.Config{Limits: spec.Limits{Memory: 512<<20 + 1}}, none, "limits.memory"},
		"more processor time":     {spec.Config{Limits: spec.Limits{CPUs: 1.5}}, none, "limits.cpus"},
		"more processes":          {spec.Config{Limits: spec.Limits{Pids: 129}}, none, "limits.pids"},
		"more open files":         {spec.Config{Limits: spec.Limits{NoFile: 1 << 16}}, none, "limits.nofile"},
		"longer files":            {spec.Config{Limits: spec.Limits{FileSize: 1 << 40}}, none, "limits.file_size"},
		"faster reads":            {spec.Config{Limits: spec.Limits{IORead: 2 << 20}}, none, "limits.io_read"},
		"writes without a bound ": {spec.Config{Limits: spec.Limits{IOWrite: 2 << 40}}, none, ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]*os.File{}
			paths := append([]string{test.config.Workspace, test.config.Rootfs}, test.config.Overlays...)
			for _, b := range test.config.Binds {
				paths = append(paths, b.Source)
			}
			for _, path := range paths {
				if path != "" {
					if f := test.open(path); f != nil {
						files[path] = f
					}
				}
			}
			r := protocol.Create{Config: test.config, Path: "/root/bin", Home: "/root"}
			err := rule.allow(&r, files)
			if test.says != "" {
				if !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			want := spec.Limits{Memory: 512 << 20, CPUs: 1, Pids: 128, FileSize: 100 << 20, NoFile: 4096, ShmSize: 64 << 20, Disk: 384 << 20, Files: 49152, IORead: 1 << 20, IOWrite: test.config.Limits.IOWrite, NetworkRate: 1 << 20}
			if r.Config.Limits != want || r.Path != "" || r.Home != "" {
				t.Errorf("became %+v", r)
			}
		})
	}
	var config *fault.ConfigError
	for _, l := range []spec.Limits{{NetworkRate: 1 << 20}, {NetworkQuota: 1}} {
		for _, r := range []*Rule{rule, everything(0)} {
			if err := r.allow(&protocol.Create{Config: spec.Config{Limits: l}}, nil); !errors.As(err, &config) || !strings.Contains(err.Error(), "limits.network_") {
				t.Errorf("%+v without a network: %v", l, err)
			}
		}
	}
	shares := &Rule{User: "1001", PIDHost: true}
	if err := shares.complete(); err != nil {
		t.Fatal(err)
	}
	if err := shares.allow(&protocol.Create{Config: spec.Config{PID: spec.PIDHost}}, nil); err != nil {
		t.Errorf("the host's pids with pid_host: %v", err)
	}
	update := spec.Limits{Pids: 20}
	if err := rule.allowLimits(&update, false); err != nil || update != (spec.Limits{Pids: 20}) {
		t.Errorf("update: %+v, %v", update, err)
	}
	if err := rule.allowLimits(&spec.Limits{Memory: 1 << 40}, false); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("update to more: %v", err)
	}
	all := everything(0)
	if err := all.allow(&protocol.Create{Config: spec.Config{Workspace: "/etc", Seccomp: "debug"}}, nil); err != nil {
		t.Errorf("root: %v", err)
	}
}

func TestRuleBoundsTheOutputOfDetachedCommands(t *testing.T) {
	for _, test := range []struct {
		rule        spec.Size
		asked, want int64 // 0: refused
	}{
		{0, 0, 8 << 20}, {0, 8 << 20, 8 << 20}, {0, 8<<20 + 1, 0}, {0, 1 << 60, 0},
		{1 << 20, 0, 1 << 20}, {1 << 20, 2 << 20, 0}, {64 << 20, 0, 8 << 20}, {64 << 20, 64 << 20, 64 << 20},
	} {
		rule := &Rule{User: "1001", OutputLimit: test.rule}
		if err := rule.complete(); err != nil {
			t.Fatal(err)
		}
		c := spec.Command{Detached: true, OutputLimit: test.asked}
		err := rule.allowOutput(&c)
		if test.want == 0 && (!errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "output_limit")) {
			t.Errorf("%d of %d: %v", test.asked, test.rule, err)
		}
		if test.want != 0 && (err != nil || c.OutputLimit != test.want) {
			t.Errorf("%d of %d: got %d, %v", test.asked, test.rule, c.OutputLimit, err)
		}
	}
	if err := (&Rule{User: "1001", OutputLimit: -1}).complete(); err == nil {
		t.Error("a negative one is taken")
	}
}

func TestDetachedCommandIsHeldToTheRule(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	c := w.client(t, 1001)
	box(t, c, "box")
	for limit, want := range map[int64]error{0: nil, 8 << 20: nil, 8<<20 + 1: fault.ErrRefused, 1 << 60: fault.ErrRefused} {
		p, err := c.Start(t.Context(), "box", spec.Command{Args: []string{"hang"}, Detached: true, OutputLimit: limit}, [3]*os.File{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Started(t.Context()); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", limit, err)
		}
		p.Close()
	}
}

// A fork's overlays are its snapshot's, and no client need name them.
func TestTheRuleSeesTheOverlaysOfASnapshot(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	w.core.beginnings = map[string]protocol.Beginning{
		"bare of 1001": {}, "overlaid of 1001": {Overlays: []string{"/etc"}, Cwd: "/etc"},
	}
	h := newHostileClient(t, w, 1001)
	h.hello()
	for snap, refused := range map[string]bool{"bare": false, "overlaid": true} {
		a, err := answer(t, h.call(frame(0, ask("create", `{"create":{"from":"`+snap+`","config":{}}}`))))
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Error != nil && errors.Is(a.Error.Err(), fault.ErrRefused); got != refused {
			t.Errorf("%s: %+v", snap, a)
		}
	}
}

// A removed sandbox whose files a client holds has its place still.
func TestHeldStoresHavePlaces(t *testing.T) {
	p := newPeer(&Rule{uid: 1001, Sandboxes: 2}, semaphore.NewWeighted(maxDescriptors))
	core := newFakeCore()
	core.retired.Store(1)
	ctx := t.Context()
	if err := p.takeSandbox(ctx, core, "a"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.takeSandbox(ctx, core, "b") }()
	core.retired.Store(0) // before long
	if err := <-done; err != nil {
		t.Error(err)
	}
	core.retired.Store(1)
	p.endCreate("a", "a", nil)
	p.endCreate("b", "b", nil)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.takeSandbox(ctx, core, "a"); err == nil {
		t.Error("a is replaced once more, and its files are held")
	}
	core.retired.Store(0)
	if err := p.takeSandbox(t.Context(), core, "a"); err != nil {
		t.Errorf("a exists: %v", err)
	}
	core.retired.Store(2)
	if err := p.takeSandbox(ctx, core, "c"); err == nil {
		t.Error("one more than the rule allows")
	}
}

// A user changes the network of a sandbox within the rule, and can always give it up.
func TestChangesOfTheNetworkAreWithinTheRule(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"}, Rule{User: "1002", Networks: []spec.Network{spec.NetworkFull}},
		Rule{User: "1003", Networks: []spec.Network{spec.NetworkFull}, NetworkAllow: []string{"10.0.0.0/24"}})
	full := &spec.NetworkGrant{Network: spec.NetworkFull}
	bare, networked, named := w.client(t, 1001), w.client(t, 1002), w.client(t, 1003)
	box(t, named, "named")
	box(t, bare, "bare")
	box(t, networked, "networked")
	if _, err := protocol.AskAbout(t.Context(), bare, protocol.OpNetwork, "bare", protocol.NetworkRequest{Grant: full}); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("without a rule: %v", err)
	}
	for _, g := range []*spec.NetworkGrant{full, {Network: spec.NetworkNone}, nil} {
		if _, err := protocol.AskAbout(t.Context(), networked, protocol.OpNetwork, "networked", protocol.NetworkRequest{Grant: g}); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
	}
	allow := &spec.NetworkGrant{Network: spec.NetworkFull, Allow: []string{"10.0.0.1"}}
	if _, err := protocol.AskAbout(t.Context(), named, protocol.OpNetwork, "named", protocol.NetworkRequest{Grant: allow}); err != nil {
		t.Errorf("an allowed address: %v", err)
	}
	if got := w.core.box("named").currentInfo().Config.Allow; !slices.Equal(got, allow.Allow) {
		t.Errorf("the sandbox allows %q", got)
	}
	if _, err := protocol.AskAbout(t.Context(), networked, protocol.OpNetwork, "networked", protocol.NetworkRequest{Grant: allow}); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("a private address: %v", err)
	}
	for _, name := range []string{"bare", "networked"} {
		if now := w.core.box(name).currentInfo().Config; now.Network == spec.NetworkFull {
			t.Errorf("%s: %+v", name, now.Grant())
		}
	}
	got, err := protocol.AskAbout(t.Context(), bare, protocol.OpNetwork, "bare", protocol.NetworkRequest{Sensitivity: spec.SensitivitySecret})
	if err != nil || got.Sensitivity != spec.SensitivitySecret {
		t.Errorf("%+v, %v", got, err)
	}
}

// A sandbox keeps the rules of a change as long as those that it began with.
func TestTheRulesOfAChangeHaveABound(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Networks: []spec.Network{spec.NetworkProxied}})
	user := w.client(t, 1001)
	box(t, user, "box")
	for _, c := range []struct {
		count, bytes int
		isAllowed    bool
	}{{1, 4000, true}, {80, 4000, false}, {3000, 10, true}} {
		rule := "a.example ; " + strings.Repeat("x", c.bytes)
		g := &spec.NetworkGrant{Network: spec.NetworkProxied, Deny: slices.Repeat([]string{rule}, c.count)}
		_, err := protocol.AskAbout(t.Context(), user, protocol.OpNetwork, "box", protocol.NetworkRequest{Grant: g})
		if c.isAllowed != !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%d rules with reasons of %d bytes: %v", c.count, c.bytes, err)
		}
	}
}

// The list in the error has a range with the address, so the error says why that is not enough.
func TestARefusedAddressIsExplained(t *testing.T) {
	rule := &Rule{User: "1001", Networks: []spec.Network{spec.NetworkProxied}, NetworkAllow: []string{"10.20.0.0/16:80", "a.test"}}
	const why = "a range there does not cover one address of it"
	for text, isExplained := range map[string]bool{"10.20.3.4:80": true, "b.test": false} {
		err := rule.allowNames(&spec.NetworkGrant{Network: spec.NetworkProxied, Allow: []string{text}})
		if !errors.Is(err, fault.ErrRefused) || strings.Contains(err.Error(), why) != isExplained {
			t.Errorf("%s: %v", text, err)
		}
	}
}
