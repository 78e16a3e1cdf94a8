package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// hostileBound is the bound of docs/quotas.md, "Requests": memory of the launcher and
// of what its client holds, and disk below its directories, of sandboxes that write
// nothing themselves.
const hostileBound = 512 << 20

// TestAHostileClientIsBounded makes each call as large, as parallel and as often as the
// rule lets a client, takes no answers, keeps each descriptor, and then looks at what the
// launcher uses.
func TestAHostileClientIsBounded(t *testing.T) {
	testhost.Long(t)
	const uid, sandboxes = 4244, 4
	s := newSandboxes(t)
	dir := ownedTree(t, uid)
	for above := filepath.Dir(dir); above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rules := filepath.Join(t.TempDir(), "rules.json")
	text := fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":["%s"],"limits":{"disk":"64m"},"sandboxes":%d}]}`, uid, dir, sandboxes)
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := s.launcher(filepath.Join(t.TempDir(), "s"), "--mode", "0666", "--rules", rules)
	h := &hostileClient{t: t, dir: dir, launcher: l, before: diskUse(s)}
	defer h.close()
	// A goroutine with another user's rights dials, and others of this process go on.
	as(t, uid, h.connect)
	if t.Failed() {
		return
	}
	for _, step := range []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{"stamps", h.fillStamps},
		{"layers", h.keepLayers},
		{"unread answers", h.leaveUnread},
		{"long requests", h.sendLong},
		{"large commands", h.runLarge},
		{"removed sandboxes", h.removeHeld},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		begun := time.Now()
		as(t, uid, func(context.Context) error { return step.do(ctx) })
		cancel()
		memory, held, disk := h.used(s)
		t.Logf("%s: %d MiB of memory, %d MiB held, %d MiB on disk, %v", step.name, memory>>20, held>>20, disk>>20, time.Since(begun).Round(time.Millisecond))
		if sum := memory + held + disk; sum > hostileBound {
			t.Errorf("%s: %d MiB are used, at most %d are to be", step.name, sum>>20, hostileBound>>20)
		}
	}
	h.others()
	h.close()
	c := l.client()
	all, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if err := c.Remove(t.Context(), i.ID); err != nil {
			t.Error(err)
		}
	}
	c.Close()
	interrupt(t, l.testProcess)
}

// A hostileClient is one user's connection to a launcher, with all that it keeps.
type hostileClient struct {
	t        *testing.T
	dir      string
	launcher *launcherProcess
	before   int64
	client   *protocol.Client
	trunk    *channel.Conn
	// raw are calls that are left as they are, files what came with answers.
	raw   []*channel.Conn
	mu    sync.Mutex // of files
	files []*os.File
}

// close lets go of all. It may be called again.
func (h *hostileClient) close() {
	h.drop()
	for _, f := range h.files {
		f.Close()
	}
	h.files = nil
	if h.client != nil {
		h.client.Close()
		h.client = nil
	}
	if h.trunk != nil {
		h.trunk.Close()
		h.trunk = nil
	}
}

// drop ends the calls that were left.
func (h *hostileClient) drop() {
	for _, c := range h.raw {
		c.Close()
		c.Discard()
	}
	h.raw = nil
}

func (h *hostileClient) keep(trees []layer.Overlay) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tree := range trees {
		for _, l := range tree.Layers {
			h.files = append(h.files, l.Dir)
		}
		if tree.Host != nil {
			h.files = append(h.files, tree.Host)
		}
	}
}

// connect dials twice, for calls as they should be and for others, and makes two
// sandboxes with configurations as large as they may be.
func (h *hostileClient) connect(ctx context.Context) (err error) {
	if h.client, err = protocol.Dial(ctx, h.launcher.socket); err != nil {
		return err
	}
	conn, err := net.Dial("unix", h.launcher.socket)
	if err != nil {
		return err
	}
	if h.trunk, err = channel.OfConn(conn.(*net.UnixConn), 0); err != nil {
		return err
	}
	if err := h.trunk.Send(ctx, protocol.Hello{Protocol: protocol.Protocol}.Encode()); err != nil {
		return err
	}
	for name, storage := range map[string]spec.Storage{"memory": spec.StorageMemory, "disk": spec.StorageDisk} {
		env := map[string]string{"LONG1": strings.Repeat("x", 100<<10), "LONG2": strings.Repeat("x", 100<<10)}
		for i := range 3000 {
			env["V"+strconv.Itoa(i)] = ""
		}
		config := spec.Config{Overlays: []string{h.dir}, Storage: storage, Env: env}
		if _, err := h.client.Create(ctx, protocol.Create{Name: name, Config: config}); err != nil {
			return err
		}
	}
	return nil
}

// call begins a call with a body, which the launcher may take or not.
func (h *hostileClient) call(ctx context.Context, body []byte) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	ours, err := channel.New(fds[0], channel.MaxFiles)
	if err != nil {
		return errors.Join(err, unix.Close(fds[1]))
	}
	h.mu.Lock()
	h.raw = append(h.raw, ours)
	h.mu.Unlock()
	theirs := os.NewFile(uintptr(fds[1]), "call")
	err = h.trunk.Send(ctx, nil, theirs)
	theirs.Close() // if the launcher refuses the call, the next Send fails instead of waiting
	if err != nil {
		return err
	}
	if err := ours.Send(ctx, body); err != nil && ctx.Err() != nil {
		return err // else the launcher did not want it, and says why
	}
	return nil
}

// answered waits for an answer, or the end, of each call that was left.
func (h *hostileClient) answered(ctx context.Context) {
	var waiting sync.WaitGroup
	for _, c := range h.raw {
		waiting.Go(func() {
			_, files, _ := c.Receive(ctx, channel.MaxFrame)
			for _, f := range files {
				f.Close()
			}
		})
	}
	waiting.Wait()
}

// fillStamps has a sandbox keep as many stamps as it may, and then has many calls work on
// them at a time.
func (h *hostileClient) fillStamps(ctx context.Context) error {
	var config *fault.ConfigError
	for round := range 8 {
		stamps := map[string]layer.Stamp{}
		for i := range 1 << 11 {
			stamps[fmt.Sprintf("%d-%d-%s", round, i, strings.Repeat("p", 2000))] = layer.Stamp{CTime: time.Now().UnixNano()}
		}
		err := h.client.Applied(ctx, "memory", h.dir, stamps)
		if errors.As(err, &config) {
			break
		}
		if err != nil {
			return err
		}
	}
	if config == nil {
		return errors.New("there is no bound of stamps")
	}
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			stamps := map[string]layer.Stamp{}
			for j := range 5000 {
				stamps[fmt.Sprintf("short-%d-%d", i, j)] = layer.Stamp{CTime: time.Now().UnixNano()}
			}
			err := h.client.Applied(ctx, "disk", h.dir, stamps)
			if err != nil && !errors.As(err, new(*fault.ConfigError)) {
				h.t.Errorf("applied: %v", err)
			}
		})
	}
	all.Wait()
	return nil
}

// keepLayers asks for layers and their stamps in parallel, and keeps all descriptors.
func (h *hostileClient) keepLayers(ctx context.Context) error {
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			trees, err := h.client.Layers(ctx, []string{"memory", "disk"}[i%2])
			if err != nil {
				h.t.Errorf("layers: %v", err)
			}
			h.keep(trees)
		})
	}
	all.Wait()
	runtime.GC() // of what this client has read
	return nil
}

// about is a request about a sandbox.
func about(word, id, request string) string {
	return word + "\n" + `{"id":"` + id + `","request":` + request + `}`
}

// leaveUnread has as many calls as there may be send answers that nobody takes.
func (h *hostileClient) leaveUnread(ctx context.Context) error {
	defer h.drop()
	for i := range 100 {
		op := []string{
			about("layers", "memory", "{}"), "list\n{}", about("info", "disk", "{}"), about("execs", "disk", "{}"),
			"events\n{}", about("stats", "memory", "{}"), "snapshots\n{}", about("verify", "disk", "true"),
		}[i%8]
		if err := h.call(ctx, []byte(op)); err != nil {
			return err
		}
	}
	time.Sleep(500 * time.Millisecond) // for the launcher to do what it can
	return nil
}

// sendLong sends requests of each kind as long as they may be, all at a time.
func (h *hostileClient) sendLong(ctx context.Context) error {
	defer h.drop()
	many := func(value string, size int) string {
		return strings.Repeat(value+",", min((size-1000)/(len(value)+1), protocol.MaxValues-100)) + value
	}
	bodies := []string{
		about("applied", "disk", `{"tree":"`+h.dir+`","stamps":[`+many(`{}`, protocol.MaxRequest)+`]}`),
		about("start", "disk", `{"command":{"args":[`+many(`""`, protocol.MaxRequest)+`]}}`),
		about("start", "disk", `{"command":{"raw":{"env":[`+many(`[]`, protocol.MaxRequest/2)+`]}}}`),
		"create\n" + `{"create":{"config":{"binds":[` + many(`{}`, protocol.MaxRequest) + `]}}}`,
		"create\n" + `{"create":{"config":{"overlays":["` + strings.Repeat("/x", protocol.MaxRequest/2-1000) + `"]}}}`,
		about("workspace", "disk", `{"workspace":"/`+strings.Repeat("x", protocol.MaxRequest-1000)+`"}`),
		about(strings.Repeat("x", protocol.MaxRequest-1000), "disk", "{}"),
		about("network", "disk", `{"grant":{"allow":[`+many(`"x"`, protocol.MaxRequest)+`]}}`),
	}
	var all sync.WaitGroup
	for i := range 48 {
		all.Go(func() {
			if err := h.call(ctx, []byte(bodies[i%len(bodies)])); err != nil {
				h.t.Errorf("%.40s: %v", bodies[i%len(bodies)], err)
			}
		})
	}
	all.Wait()
	h.answered(ctx)
	return nil
}

// runLarge has commands with large environments run at a time.
func (h *hostileClient) runLarge(ctx context.Context) error {
	defer h.drop()
	env := map[string]string{}
	for i := range 8 {
		env["LONG"+strconv.Itoa(i)] = strings.Repeat("x", 120<<10)
	}
	command, err := json.Marshal(map[string]any{"command": spec.Command{Args: []string{"sleep", "100"}, Env: env, NoFiles: true}})
	if err != nil {
		return err
	}
	for range 60 {
		if err := h.call(ctx, []byte(about("start", "disk", string(command)))); err != nil {
			return err
		}
	}
	for {
		switch execs, err := protocol.AskAbout(ctx, h.client, protocol.OpExecs, "disk", protocol.None{}); {
		case err != nil:
			return fmt.Errorf("commands do not run: %w", err)
		case len(execs) >= 40:
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// removeHeld makes, fills and removes sandboxes whose layers it keeps, as long as the
// rule lets it.
func (h *hostileClient) removeHeld(ctx context.Context) error {
	for i := range 12 {
		name := fmt.Sprint("held", i)
		storage := []spec.Storage{spec.StorageMemory, spec.StorageDisk}[i%2]
		_, err := h.client.Create(ctx, protocol.Create{Name: name, Config: spec.Config{Overlays: []string{h.dir}, Storage: storage}})
		if errors.Is(err, fault.ErrRefused) {
			if i < 2 {
				return err
			}
			return nil
		}
		if err != nil {
			return err
		}
		output(h.t, h.client, name, "head -c 48m /dev/urandom > "+h.dir+"/large")
		trees, err := h.client.Layers(ctx, name)
		if err != nil {
			return err
		}
		h.keep(trees)
		large, err := os.Open(filepath.Join("/proc/thread-self/fd", fmt.Sprint(trees[0].Layers[0].Dir.Fd()), "large"))
		if err != nil {
			return err
		}
		h.files = append(h.files, large)
		if err := h.client.Remove(ctx, name); err != nil {
			return err
		}
	}
	return errors.New("there is no bound of removed sandboxes whose files are held")
}

// used is the most memory that the launcher had, what lies in memory behind the
// descriptors that the client has, and what the launcher has on disk.
func (h *hostileClient) used(s *sandboxes) (memory, held, disk int64) {
	h.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.launcher.cmd.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			memory = kib << 10
		}
	}
	if memory == 0 {
		h.t.Fatalf("no VmHWM in %s", status)
	}
	seen := map[uint64]bool{}
	for _, f := range h.files {
		var st unix.Stat_t
		var fs unix.Statfs_t
		if err := errors.Join(unix.Fstat(int(f.Fd()), &st), unix.Fstatfs(int(f.Fd()), &fs)); err != nil || seen[st.Dev] {
			continue // an image that was shut down
		}
		if seen[st.Dev] = true; fs.Type == unix.TMPFS_MAGIC {
			held += int64(fs.Blocks-fs.Bfree) * fs.Bsize
		}
	}
	return memory, held, diskUse(s) - h.before
}

// diskUse is what the state root and the data directory have.
func diskUse(s *sandboxes) (bytes int64) {
	for _, top := range []string{s.root, dataDir} {
		_ = filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil && unix.Lstat(path, &st) == nil {
				bytes += st.Blocks * 512
			}
			return nil // it is gone
		})
	}
	return bytes
}

// others looks at what is left for others: they are served, and find the log readable.
func (h *hostileClient) others() {
	as(h.t, 4245, func(ctx context.Context) error {
		for range 200 {
			c, err := protocol.Dial(ctx, h.launcher.socket)
			if err == nil {
				_, err = c.List(ctx)
				c.Close()
			}
			if !errors.Is(err, fault.ErrRefused) && !errors.Is(err, fault.ErrUnavailable) {
				return fmt.Errorf("a user without a rule: %w", err)
			}
		}
		return nil
	})
	log := h.launcher.stderr()
	if lines := strings.Count(log, "was not taken"); lines == 0 || lines > 20 || len(log) > 256<<10 {
		h.t.Errorf("%d lines about 200 connections, %d bytes", lines, len(log))
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	c := h.launcher.client()
	defer c.Close()
	i, err := c.Create(ctx, protocol.Create{})
	if err != nil {
		h.t.Errorf("root is not served: %v", err)
		return
	}
	if err := c.Remove(ctx, i.ID); err != nil {
		h.t.Error(err)
	}
}

// A client without a rule leaves sockets in its connections whose close(2) lasts. The
// next client is served all the same.
func TestARefusedClientHoldsUpNobody(t *testing.T) {
	s := newSandboxes(t)
	l := s.launcher(filepath.Join(t.TempDir(), "s"), "--mode", "0666")
	defer l.kill()
	for above := filepath.Dir(l.socket); above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The launcher finds all of them in one go, with the sockets in them.
	if err := l.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var left []*os.File
	for range 90 { // more than are closed at a time, and than wait
		left = append(left, lingering(t))
	}
	as(t, 4245, func(ctx context.Context) error {
		for _, socket := range left {
			conn, err := net.Dial("unix", l.socket)
			if err != nil {
				return err
			}
			channel, err := channel.OfConn(conn.(*net.UnixConn), 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { channel.Close() })
			if err := errors.Join(channel.Send(ctx, nil, socket), socket.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	if err := l.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	c, err := protocol.Dial(ctx, l.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.List(ctx); err != nil {
		t.Errorf("the next client: %v", err)
	}
}
