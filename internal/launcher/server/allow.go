package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// refused is the error for a request that the rules do not allow.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", fault.ErrRefused, fmt.Sprintf(format, args...))
}

// allow holds a request to the rule, and replaces default limits by the most that the rule
// allows. files came with the request, by path.
func (r *Rule) allow(c *protocol.Create, files map[string]*os.File) error {
	if err := c.Config.CheckNetworkLimits(); err != nil {
		return fault.Refusal(err)
	}
	if r.all {
		return nil
	}
	if err := allowSize(c.Config); err != nil {
		return err
	}
	// The launcher would show interpreters outside /usr with its own rights.
	c.Path, c.Home = "", ""
	config := &c.Config
	grant := config.Grant()
	var err error
	if c.Named, err = r.allowGrant(&grant); err != nil {
		return err
	}
	if c.Upstream, err = r.setUpstream(&grant, c.Upstream); err != nil {
		return err
	}
	config.UpstreamProxy = grant.UpstreamProxy
	if config.PID == spec.PIDHost && !r.PIDHost {
		return refused("pid namespace %q; a rule with pid_host allows it", config.PID)
	}
	if config.Image != "" && r.Images == 0 {
		return errNoImages
	}
	if profile := cmp.Or(config.Seccomp, "default"); !slices.Contains(r.Seccomp, profile) {
		return refused("seccomp profile %q; allowed: %v", profile, r.Seccomp)
	}
	if err := r.allowLimits(&config.Limits, true); err != nil {
		return err
	}
	paths := append([]string{config.Rootfs, config.Workspace}, config.Overlays...)
	for _, b := range config.Binds {
		paths = append(paths, b.Source)
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := r.allowSource(path, files[path]); err != nil {
			return err
		}
	}
	for _, b := range config.Binds {
		if err := writable(b, files[b.Source]); err != nil {
			return err
		}
	}
	return nil
}

// allowGrant checks a network against the rule. A nil grant changes no network. The network none
// needs no rule. named are as in a [protocol.NetworkRequest].
func (r *Rule) allowGrant(g *spec.NetworkGrant) (named []string, err error) {
	if r.all || g == nil {
		return nil, nil
	}
	if err := allowSize(spec.Config{}.WithNetwork(*g)); err != nil {
		return nil, err
	}
	if len(g.Publish) > 0 {
		return nil, refused("publish: only root may use it in this version; use Dial to reach a port")
	}
	network := g.Kind()
	if network != spec.NetworkNone && !slices.Contains(r.Networks, network) {
		return nil, refused("network %q; allowed: %v", network, r.Networks)
	}
	if network == spec.NetworkProxied {
		return nil, r.allowNames(g)
	}
	for _, text := range g.Allow {
		isNamed, err := r.allowAddress(text)
		if err != nil {
			return nil, err
		}
		if isNamed {
			named = append(named, text)
		}
	}
	return named, nil
}

// allowAddress checks one rule of "allow". isNamed says that root has named its single address.
func (r *Rule) allowAddress(text string) (isNamed bool, err error) {
	asked, err := spec.ParseAddressRule(text)
	if err != nil {
		return false, &fault.ConfigError{Reason: "allow: " + err.Error()}
	}
	isAllowed := false
	for _, allowed := range r.networkAllow {
		if allowed.Covers(asked) {
			isAllowed = true
			isNamed = isNamed || allowed.Prefix.IsSingleIP()
		}
	}
	if !isAllowed {
		return false, refused("allow %q; network_allow of the rule for user %s allows: %v; root can add it there", text, r.User, r.NetworkAllow)
	}
	return isNamed, nil
}

// allowNames checks the rules of the proxied network. A user with the network full reaches all public addresses
// already. So only the names for other users need an entry of network_allow, and addresses always need one. With an
// upstream proxy the names of all users need one: the proxy chooses the addresses, and these can be private.
func (r *Rule) allowNames(g *spec.NetworkGrant) error {
	isFree := slices.Contains(r.Networks, spec.NetworkFull) && r.upstream == nil
	switch {
	case !g.Observe && !g.Ask || isFree:
	case r.upstream != nil:
		return refused("observe or ask: they can reach each name, and the upstream proxy of the rule may lead names to private addresses; use allow")
	default:
		return refused("observe or ask: they can reach each public name; a rule with the network %q allows them", spec.NetworkFull)
	}
	allowed, err := rules.ParseAll(r.NetworkAllow)
	if err != nil {
		return err
	}
	asked, err := rules.ParseAll(g.Allow)
	if err != nil {
		return &fault.ConfigError{Reason: "allow" + err.Error()}
	}
	for _, one := range asked {
		if isFree && !one.IsAddress() || slices.ContainsFunc(allowed, func(a rules.Rule) bool { return a.Covers(one) }) {
			continue
		}
		reason := ""
		if one.IsAddress() {
			reason = " (a range there does not cover one address of it)"
		}
		return refused("allow %q; network_allow of the rule for user %s allows: %v%s; root can add it there", one, r.User, r.NetworkAllow, reason)
	}
	return nil
}

// maxConfig and maxConfigValues bound a configuration, in bytes and in JSON values. The launcher
// keeps the configuration as long as the sandbox is up. A change of the network has the same bounds.
const (
	maxConfig       = 256 << 10
	maxConfigValues = 20_000
)

func allowSize(c spec.Config) error {
	kept, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(kept) > maxConfig {
		return refused("a configuration of %d bytes; at most %d are allowed", len(kept), maxConfig)
	}
	if err := protocol.CheckValues(kept, maxConfigValues); err != nil {
		return refused("a configuration with %v", err)
	}
	return nil
}

// allowLimits refuses limits above the limits of the rule. With fill it sets each missing limit to
// the default, or to the rule's limit if it is lower.
func (r *Rule) allowLimits(l *spec.Limits, fill bool) error {
	if r.all {
		return nil
	}
	for _, f := range spec.LimitFields() {
		if fill && !f.Given(*l) {
			c := spec.Config{Limits: *l}
			f.Complete(&c)
			f.Tighten(&c.Limits, r.Limits)
			*l = c.Limits
		}
		if f.Above(*l, r.Limits) {
			return refused("limits.%s: %s; at most %s is allowed", f.Name, f.Text(*l), f.Text(r.Limits))
		}
	}
	return nil
}

// allowOutput refuses an output limit of a detached command above the rule's. It sets a missing
// limit to the default, or to the rule's limit if it is lower.
func (r *Rule) allowOutput(c *spec.Command) error {
	if r.all || !c.Detached || c.OutputLimit < 0 { // which the launcher refuses
		return nil
	}
	c.OutputLimit = cmp.Or(c.OutputLimit, min(defaultOutput, int64(r.OutputLimit)))
	if c.OutputLimit > int64(r.OutputLimit) {
		return refused("output_limit %s of a detached command; at most %s of each stream is kept", spec.Size(c.OutputLimit), r.OutputLimit)
	}
	return nil
}

// allowSource decides whether the sandbox may see a path, by the client's descriptor alone. The
// descriptor proves that the client can read the file and owns it. So the client uses none of the
// launcher's rights.
func (r *Rule) allowSource(path string, f *os.File) error {
	if len(path) >= unix.PathMax {
		return refused("a path of %d bytes; the kernel takes less than %d", len(path), unix.PathMax)
	}
	if f == nil {
		return refused("%s: the client must open it itself", path)
	}
	flags, st, place, err := inspect(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	isSocket := st.Mode&unix.S_IFMT == unix.S_IFSOCK // then package rootfs checks that the client may connect
	switch {
	case flags&unix.O_PATH != 0 && !isSocket, flags&unix.O_ACCMODE == unix.O_WRONLY:
		return refused("%s: you cannot read it", path)
	case st.Uid != r.uid:
		return refused("%s: it does not belong to you", path)
	case !slices.ContainsFunc(r.Workspaces, func(dir string) bool { return within(place, dir) }):
		return refused("%s: it does not lie in any of the allowed directories %v", path, r.Workspaces)
	}
	return nil
}

// writable refuses a writable bind of a file if the file's descriptor is not open for writing. A
// directory is never open for writing, and needs no check here: its owner may write.
func writable(b spec.Bind, f *os.File) error {
	if !b.Writable {
		return nil
	}
	flags, st, _, err := inspect(f)
	if err != nil {
		return fmt.Errorf("%s: %w", b.Source, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFSOCK && flags&unix.O_ACCMODE != unix.O_RDWR {
		return refused("%s: you cannot write it", b.Source)
	}
	return nil
}

// ownPipes refuses a command's files that belong to another user. The command's user
// becomes the owner of these files, and may open them again in both directions. With one end of
// another user's pipe, such as a standard output, the command would get the other end, too.
func (r *Rule) ownPipes(files [3]*os.File) error {
	if r.all {
		return nil
	}
	for i, f := range files {
		if f == nil {
			continue
		}
		_, st, _, err := inspect(f)
		if err != nil {
			return fmt.Errorf("descriptor %d of a command: %w", i, err)
		}
		if st.Uid != r.uid {
			return refused("descriptor %d of a command belongs to user %d; make a pipe of your own for each command", i, st.Uid)
		}
	}
	return nil
}

// inspect says how a descriptor was opened, and describes its file.
func inspect(f *os.File) (flags int, st unix.Stat_t, place string, err error) {
	err = descriptor.Use(f, func(fd int) (err error) {
		if flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil {
			return err
		}
		if err = unix.Fstat(fd, &st); err != nil {
			return err
		}
		place, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		return err
	})
	return flags, st, place, err
}

func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
