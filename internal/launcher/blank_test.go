package launcher

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// defaultKind is the kind of the blanks of newPooledLauncher.
func defaultKind(t *testing.T) string {
	t.Helper()
	config, err := part.Completed(spec.Config{}, spec.StorageMemory)
	if err != nil {
		t.Fatal(err)
	}
	wanted, _ := templateOf(protocol.Create{Config: config}, Sources{}, part.ImageRoot{})
	kind, err := wanted.kind()
	if err != nil {
		t.Fatal(err)
	}
	return kind
}

// A blank whose process hangs while the blank is made is given up when its time is over. libcontainer alone would
// wait without end.
func TestABlankThatHangsIsGivenUp(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	kind := defaultKind(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	made := make(chan error, 1)
	go func() {
		_, err := (&blanks{launcher: l}).newBlank(ctx, kind, true)
		made <- err
	}()
	testhost.Eventually(t, "the first process of the blank", func() bool { return stopChild(t) })
	cancel()
	select {
	case err := <-made:
		if err != context.Canceled { // it is not joined with another error
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the launcher still waits for the blank")
	}
	checkNothingLeft(t, l)
}

// An error for want of descriptors says that, and no feature of the host.
func TestAnExhaustedLauncherSaysSo(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EMFILE: "too many open files", unix.EAGAIN: "no room for another process"} {
		err := explain(t.Context(), &os.PathError{Op: "open", Path: "/x", Err: errno})
		if !errors.Is(err, fault.ErrUnavailable) || !errors.Is(err, errno) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}
