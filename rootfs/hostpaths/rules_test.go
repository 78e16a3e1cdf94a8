package hostpaths

import (
	"errors"
	"testing"
)

func TestNeverWritablePlaces(t *testing.T) {
	r := &Rules{}
	for _, p := range []string{
		"/", "/etc", "/etc/x", "/usr", "/usr/local/share", "/bin", "/bin/x", "/sbin", "/lib", "/lib64", "/libx32/y",
		"/boot", "/boot/efi", "/dev", "/dev/shm", "/proc", "/proc/1", "/sys", "/sys/fs", "/run", "/run/user/0",
		"/root", "/root/proj", "/var", "/var/lib/x", "/var/tmpx",
	} {
		for _, c := range []struct{ given, resolved string }{{p, p}, {p, "/srv/ok"}, {"/srv/ok", p}} {
			var forbidden *ForbiddenError
			err := r.Check(c.given, c.resolved, true)
			if !errors.As(err, &forbidden) {
				t.Errorf("%s leading to %s is allowed", c.given, c.resolved)
				continue
			}
			if forbidden.Path != c.given || forbidden.Resolved != c.resolved || forbidden.Rule == "" {
				t.Errorf("%+v for %s leading to %s", forbidden, c.given, c.resolved)
			}
		}
	}
	for _, p := range []string{"/var/tmp", "/var/tmp/x", "/home", "/home/u/proj", "/srv/x", "/tmp/x", "/etcetera", "/rooted", "/opt/x"} {
		if err := r.Check(p, p, true); err != nil {
			t.Error(err)
		}
	}
}

func TestReadOnlyBindsMayBeSensitiveButNotEverything(t *testing.T) {
	r := &Rules{private: []string{"/run/own"}}
	for _, p := range []string{"/etc/shadow", "/root/.ssh", "/usr", "/run/other", "/boot"} {
		if err := r.Check(p, p, false); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"/", "/proc", "/proc/1/root", "/sys/fs", "/dev", "/dev/null", "/run", "/run/own", "/run/own/x"} {
		if r.Check(p, p, false) == nil || r.Check("/ok", p, false) == nil || r.Check(p, "/ok", false) == nil {
			t.Errorf("%s is allowed", p)
		}
	}
}
