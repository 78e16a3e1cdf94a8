package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// routerDir is a directory of the state root. No container has a name with "@".
const routerDir = "@network"

func (l *Launcher) router() router.Router {
	return router.Router{Dir: filepath.Join(l.State, routerDir), Resolv: "/etc/resolv.conf"}
}

// linkName is the name of the sandbox's device in the router. No two sandboxes have the same
// names, at any time, and so none the same link.
func linkName(n record.Names) string {
	hash := sha256.Sum256([]byte(n.Cgroup))
	return "s-" + hex.EncodeToString(hash[:6])
}

// newMember is the sandbox of a record, in the router.
func newMember(n record.Names, r record.Record) (router.Member, error) {
	m := router.Member{
		Link: linkName(n), Number: idrange.Number(r.IDBase),
		Rate: uint64(r.Config.Limits.NetworkRate), Quota: uint64(r.Config.Limits.NetworkQuota),
	}
	var err error
	if m.Allow, err = addressRules(r.Config.Allow); err == nil {
		m.Deny, err = addressRules(r.Config.Deny)
	}
	for _, text := range r.Config.Publish {
		port, wrong := spec.ParsePublishedPort(text)
		err = errors.Join(err, wrong)
		m.Publish = append(m.Publish, port)
	}
	return m, err
}

func addressRules(texts []string) (rules []spec.AddressRule, err error) {
	for _, text := range texts {
		rule, err := spec.ParseAddressRule(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// connect starts to connect the sandbox with the outside, if the configuration asks for that. A
// goroutine does so while the launcher does other steps: the kernel takes some milliseconds for a
// link. The caller must call wait before the sandbox is up, and before it is removed after an error.
func (m *making) connect() (wait func() error) {
	if m.request.Config.Network != spec.NetworkFull {
		return func() error { return nil }
	}
	member, err := newMember(m.names, m.record)
	if err != nil {
		return func() error { return err }
	}
	attached := sync.OnceValue(func() error { return m.attach(member) })
	go func() { _ = attached() }() // the caller gets the error
	return attached
}

func (m *making) attach(member router.Member) error {
	namespace, err := m.network()
	if err != nil {
		return err
	}
	if err := m.launcher.router().Attach(namespace, member); err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			err = launch.Unavailable(err)
		}
		return fmt.Errorf("--network full: %w", err)
	}
	return nil
}

// publish opens the published ports of the sandbox. PID 1 has started: the ports close with its end.
func (m *making) publish() error {
	if len(m.request.Config.Publish) == 0 {
		return nil
	}
	member, err := newMember(m.names, m.record)
	if err != nil {
		return err
	}
	namespace, err := m.network()
	if err != nil {
		return err
	}
	return m.launcher.router().Publish(namespace, m.record.Init, member)
}

// livingLinks tells the links of sandboxes, also of half-made ones: the names are written before
// the sandbox is connected.
func (l *Launcher) livingLinks() func(link string) (bool, error) {
	living := sync.OnceValues(func() (map[string]bool, error) {
		links := map[string]bool{}
		ids, err := l.find.known()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			names, known, err := l.NamesOf(id)
			if err != nil {
				return nil, err
			}
			if known {
				links[linkName(names)] = true
			}
		}
		return links, nil
	})
	return func(link string) (bool, error) {
		links, err := living()
		return links[link], err
	}
}

// disconnect ends the connection of a sandbox that is being removed. Its processes have ended. A
// half-made sandbox has no record, and may be connected.
func (l *Launcher) disconnect(id, dir string) error {
	if !statedir.Exists(filepath.Join(l.State, routerDir)) {
		return nil
	}
	names, known, err := l.NamesOf(id)
	if err != nil || !known {
		return err
	}
	link := linkName(names)
	if r, err := record.Read(dir); err == nil && r.Config.Network != spec.NetworkFull && !r.Rewiring && !l.router().HasNote(link) {
		return nil
	}
	_, err = l.router().Detach(nil, link)
	return err
}
