package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A linkedHome is a home directory that is reached through a symbolic link, as /home/ann is where /home is a link.
type linkedHome struct{ link, real string }

func newLinkedHome(t *testing.T) linkedHome {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := linkedHome{dir + "/home/ann", dir + "/disk/ann"}
	for _, d := range []string{h.real + "/.ssh", h.real + "/project"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, h.real+"/.ssh/id_rsa", "secret")
	writeFile(t, h.real+"/file", "content\n")
	for link, target := range map[string]string{dir + "/home": "disk", h.real + "/project/link": h.real + "/file", h.real + "/project/other": h.link + "/file"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// both is a script that prints whether the two paths show the same files.
func (h linkedHome) both() string {
	return "cat " + h.link + "/project/link " + h.real + "/project/other; [ " + h.link + "/file -ef " + h.real + "/file ] && echo same; cat " +
		h.link + "/.ssh/id_rsa " + h.real + "/.ssh/id_rsa; ls " + h.real + "/project"
}

func TestOverlayWithALinkIsAtBothPaths(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, h := newSandboxes(t), newLinkedHome(t)
	s.up("box", "--overlay", h.link)
	t.Cleanup(func() { run(t, s.command("snapshot", "--remove", "kept")) })
	holds := func(when, box string, files ...string) {
		t.Helper()
		want := "content\ncontent\nsame\n" + strings.Join(files, "\n") + "\n"
		if got := s.exec(box, "sh", "-c", h.both()); got.stdout != want || strings.Count(got.stderr, "No such file") != 2 {
			t.Errorf("%s: %+v, want %q and no secret", when, got, want)
		}
	}
	holds("at first", "box", "link", "other")
	s.sh("box", "echo 1 > "+h.real+"/project/one")
	s.exec("--transaction", "box", "sh", "-c", "echo 2 > "+h.real+"/project/two; exit 1")
	holds("after a failed transaction", "box", "link", "one", "other")
	s.exec("--transaction", "box", "sh", "-c", "echo 3 > "+h.real+"/project/three")
	holds("after a transaction", "box", "link", "one", "other", "three")
	if got := run(t, s.command("snapshot", "box", "kept")); got.code != 0 {
		t.Fatalf("snapshot: %+v", got)
	}
	s.sh("box", "echo 4 > "+h.real+"/project/four")
	holds("after a snapshot", "box", "four", "link", "one", "other", "three")
	want := "created        2 B  " + h.link + "/project/four"
	if got := run(t, s.command("changes", "box")); !strings.Contains(got.stdout, want) || strings.Contains(got.stdout, h.real) {
		t.Errorf("changes: %+v, want the names of the option, such as %q", got, want)
	}
	s.up("fork", "--overlay", h.link, "--from", "kept")
	holds("in a fork", "fork", "link", "one", "other", "three")
	if got := run(t, s.command("discard", "box")); got.code != 0 {
		t.Errorf("discard: %+v", got)
	}
	holds("after a discard", "box", "link", "other")
	if got := run(t, s.command("apply", "--yes", "fork")); got.code != 0 || content(t, h.real+"/project/three") != "3\n" {
		t.Errorf("apply: %+v", got)
	}
}

// A file system that is mounted below an overlay has a layer of its own. A transaction covers this layer at both paths.
func TestMountBelowAnOverlayWithALinkIsAtBothPaths(t *testing.T) {
	need(t, layersOfAnywhere(t), world())
	s, h := newSandboxes(t), newLinkedHome(t)
	mountUntilEnd(t, "tmpfs", h.real+"/mnt", "tmpfs", 0, "mode=0755")
	s.up("box", "--overlay", h.link)
	s.sh("box", "echo 1 > "+h.real+"/mnt/one")
	s.exec("--transaction", "box", "sh", "-c", "echo 2 > "+h.real+"/mnt/two; exit 1")
	for _, path := range []string{h.link, h.real} {
		if got := s.sh("box", "ls "+path+"/mnt"); got != "one\n" {
			t.Errorf("%s/mnt has %q", path, got)
		}
	}
}

func TestOverlayWithALinkStartsInTheWorkingDirectory(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, h := newSandboxes(t), newLinkedHome(t)
	for _, test := range []struct{ here, overlay, want string }{
		{h.link + "/project", h.link, h.link + "/project"},
		{h.real + "/project", h.link, h.link + "/project"},
		{h.link + "/project", h.real, h.real + "/project"},
		{h.link + "/project", ".", h.link + "/project"},
	} {
		cmd := s.command("do", "--overlay", test.overlay, "--", "pwd")
		cmd.Dir = test.here
		cmd.Env = append(os.Environ(), "PWD="+test.here)
		if got := run(t, cmd); got != (result{0, test.want + "\n", ""}) {
			t.Errorf("in %s, --overlay %s: %+v, want %s", test.here, test.overlay, got, test.want)
		}
	}
}

// The second place is free: a bind or another overlay there stays, and a root that has the path keeps it.
func TestTheSecondPathOfAnOverlayHidesNothing(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, h := newSandboxes(t), newLinkedHome(t)
	other := t.TempDir()
	writeFile(t, other+"/theirs", "")
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--bind", other + ":" + h.real}, "theirs\n"},
		{[]string{"--bind", other + ":" + h.real + "/below"}, "below\n"},
		{[]string{"--overlay", filepath.Dir(h.real)}, "file\nproject\n"},
	} {
		got := s.do(append(test.flags, "--overlay", h.link, "--", "ls", h.real)...)
		if got != (result{0, test.want, ""}) {
			t.Errorf("%q: %+v, want %q", test.flags, got, test.want)
		}
	}
}

// Both places show the directory that was opened, also if its link leads to another directory meanwhile.
func TestASwappedLinkLeadsNoOverlayElsewhere(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, dir := newSandboxes(t), t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(dir+"/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, dir+"/"+name+"/name", name)
	}
	link := dir + "/link"
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Remove(link + ".new")
			_ = os.Symlink([]string{"a", "b"}[n%2], link+".new")
			_ = os.Rename(link+".new", link)
		}
	}()
	for range 10 {
		got := s.do("--overlay", link, "--", "sh", "-c", "cd "+dir+"; cat link/name; for d in a b; do [ ! -e $d ] || cat $d/name; ls -d $d; done 2> /dev/null")
		if got.stdout != "aaa\n" && got.stdout != "bbb\n" {
			t.Errorf("%+v, want one directory at both paths", got)
		}
	}
	close(stop)
	<-ended
}
