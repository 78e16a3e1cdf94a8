package record

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/golden"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func fullConfig() spec.Config {
	return spec.Config{
		Rootfs: "/srv/root", Image: "docker.io/library/debian:13", Writable: true, Workspace: "/srv/work",
		Binds: []spec.Bind{{Source: "/srv/data", Target: "/data", Writable: true}}, Overlays: []string{"/srv/tree"},
		Storage: spec.StorageDisk, Network: spec.NetworkProxied, Allow: []string{"example.org:443"}, Deny: []string{"*.example.net"},
		Observe: true, Ask: true, UpstreamProxy: "http://proxy.test:3128", Publish: []string{"8080:80"},
		Sensitivity: spec.SensitivityInternal, Ceilings: map[spec.Sensitivity]spec.Network{spec.SensitivitySecret: spec.NetworkNone},
		PID: spec.PIDHost, Timeout: spec.Duration(90 * time.Second), Grace: spec.Grace(5 * time.Second),
		Limits: spec.Limits{
			Memory: 512 << 20, CPUs: 1.5, Pids: 64, FileSize: 1<<20 + 1, NoFile: 1024, ShmSize: 16 << 20, Disk: 1 << 30, Files: 65536,
			IORead: 10 << 20, IOWrite: 5 << 20, NetworkRate: 1 << 20, NetworkQuota: 2 << 30, NetworkRequests: 100,
		},
		User: &spec.User{UID: 1000, GID: 1001, Groups: []uint32{1002}, Name: "sandbox"},
		Env:  map[string]string{"A": "b"}, Cwd: "/srv/tree", Hostname: "box", Seccomp: "strict",
	}
}

// fullRecord is a record with each member. No sandbox has all of them at once.
func fullRecord() Record {
	second := func(n int) time.Time { return time.Date(2026, 11, 30, 12, 0, n, 123456789, time.UTC) }
	disks := []spec.Disk{{Major: 254, Minor: 1}}
	return Record{
		Version: FormatVersion, Config: fullConfig(),
		Init: process.ID{Pid: 101, Start: 102, Namespace: "pid:[4026531836]"}, Tied: true,
		Owner: process.ID{Pid: 201, Start: 202, Namespace: "pid:[4026531836]"}, From: "clean", UID: 1000, Named: []string{"10.0.0.1"},
		Upstream:    &spec.Upstream{HTTP: "http://me:secret@proxy.test:3128", HTTPS: "https://me:secret@proxy.test:3129", NoProxy: "example.org"},
		IDBase:      1879048192,
		UIDMappings: []specs.LinuxIDMapping{{ContainerID: 1, HostID: 1879048193, Size: 65535}},
		GIDMappings: []specs.LinuxIDMapping{{ContainerID: 2, HostID: 1879048194, Size: 65534}},
		Created:     second(1),
		Limits:      spec.LimitReport{Memory: spec.Enforced, CPU: spec.Enforced, Pids: spec.Enforced, Disk: spec.Unavailable, IO: spec.Enforced},
		Notes:       []string{"a note"}, Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")},
		Disks: disks, Image: "0123456789ab-box@random.img",
		Trees: []Tree{{
			Path: "/srv/tree", Alias: "/mnt/tree", Layers: []int{3, 1}, Since: second(2), UID: 1000, GID: 1001, OnDisk: true, Image: "sha256:0123",
			Device: 64769, Inode: 1 << 60, Handle: &FileHandle{Type: 129, Bytes: []byte{1, 2, 254}},
		}},
		Stacks: map[string]Stack{"/workspace": {Layers: []int{2}, Below: []LayerRef{{Image: "0123456789ab-box@other.img", Dir: "layer/1/data"}}}},
		Switch: &Switch{
			Layers: map[string]int{"/workspace": 4}, Paused: true, Done: true, Snapshot: "next", Draft: ".new-1-2-3-4", Renamed: true, Old: []int{1},
		},
		Join:      &Join{Paused: true},
		Attaching: &Attachment{Dir: "/srv/later", Device: 64769, Inode: 77, Disks: disks, Limit: spec.Enforced},
		Rewiring:  true, Kept: "box-stopped", GroupIDs: true, Path: []string{"/opt/python/bin"}, PathNotes: []string{"/root/bin is not shown"},
	}
}

// recordOf is the record of testdata with this version: the full one without the members that later versions have
// added.
func recordOf(version int) Record {
	r := fullRecord()
	r.Version = version
	if version < 4 {
		r.Switch.Renamed = false
	}
	if version < 3 {
		r.GroupIDs, r.Join, r.Upstream, r.Trees[0].Alias = false, nil, nil, ""
		r.Config.UpstreamProxy, r.Config.Grace = "", 0
	}
	if version < 2 {
		r.Named, r.Addresses, r.Rewiring, r.Trees[0].Image = nil, nil, false, ""
		c, l := &r.Config, &r.Config.Limits
		c.Image, c.Writable, c.Allow, c.Deny, c.Observe, c.Ask, c.Publish = "", false, nil, nil, false, false, nil
		c.Sensitivity, c.Ceilings, c.PID, c.Network = "", nil, "", spec.NetworkNone
		c.User = &spec.User{UID: c.User.UID, GID: c.User.GID}
		l.ShmSize, l.NetworkRate, l.NetworkQuota, l.NetworkRequests = 0, 0, 0, 0
	}
	return r
}

// dirWith is the directory of a sandbox with this record.
func dirWith(t *testing.T, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	testhost.WriteFile(t, filepath.Join(dir, FileName), string(content))
	return dir
}

func goldenRecord(version int) string { return fmt.Sprintf("sandbox-%d.json", version) }

// A member that is renamed, or that gets another form, is lost in the records of sandboxes that are up.
func TestTheRecordIsWrittenAsBefore(t *testing.T) {
	golden.Full(t, fullRecord())
	dir := t.TempDir()
	if err := fullRecord().Write(dir); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, goldenRecord(FormatVersion), written)
}

func TestRecordsOfEachVersionAreRead(t *testing.T) {
	for version := oldestVersion; version <= FormatVersion; version++ {
		content, err := os.ReadFile(filepath.Join("testdata", goldenRecord(version)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Read(dirWith(t, content))
		if want := recordOf(version); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("version %d: %v; read\n%+v\nwant\n%+v", version, err, got, want)
		}
	}
}

// The sandbox of an unknown record can be up, and must stay. A damaged record is of no use.
func TestWhichRecordsAreUnknown(t *testing.T) {
	newer := FormatVersion + 1
	for name, c := range map[string]struct {
		content string
		change  func(file string) error
		says    string
		unknown bool
	}{
		"of a newer release":                    {fmt.Sprintf(`{"version":%d,"init":{"pid":1}}`, newer), nil, fmt.Sprintf("version %d is of another release", newer), true},
		"of a newer release, with another form": {fmt.Sprintf(`{"version":%d,"init":"another"}`, newer), nil, fmt.Sprintf("version %d is of another release", newer), true},
		"that others can write":                 {`{"version":1,"init":{"pid":1}}`, func(file string) error { return os.Chmod(file, 0o666) }, FileName, true},
		"missing":                               {"", os.Remove, "no such file", false},
		"empty":                                 {"", nil, "remove the sandbox", false},
		"cut":                                   {`{"version":1,"init":{"pid":1}`, nil, "remove the sandbox", false},
		"without a version":                     {`{"init":{"pid":1}}`, nil, "it has no version", false},
		"without PID 1":                         {`{"version":1}`, nil, "it has no PID 1", false},
		"of another form":                       {`{"version":1,"init":"another"}`, nil, "remove the sandbox", false},
	} {
		dir := dirWith(t, []byte(c.content))
		if c.change != nil {
			if err := c.change(filepath.Join(dir, FileName)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Read(dir)
		if err == nil || !strings.Contains(err.Error(), c.says) || IsUnknown(err) != c.unknown {
			t.Errorf("%s: unknown %t, %v", name, IsUnknown(err), err)
		}
		if missing := errors.Is(err, fs.ErrNotExist); missing != (name == "missing") {
			t.Errorf("%s: missing %t", name, missing)
		}
	}
	if IsUnknown(nil) {
		t.Error("a record that was read is unknown")
	}
}

// A release without names in a file of their own gave these names by the id.
func TestNamesAreWrittenAsBefore(t *testing.T) {
	in := Roots{State: t.TempDir()}
	names := Names{Made: "box", Cgroup: in.CgroupPrefix() + "box@abcdefgh"}
	if err := os.MkdirAll(in.Dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, known, err := in.NamesOf("box"); err != nil || known || got != (Names{Made: "box", Cgroup: in.CgroupPrefix() + "box"}) {
		t.Errorf("without a file: %+v, %t, %v", got, known, err)
	}
	if err := names.Write(in.Dir("box")); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(in.Dir("box"), NamesFile))
	if want := `{"made":"box","cgroup":"` + names.Cgroup + `"}`; err != nil || string(written) != want {
		t.Errorf("written: %s, %v", written, err)
	}
	if got, known, err := in.NamesOf("box"); err != nil || !known || got != names {
		t.Errorf("with a file: %+v, %t, %v", got, known, err)
	}
}

// No cgroup of others is used or removed for a sandbox.
func TestNamesThatAreNotThisStateRootsAreRefused(t *testing.T) {
	in := Roots{State: t.TempDir()}
	if err := os.MkdirAll(in.Dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	ours := in.CgroupPrefix()
	contents := []string{"", "{}", "null", `"box"`, "\x00\x00"}
	for _, cgroup := range []string{"", "system.slice", ours, ours + "../x", ours + "box@b/../c", "/" + ours + "box", ours + "other@b"} {
		contents = append(contents, fmt.Sprintf(`{"made":"box","cgroup":%q}`, cgroup))
	}
	for _, content := range contents {
		testhost.WriteFile(t, filepath.Join(in.Dir("box"), NamesFile), content)
		if _, _, err := in.NamesOf("box"); err == nil || !strings.Contains(err.Error(), "down") {
			t.Errorf("%q: %v", content, err)
		}
	}
}
