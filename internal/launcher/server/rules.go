package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Rules name the users that may use a launcher, besides root and the launcher's own user, and
// bound their requests. The zero value allows no other user.
type Rules struct {
	Peers []Rule `json:"peers"`
}

// A Rule bounds the requests of one user. Its zero value allows sandboxes that see only /usr of the
// host, within the default limits.
type Rule struct {
	// User is a name or a number.
	User UserName `json:"user"`
	// Workspaces are directories. The workspace, the root and all binds must lie below one of
	// them, and must belong to the user.
	Workspaces []string `json:"workspaces,omitempty"`
	// Networks are the networks that the user may ask for. Empty: only "none".
	Networks []spec.Network `json:"networks,omitempty"`
	// NetworkAllow bounds the rules of "allow": each must lie inside one of these.
	NetworkAllow []string `json:"network_allow,omitempty"`
	// UpstreamProxy is the upstream proxy of the user's sandboxes with NetworkProxied, as in a [spec.Config]. "env" is the
	// environment of the launcher. The user cannot choose one. Empty: there is none.
	UpstreamProxy string `json:"upstream_proxy,omitempty"`
	// PIDHost allows the pid namespace of the launcher.
	PIDHost bool `json:"pid_host,omitempty"`
	// Seccomp has the names of the built-in profiles that the user may ask for. Empty: default and
	// strict. Files are refused: the client opens the file, and can hand in another one.
	Seccomp []string `json:"seccomp,omitempty"`
	// Limits are the most that a sandbox may have. Zero fields stand for the default
	// limits of sandboxes.
	Limits spec.Limits `json:"limits,omitzero"`
	// OutputLimit is the most that a detached command may keep of each stream. Zero:
	// 8 MiB.
	OutputLimit spec.Size `json:"output_limit,omitempty"`
	// Sandboxes, Calls and Descriptors bound the user's sandboxes, calls and descriptors at a
	// time.
	Sandboxes   int `json:"sandboxes,omitempty"`
	Calls       int `json:"calls,omitempty"`
	Descriptors int `json:"descriptors,omitempty"`
	// Images is the most bytes that the user's images may have, uncompressed. Zero: the user can have no
	// images.
	Images spec.Size `json:"images,omitempty"`
	// Blanks is the most that a pool keeps for the user. Nil: a quarter of the pool. With 0 the
	// user's sandboxes never come from a pool.
	Blanks *int `json:"blanks,omitempty"`

	uid          uint32
	networkAllow []spec.AddressRule
	// shownUpstream and upstream are those of UpstreamProxy, without and with its password.
	shownUpstream string
	upstream      *spec.Upstream
	// all says that the rule allows every request, as for root.
	all bool
}

// UserName is a user's name or number, in JSON as a string or a number.
type UserName string

// UnmarshalJSON implements [json.Unmarshaler].
func (u *UserName) UnmarshalJSON(data []byte) error {
	var number uint32
	if err := json.Unmarshal(data, &number); err == nil {
		*u = UserName(strconv.FormatUint(uint64(number), 10))
		return nil
	}
	var name string
	if err := json.Unmarshal(data, &name); err != nil {
		return errors.New("write the name or the number of a user")
	}
	*u = UserName(name)
	return nil
}

// DefaultSandboxes is how many sandboxes a user may have if the rule has no number.
const DefaultSandboxes = 16

// defaultPids is how many tasks a sandbox may have if the rule has no number. It is less than the
// default of a sandbox without a rule.
const defaultPids = 128

// The other default bounds of a rule.
const (
	defaultCalls       = 128
	defaultDescriptors = 1024
	defaultOutput      = 8 << 20 // the default of a command
)

// everything is the rule of root and of the launcher's own user. Its bounds keep a mistake
// from taking all resources of the launcher.
func everything(uid uint32) *Rule {
	return &Rule{uid: uid, all: true, Sandboxes: 1 << 20, Calls: 1 << 15, Descriptors: 1 << 17}
}

const maxRules = 1 << 20

// ReadRules reads the rules from a file. It refuses a file that other users than root and the
// launcher's user can write.
func ReadRules(path string) (Rules, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // the open of a FIFO would wait for a writer
	if err != nil {
		return Rules{}, err
	}
	defer f.Close()
	if err := ownRules(f); err != nil {
		return Rules{}, fmt.Errorf("rules %s: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRules))
	if err != nil {
		return Rules{}, err
	}
	r, err := parseRules(data)
	if err != nil {
		return Rules{}, fmt.Errorf("rules %s: %w", path, err)
	}
	return r, nil
}

func ownRules(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("not a regular file")
	}
	if st.Size > maxRules {
		return fmt.Errorf("%d bytes; at most %d are read", st.Size, maxRules)
	}
	if st.Uid != 0 && st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0 {
		return errors.New("others may write the file; chown it to root and chmod it to 0600")
	}
	return nil
}

func parseRules(data []byte) (Rules, error) {
	var r Rules
	if err := spec.DecodeJSON(data, &r, "file"); err != nil {
		return Rules{}, err
	}
	seen := map[uint32]bool{}
	for i := range r.Peers {
		p := &r.Peers[i]
		if err := p.complete(); err != nil {
			return Rules{}, fmt.Errorf("peers[%d]: %w", i, err)
		}
		if seen[p.uid] {
			return Rules{}, fmt.Errorf("peers[%d]: a second rule for user %s", i, p.User)
		}
		seen[p.uid] = true
	}
	return r, nil
}

// overflowUID stands for each user without a number here (user_namespaces(7)).
const overflowUID = 65534

// complete checks the rule and fills in defaults.
func (r *Rule) complete() error {
	uid, err := r.User.uid()
	if err != nil {
		return err
	}
	switch uid {
	case 0:
		return errors.New("user: root may do everything; remove the rule for root")
	case overflowUID:
		return errors.New("user: 65534 stands for all users from other user namespaces; name another user")
	}
	r.uid = uid
	for i, dir := range r.Workspaces {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("workspaces[%d]: %q is not an absolute path", i, dir)
		}
		// Descriptors are compared with the files to which paths lead.
		resolved, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return fmt.Errorf("workspaces[%d]: %w", i, err)
		}
		r.Workspaces[i] = resolved
	}
	for i, network := range r.Networks {
		if !slices.Contains(spec.Networks(), network) {
			return fmt.Errorf("networks[%d]: unknown network %q; use %q", i, network, spec.Networks())
		}
	}
	if len(r.Networks) == 0 {
		r.Networks = []spec.Network{spec.NetworkNone}
	}
	if err := errors.Join(r.readNetworkAllow(), r.readUpstream(), r.readSeccomp()); err != nil {
		return err
	}
	for _, bound := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"sandboxes", &r.Sandboxes, DefaultSandboxes},
		{"calls", &r.Calls, defaultCalls},
		{"descriptors", &r.Descriptors, defaultDescriptors},
	} {
		if *bound.value < 0 {
			return fmt.Errorf("%s: %d is negative", bound.name, *bound.value)
		}
		*bound.value = cmp.Or(*bound.value, bound.fallback)
	}
	if r.Blanks != nil && *r.Blanks < 0 {
		return fmt.Errorf("blanks: %d is negative", *r.Blanks)
	}
	if r.OutputLimit < 0 {
		return fmt.Errorf("output_limit: %d is negative", r.OutputLimit)
	}
	r.OutputLimit = cmp.Or(r.OutputLimit, defaultOutput)
	if r.Images < 0 {
		return fmt.Errorf("images: %d is negative", r.Images)
	}
	r.Limits.Pids = cmp.Or(r.Limits.Pids, defaultPids)
	c, err := spec.Config{Limits: r.Limits}.Complete()
	r.Limits = c.Limits
	return err
}

func (r *Rule) readNetworkAllow() error {
	hasFull, hasProxied := slices.Contains(r.Networks, spec.NetworkFull), slices.Contains(r.Networks, spec.NetworkProxied)
	if len(r.NetworkAllow) > 0 && !hasFull && !hasProxied {
		return errors.New(`network_allow: add "proxied" or "full" to networks`)
	}
	r.networkAllow = nil
	for i, text := range r.NetworkAllow {
		rule, err := spec.ParseAddressRule(text)
		if err == nil {
			r.networkAllow = append(r.networkAllow, rule)
		}
		if hasProxied { // then it may be a rule for names
			_, err = rules.Parse(text)
		}
		if err != nil {
			return fmt.Errorf("network_allow[%d]: %w", i, err)
		}
	}
	return nil
}

func (r *Rule) readSeccomp() error {
	if len(r.Seccomp) == 0 {
		r.Seccomp = []string{"default", "strict"}
	}
	for i, profile := range r.Seccomp {
		if !slices.Contains(seccomp.Names(), profile) {
			return fmt.Errorf("seccomp[%d]: %q is not a built-in profile; use %q", i, profile, seccomp.Names())
		}
	}
	return nil
}

func (u UserName) uid() (uint32, error) {
	if number, err := strconv.ParseUint(string(u), 10, 32); err == nil {
		return uint32(number), nil
	}
	if u == "" {
		return 0, errors.New("user: is missing")
	}
	known, err := user.Lookup(string(u))
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(known.Uid, 10, 32)
	return uint32(number), err
}

// forUser returns the rule for a user, or nil.
func (r Rules) forUser(uid uint32) *Rule {
	if uid == 0 || uid == uint32(os.Geteuid()) {
		return everything(uid)
	}
	if i := slices.IndexFunc(r.Peers, func(p Rule) bool { return p.uid == uid }); i >= 0 {
		return &r.Peers[i]
	}
	return nil
}
