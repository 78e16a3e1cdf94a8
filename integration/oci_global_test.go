package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// bare calls the program without the global flags that command gives it.
func (r *ociRuntime) bare(args ...string) *exec.Cmd { return exec.Command(r.program, args...) }

func TestRootIsAnyDirectoryButTheTop(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for _, root := range []string{"/", "../../../../../../../../../..", "/tmp/.."} {
			args := []string{"--root", root, "list"}
			r.compare(run(t, r.bare(args...)), result{code: 1, stderr: "Option --root argument should not be set to /"}, args)
		}
		dir := t.TempDir()
		b := newBundle(t, []string{"sleep", "1000"})
		inDir := func(args ...string) {
			t.Helper()
			cmd := r.bare(append([]string{"--root", "state/../root"}, args...)...)
			cmd.Dir = dir // a relative root starts from there
			r.compare(run(t, cmd), result{}, args)
		}
		inDir("create", "--bundle", b.dir, "c")
		if _, err := os.Stat(filepath.Join(dir, "root", "c")); err != nil {
			t.Error(err)
		}
		inDir("delete", "c")
	})
}

func TestUnknownCommandIsStatus3(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.shows(result{code: 3, stderr: `No help topic for 'nonsense'|unknown command \\?"nonsense`}, "nonsense")
		for _, args := range [][]string{{}, {"help"}, {"--help"}, {"-h"}, {"help", "exec"}, {"exec", "--help"}} {
			if got := run(t, r.bare(args...)); got.code != 0 || !strings.Contains(got.stdout, "USAGE:") || got.stderr != "" {
				t.Errorf("%q: %+v", args, got)
			}
		}
	})
}

func TestLogFlagsAreRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		file := filepath.Join(t.TempDir(), "log")
		logged := func(flags ...string) string {
			t.Helper()
			os.Remove(file)
			args := append(append([]string{"--root", r.root, "--log", file}, flags...), "state", "nobody")
			r.compare(run(t, r.bare(args...)), result{code: 1, stderr: "^container does not exist\n$"}, args)
			return content(t, file)
		}
		const text = `level=error msg="container does not exist"`
		for _, flags := range [][]string{nil, {"--log-format", "text"}, {"--log-format="}} {
			if got := logged(flags...); !strings.Contains(got, text) || strings.Count(got, "\n") != 1 {
				t.Errorf("%v: %s", flags, got)
			}
		}
		var entry map[string]string
		decode(t, logged("--log-format=json"), &entry)
		if keys := slices.Sorted(maps.Keys(entry)); !slices.Equal(keys, []string{"level", "msg", "time"}) || entry["msg"] != "container does not exist" {
			t.Errorf("%v", entry)
		}
		r.shows(result{code: 1, stderr: "container does not exist"}, "--log", "", "--log-format", "", "state", "nobody")
		args := []string{"--log", "/nowhere/log", "list"}
		r.compare(run(t, r.bare(args...)), result{code: 1, stderr: "/nowhere/log: no such file or directory"}, args)
		args = []string{"--log-format", "xml", "list"}
		r.compare(run(t, r.bare(args...)), result{code: 1, stderr: "invalid log-format: xml"}, args)
	})
}

// With --debug the log has what the container's init says too, and each entry
// its place in the source.
func TestDebugLogIsRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"/nonsense"})
		got := run(t, r.command("--debug", "run", "--bundle", b.dir, "c"))
		if got.code != 1 {
			t.Errorf("%+v", got)
		}
		for _, e := range r.logged() {
			keys := slices.Sorted(maps.Keys(e))
			if r.program == peer("bin/runc") && e["file"] == "" {
				continue // it leaves the place out now and then
			}
			if strings.Contains(e["msg"], "run failed") && !slices.Equal(keys, []string{"file", "func", "level", "msg", "time"}) {
				t.Errorf("error has the keys %q", keys)
			}
		}
		if last := lastError(r.logged()); last == nil {
			t.Error("no error in the log")
		}
		inits := slices.ContainsFunc(r.logged(), func(e map[string]string) bool {
			return e["level"] == "debug" && strings.HasPrefix(e["msg"], "nsexec")
		})
		if !inits {
			t.Errorf("no debug entry of the container's init: %v", r.logged())
		}
	})
}

func TestRootlessIsReadAsRuncDoes(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"echo", "ran"})
		try := func(value string) result {
			args := append([]string{"--mount", "sh", "-c", readOnlyCgroups, peer("bin/busybox")},
				r.command("--rootless", value, "run", "--bundle", b.dir, "c").Args...)
			return run(t, exec.Command("unshare", args...))
		}
		for _, value := range []string{"auto", "AUTO", "", "false", "0", "F"} {
			r.compare(try(value), result{code: 1, stderr: "read-only file system"}, []string{"--rootless", value})
		}
		for _, value := range []string{"true", "1", "T", "True"} {
			r.compare(try(value), result{stdout: "ran\n"}, []string{"--rootless", value})
		}
		r.compare(try("perhaps"), result{code: 1, stderr: `strconv.ParseBool: parsing \\?"perhaps\\?": invalid syntax`}, []string{"--rootless", "perhaps"})
		// Only what makes a container reads it.
		r.create(b, "c")
		r.shows(result{stdout: "c\n"}, "--rootless", "perhaps", "list", "-q")
	})
}

func TestSystemdCgroupIsRefusedAsByRunc(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for path, says := range map[string]string{
			"":                    "systemd not running on this host, cannot use systemd cgroups manager",
			"test.slice:prefix:c": "systemd not running on this host, cannot use systemd cgroups manager",
			"/c":                  `expected cgroupsPath to be of format \\?"slice:prefix:name\\?" for systemd cgroups, got \\?"/c\\?" instead`,
			"a:b":                 `expected cgroupsPath to be of format \\?"slice:prefix:name\\?" for systemd cgroups, got \\?"a:b\\?" instead`,
			"a:b:c:d":             `expected cgroupsPath to be of format \\?"slice:prefix:name\\?" for systemd cgroups, got \\?"a:b:c:d\\?" instead`,
		} {
			b := newBundle(t, []string{"true"}, func(s *specs.Spec) { s.Linux.CgroupsPath = path })
			for _, command := range []string{"create", "run"} {
				r.shows(result{code: 1, stderr: says}, "--systemd-cgroup", command, "--bundle", b.dir, "c")
			}
		}
		if ids := r.ids(); len(ids) != 0 {
			t.Errorf("left: %q", ids)
		}
	})
}

func TestVersionHasRuncsLines(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for _, flag := range []string{"--version", "-v"} {
			got := run(t, r.bare(flag))
			var names []string
			for line := range strings.Lines(got.stdout) {
				name, _, _ := strings.Cut(strings.ReplaceAll(line, " version", ":"), ":")
				if name != "commit" { // of a build that knows it
					names = append(names, name)
				}
			}
			if want := []string{filepath.Base(r.program), "spec", "go", "libseccomp"}; !slices.Equal(names, want) || got.code != 0 {
				t.Errorf("%s: lines %q, want %q", flag, names, want)
			}
		}
	})
}

// What can't be read is told on stderr and left out, the rest is listed.
func TestListIsRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.shows(result{code: 1, stderr: "no such file or directory"}, "list")
		b := newBundle(t, []string{"sleep", "1000"})
		first := r.create(b, "first")
		second := r.create(b, "second")
		r.run("kill", "first", "KILL")
		r.waitUntil("first", "stopped")
		if err := os.MkdirAll(filepath.Join(r.root, "broken"), 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(filepath.Join(r.root, "broken"))
		const says = "^load container broken: container does not exist\n$"
		r.shows(result{stdout: "first\nsecond\n", stderr: says}, "list", "--quiet")
		r.shows(result{stdout: "first\nsecond\n", stderr: says}, "list", "-q", "-f", "json")
		r.shows(result{code: 1, stderr: "invalid format option"}, "list", "--format", "yaml")
		r.shows(result{code: 1, stderr: "requires exactly 0 argument"}, "list", "first")

		table := run(t, r.command("list"))
		var rows []string
		for line := range strings.Lines(table.stdout) {
			f := strings.Fields(line)
			rows = append(rows, fmt.Sprint(f[:4], f[5:]))
		}
		want := []string{"[ID PID STATUS BUNDLE] [OWNER]", fmt.Sprintf("[first 0 stopped %s] [root]", b.dir), fmt.Sprintf("[second %d created %s] [root]", second, b.dir)}
		if !slices.Equal(rows, want) {
			t.Errorf("table %q, want %q; first was %d", rows, want, first)
		}
		for _, flag := range []string{"--format=json", "-f=json"} {
			var list []map[string]any
			decode(t, run(t, r.command("list", flag)).stdout, &list)
			keys := []string{"bundle", "created", "id", "ociVersion", "owner", "pid", "rootfs", "status"}
			if len(list) != 2 || !slices.Equal(slices.Sorted(maps.Keys(list[0])), keys) || list[0]["owner"] != "root" || list[1]["pid"] != float64(second) {
				t.Errorf("%v", list)
			}
		}
		r.run("delete", "first")
		r.run("delete", "second")
	})
}

// An empty root is an empty list, which in JSON is null.
func TestListOfNothing(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		root := t.TempDir()
		for flag, want := range map[string]string{"--format=json": "null\n", "--quiet": "", "--format=table": "ID          PID         STATUS      BUNDLE      CREATED     OWNER\n"} {
			args := []string{"--root", root, "list", flag}
			r.compare(run(t, r.bare(args...)), result{stdout: want}, args)
		}
	})
}

func TestSpecFlagsAreRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		dir := t.TempDir()
		r.shows(result{}, "spec", "-b", dir)
		r.shows(result{code: 1, stderr: "config.json exists. Remove it first"}, "spec", "--bundle", dir)
		r.shows(result{code: 1, stderr: "/nowhere.*no such file or directory"}, "spec", "--bundle", "/nowhere")
		r.shows(result{code: 1, stderr: "requires exactly 0 argument"}, "spec", dir)
		cmd := r.command("spec", "--rootless")
		cmd.Dir = t.TempDir()
		r.compare(run(t, cmd), result{}, cmd.Args)
		var s specs.Spec
		decode(t, content(t, filepath.Join(cmd.Dir, "config.json")), &s)
		if len(s.Linux.UIDMappings) != 1 || s.Linux.Resources != nil {
			t.Errorf("mappings %v, resources %v", s.Linux.UIDMappings, s.Linux.Resources)
		}
		info, err := os.Stat(filepath.Join(dir, "config.json"))
		if err != nil || info.Mode() != 0o644 { // 0666 and the umask
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	})
}
