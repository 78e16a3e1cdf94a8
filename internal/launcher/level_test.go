package launcher

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The level in a record counts although a process was killed before it brought the level to disk.
func TestTheLevelOfARecordOutlivesItsSandbox(t *testing.T) {
	for name, end := range map[string]func(*Launcher) error{
		"replaced": func(*Launcher) error { return nil },
		"pruned": func(l *Launcher) error {
			_, err := l.Prune(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			sb := createUp(t, l, "box", spec.Config{Sensitivity: spec.SensitivityInternal})
			if err := l.networks().ForgetLevel("box", 0); err != nil {
				t.Fatal(err)
			}
			killInit(t, sb)
			if err := end(l); err != nil {
				t.Fatal(err)
			}
			again, err := l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true}, Sources{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = again.Close() })
			if info, err := again.Info(); err != nil || info.Config.Sensitivity != spec.SensitivityInternal {
				t.Errorf("%+v, %v", info.Config, err)
			}
		})
	}
}

// A sandbox that its owner has not removed keeps the level of its name.
func TestOnlyARemovalByTheOwnerEndsALevel(t *testing.T) {
	l := newTestLauncher(t)
	newBox := func() *Sandbox {
		t.Helper()
		sb, err := l.Create(t.Context(), protocol.Create{Name: "box"}, Sources{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sb.Close() })
		return sb
	}
	level := func(sb *Sandbox) spec.Sensitivity {
		t.Helper()
		info, err := sb.Info()
		if err != nil {
			t.Fatal(err)
		}
		return info.Config.Sensitivity
	}
	first := newBox()
	if _, err := first.ChangeNetwork(t.Context(), protocol.NetworkRequest{Sensitivity: spec.SensitivitySecret}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Abandon(t.Context(), "box", Condition{}); err != nil {
		t.Fatal(err)
	}
	if got := level(newBox()); got != spec.SensitivitySecret {
		t.Errorf("after the client has gone: %s", got)
	}
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if got := level(newBox()); got != spec.SensitivityPublic {
		t.Errorf("after a removal: %s", got)
	}
}

// A snapshot can be replaced while a fork begins with it. The fork then never has the files of a higher
// level with its own level.
func TestAForkRefusesASnapshotThatWasReplaced(t *testing.T) {
	l := newTestLauncher(t)
	snapshotOf := func(name string, c spec.Config) *Sandbox {
		t.Helper()
		c.Storage = spec.StorageDisk
		sb := createUp(t, l, name, c)
		if err := sb.Snapshot(t.Context(), "snap"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.RemoveSnapshot(t.Context(), "snap", 0) })
		return sb
	}
	public := snapshotOf("public", spec.Config{})
	r := public.session.Current()
	m := &creation{launcher: l, Making: l.parts.NewMaking("fork", protocol.Create{From: "snap", Config: r.Config}, Sources{})}
	if err := m.inherit(); err != nil {
		t.Fatal(err)
	}
	m.Record = r
	s, err := l.layers.ReadSnapshot("snap", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveSnapshot(t.Context(), "snap", 0); err != nil {
		t.Fatal(err)
	}
	snapshotOf("secret", spec.Config{Sensitivity: spec.SensitivitySecret})
	for name, fork := range map[string]func() error{
		"before its description was read": func() error { return m.fork(t.Context()) },
		"after its description was read": func() error {
			_, err := l.layers.Files(record.NewSandbox(l.Roots, "public", nil, r), nil).Fork(t.Context(), "snap", s)
			return err
		},
	} {
		var refused *fault.ConfigError
		if err := fork(); !errors.As(err, &refused) || !strings.Contains(err.Error(), "was replaced meanwhile") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A name with a level gets a note for each part of the network that the level takes.
func TestALevelOfTheNameIsTold(t *testing.T) {
	l := newTestLauncher(t)
	if err := l.networks().KeepLevel("box", record.Record{Config: spec.Config{Sensitivity: spec.SensitivityConfidential}}); err != nil {
		t.Fatal(err)
	}
	for note, c := range map[string]spec.Config{
		"the network proxied, not full": {Network: spec.NetworkFull},
		"is not observed":               {Network: spec.NetworkProxied, Observe: true},
	} {
		m := &creation{launcher: l, Making: l.parts.NewMaking("box", protocol.Create{Config: c}, Sources{})}
		if err := m.inherit(); err != nil {
			t.Fatal(err)
		}
		if got := m.Request.Config; got.Network != spec.NetworkProxied || got.Observe || len(m.Notes) != 1 || !strings.Contains(m.Notes[0], note) {
			t.Errorf("%+v, %q; want a note with %q", got.Grant(), m.Notes, note)
		}
	}
}
