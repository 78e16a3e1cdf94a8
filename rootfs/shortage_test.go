package rootfs

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/etcfiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// Without descriptors no file of the host can be read. That says nothing about the files.
func TestTooManyOpenFilesDoNotHideFilesOfTheHost(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/php/8.2/cli/conf.d/20-mbstring.ini", "")
	for name, look := range map[string]func() error{
		"homes of an overlay": func() error { return new(hostpaths.Rules).HideSecrets("/nowhere") },
		"stamps":              func() error { return new(stamps.Collector).AddPattern(dir, "php/"+etcfiles.PHPConfigured) },
		"names below /etc": func() error {
			_, err := etcfiles.Names("/etc", []string{"xml", "dpkg"})
			return err
		},
		"modules of PHP": func() error {
			_, err := etcfiles.PHPModules(dir+"/php", "/usr/lib/php")
			return err
		},
	} {
		testhost.WithFreeDescriptors(t, 0, func() {
			if err := look(); !errors.Is(err, unix.EMFILE) {
				t.Errorf("%s: %v", name, err)
			}
		})
		if err := look(); err != nil {
			t.Errorf("%s, afterwards: %v", name, err)
		}
	}
}

func TestAnUpgradeIsPresumedIfTooManyFilesAreOpen(t *testing.T) {
	begin := time.Now()
	testhost.WithFreeDescriptors(t, 0, func() {
		if last := Upgraded(); last.Before(begin) {
			t.Errorf("the last change was at %s", last)
		}
	})
	if last := Upgraded(); last.After(begin) {
		t.Errorf("afterwards it was at %s", last)
	}
}
