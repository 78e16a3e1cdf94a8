package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/netns/capture"
)

// ErrUnknown means that the proxied network does not have the sandbox.
var ErrUnknown = errors.New("the proxied network does not have the sandbox")

// An Egress is the proxied network of one state root. It may be used by several goroutines and processes.
type Egress struct {
	// Dir is a directory of root's. Egress makes it.
	Dir string

	// idle is how long the processes live without a sandbox; zero: idleTime.
	idle time.Duration
	// answerTime is how long an embedder has for an answer; zero: answerTime.
	answerTime time.Duration
}

// A Box has the rules of one sandbox.
type Box = link.Box

// Counts are the requests and bytes of a sandbox.
type Counts = link.Counts

// An Event is one decision about a name or a connection.
type Event = link.Event

// withRoles lists the sockets of a sandbox with their roles.
func withRoles(l *capture.Listeners) (files []*os.File, roles []link.Role) {
	for _, g := range []struct {
		files []*os.File
		role  link.Role
	}{{l.Streams, link.Streams}, {l.DNSPackets, link.DNSPackets}, {l.DNSStreams, link.DNSStreams}} {
		files = append(files, g.files...)
		roles = append(roles, slices.Repeat([]link.Role{g.role}, len(g.files))...)
	}
	return files, roles
}

// check refuses a box that the worker could not use.
func check(b Box) error {
	if !isKey(b.Key) {
		return fmt.Errorf("invalid key %.80q: use 1 to %d letters, digits, _+-.@", b.Key, maxKey)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if len(text) > link.MaxRules {
		return fmt.Errorf("the rules have %d bytes as JSON; the most are %d", len(text), link.MaxRules)
	}
	if b.Upstream != nil {
		if _, err := upstream.New(*b.Upstream); err != nil {
			return err
		}
	}
	_, err = rules.New(b.Allow, b.Deny)
	return err
}

// maxKey is the length of the longest key, in bytes.
const maxKey = 200

// isKey says whether a key can be the name of a directory.
func isKey(key string) bool {
	const usual = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-.@"
	return key != "" && len(key) <= maxKey && key[0] != '.' && strings.Trim(key, usual) == ""
}

// Admit adds a sandbox, or replaces the rules and sockets of the sandbox with this key. Its open
// connections end then. Names keep their addresses as long as the sandbox is not dismissed. When Admit
// returns, the sockets are served. The sockets stay the caller's.
func (e Egress) Admit(ctx context.Context, b Box, l *capture.Listeners) error {
	if err := check(b); err != nil {
		return err
	}
	files, roles := withRoles(l)
	if len(files) == 0 || len(files) > link.MaxSockets {
		return fmt.Errorf("sandbox %s has %d sockets; give it 1 to %d", b.Key, len(files), link.MaxSockets)
	}
	channel, unlock, err := e.connectOrStart(ctx)
	if err != nil {
		return fmt.Errorf("admit sandbox %s: %w", b.Key, err)
	}
	defer unlock()
	defer channel.Close()
	if _, err := call(ctx, channel, request{Op: opAdmit, Key: b.Key, Box: &b, Roles: roles}, files...); err != nil {
		if isNoParent(err) { // it was killed, or has no descriptors
			err = errNoAnswer
		}
		return fmt.Errorf("admit sandbox %s: %w", b.Key, err)
	}
	return nil
}

// Change changes the rules of a sandbox. When Change returns, they are in force, and the connections that
// they do not permit have ended. The error is [ErrUnknown] for a sandbox that is not there.
func (e Egress) Change(ctx context.Context, b Box) error {
	if err := check(b); err != nil {
		return err
	}
	if _, err := e.callParent(ctx, request{Op: opChange, Key: b.Key, Box: &b}); err != nil {
		return fmt.Errorf("change the rules of sandbox %s: %w", b.Key, err)
	}
	return nil
}

// Suspend closes the sockets of a sandbox and ends its connections. Its names, counts and events stay for a
// later Admit. A sandbox that is not there is no error.
func (e Egress) Suspend(ctx context.Context, key string) error {
	if _, err := e.callParent(ctx, request{Op: opSuspend, Key: key}); err != nil && !errors.Is(err, ErrUnknown) {
		return fmt.Errorf("suspend sandbox %s: %w", key, err)
	}
	return nil
}

// Withhold is Suspend for a sandbox that must not be served again without a new decision. The mark lasts until the
// next Admit, or until the parent is killed.
func (e Egress) Withhold(ctx context.Context, key string) error {
	if _, err := e.callParent(ctx, request{Op: opWithhold, Key: key}); err != nil && !errors.Is(err, ErrUnknown) {
		return fmt.Errorf("withhold the network from sandbox %s: %w", key, err)
	}
	return nil
}

// IsWithheld says whether Withhold has marked the sandbox.
func (e Egress) IsWithheld(ctx context.Context, key string) (bool, error) {
	a, err := e.callParent(ctx, request{Op: opHas, Key: key})
	if errors.Is(err, ErrUnknown) {
		return false, nil
	}
	return a.IsWithheld, err
}

// Keys are the sandboxes that are on disk, also those of a parent that was killed.
func (e Egress) Keys() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(e.Dir, boxesName))
	var keys []string
	for _, entry := range entries {
		keys = append(keys, entry.Name())
	}
	return keys, erase.IgnoreMissing(err)
}

// Prune removes the files of a killed parent without sandboxes. Prune does nothing while another process holds
// the lock.
func (e Egress) Prune() error {
	f, err := os.OpenFile(e.Dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	defer f.Close()
	if got, err := descriptor.TryLock(f); !got {
		return err
	}
	channel, err := e.connect()
	if err == nil {
		return channel.Close()
	}
	if !isNoParent(err) {
		return err
	}
	err = erase.IgnoreMissing(os.Remove(filepath.Join(e.Dir, boxesName)))
	if errors.Is(err, unix.ENOTEMPTY) { // the next parent needs both files for its sandboxes
		return nil
	}
	return errors.Join(err, erase.IgnoreMissing(os.Remove(e.socket())))
}

// Keeps says whether the sandbox is on disk. A parent without room on the disk can have a sandbox that is not
// there.
func (e Egress) Keeps(key string) bool { return statedir.Exists(e.boxDir(key)) }

// Dismiss removes a sandbox, also one that is not there: its sockets are closed, its connections end, and
// its names and events are forgotten.
func (e Egress) Dismiss(ctx context.Context, key string) error {
	if !isKey(key) || !statedir.Exists(e.Dir) {
		return nil
	}
	unlock, err := e.lock(ctx, descriptor.Shared)
	if err != nil {
		return fmt.Errorf("dismiss sandbox %s: %w", key, err)
	}
	defer unlock()
	if _, err := e.callParent(ctx, request{Op: opDismiss, Key: key}); err != nil && !errors.Is(err, ErrUnknown) {
		return fmt.Errorf("dismiss sandbox %s: %w", key, err)
	}
	// The parent may have been killed before.
	return statedir.RemoveAll(e.boxDir(key))
}

// Has says whether the sandbox is served.
func (e Egress) Has(ctx context.Context, key string) (bool, error) {
	a, err := e.callParent(ctx, request{Op: opHas, Key: key})
	if errors.Is(err, ErrUnknown) {
		return false, nil
	}
	return a.IsServed, err
}

// Counts returns the counts of a sandbox since it was admitted first, or since the parent was killed. They have the
// connections that have ended before the call, and the bytes of open ones until now.
// The error is [ErrUnknown] for a sandbox that is not there.
func (e Egress) Counts(ctx context.Context, key string) (Counts, error) {
	a, err := e.callParent(ctx, request{Op: opCounts, Key: key})
	return a.Counts, err
}

func (e Egress) boxDir(key string) string { return filepath.Join(e.Dir, boxesName, key) }
