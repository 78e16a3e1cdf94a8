package sandbox

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// SetNetwork changes the network of the sandbox while it runs. The new network holds before
// SetNetwork returns: connections that the new network does not permit have ended, and their
// readers and writers in the sandbox get the error ECONNABORTED or ECONNRESET. Processes and files stay. If the
// host's network returns an error, the sandbox has no network. It can have none, too, if ctx ends first.
//
// Errors: *ConfigError, also for a network that the sensitivity of the sandbox does not permit.
func (s *Sandbox) SetNetwork(ctx context.Context, grant NetworkGrant) (NetworkChange, error) {
	return s.changeNetwork(ctx, &grant, "")
}

// RaiseSensitivity raises the sensitivity of the sandbox, and narrows its network to the widest one
// that the new level permits, as SetNetwork does. The level is on disk before the network changes. No
// call lowers the level: a level below the present one changes nothing. Close and the command "down" end
// the level.
func (s *Sandbox) RaiseSensitivity(ctx context.Context, level Sensitivity) (NetworkChange, error) {
	return s.changeNetwork(ctx, nil, level)
}

func (s *Sandbox) changeNetwork(ctx context.Context, grant *NetworkGrant, level Sensitivity) (NetworkChange, error) {
	return query(s, "change of the network", func(n NetworkChanger) (NetworkChange, error) { return n.ChangeNetwork(ctx, grant, level) })
}

// NetworkEvents are the decisions of NetworkProxied about the sandbox, the oldest first. The last 500 KiB of them
// are kept at least. With follow the sequence goes on until ctx ends, or until the sandbox is removed. Names and
// reasons contain texts of the sandbox, without control characters.
func (s *Sandbox) NetworkEvents(ctx context.Context, follow bool) iter.Seq2[NetworkEvent, error] {
	return func(yield func(NetworkEvent, error) bool) {
		err := withAbility(s, "log of the network", func(n NetworkLogger) error {
			for event, err := range n.NetworkEvents(ctx, follow) {
				if err != nil {
					return err
				}
				if !yield(event, nil) {
					return errEnough
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(NetworkEvent{}, err)
		}
	}
}

// A NetworkQuestion asks whether a sandbox may make a connection, or a request of plain HTTP. The sandbox chooses
// all texts. They have visible ASCII characters only.
type NetworkQuestion struct {
	Name string
	Port uint16
	// Method and Path are those of a request. They are empty for a connection. The path has no query.
	Method, Path string
}

// DecideNetwork decides about the connections and requests of a sandbox with Config.Ask to names that no rule
// covers. It calls allow for each one in a goroutine of its own, for 64 at most at a time. The result true allows
// this one connection or request, if the address of the server is public or has a rule. The context of a call ends
// after 30 seconds, or when a change of the network ends the connection: the connection is refused then. While 64
// calls run, other connections are refused, so allow should return soon after its context ends. A sandbox has one
// caller of DecideNetwork at a time.
//
// DecideNetwork returns when ctx ends, when SetNetwork grants NetworkProxied without Ask, when the sandbox is
// removed, or when the processes of the network end. SetNetwork without Ask also ends the connections that were
// allowed. The error of DecideNetwork is never nil. All calls have returned by then.
func (s *Sandbox) DecideNetwork(ctx context.Context, allow func(context.Context, NetworkQuestion) bool) error {
	return withAbility(s, "decisions about the network", func(n NetworkAsker) error {
		socket, err := n.NetworkDecider(ctx)
		if err != nil {
			return err
		}
		d, err := protocol.TakeDecider(socket, s.ID())
		if err != nil {
			return err
		}
		return d.Decide(ctx, func(ctx context.Context, q protocol.NetworkQuestion) bool {
			return allow(ctx, NetworkQuestion{Name: q.Name, Port: q.Port, Method: q.Method, Path: q.Path})
		})
	})
}

func (i *isolatedInstance) NetworkDecider(ctx context.Context) (*os.File, error) {
	return askLauncher(ctx, i.provider, func(c *protocol.Client) (*os.File, error) { return c.NetworkDecider(ctx, i.info.ID) })
}

// errEnough ends a loop over events.
var errEnough = errors.New("the caller has enough events")

// ReadNetworkRules reads a file of rules for NetworkProxied: one rule in each line, with "deny " before those that
// deny, and comments after #. name is that of the file, for errors, which name each wrong line.
func ReadNetworkRules(name string, r io.Reader) (allow, deny []string, err error) {
	return rules.ParseFile(name, r)
}

// SuggestRules returns the fewest rules for Allow that the allowed events needed, sorted. The names come from
// the sandbox, so a person must read the rules before they are used.
func SuggestRules(events []NetworkEvent) []string { return rules.Suggest(events) }

func (i *isolatedInstance) NetworkEvents(ctx context.Context, follow bool) iter.Seq2[NetworkEvent, error] {
	return func(yield func(NetworkEvent, error) bool) {
		client, err := i.provider.connection(ctx)
		if err != nil {
			yield(NetworkEvent{}, err)
			return
		}
		client.NetworkEvents(ctx, i.info.ID, follow)(yield)
	}
}

func (i *isolatedInstance) ChangeNetwork(ctx context.Context, grant *NetworkGrant, level Sensitivity) (NetworkChange, error) {
	request := protocol.NetworkRequest{Grant: grant, Sensitivity: level}
	if grant != nil {
		shown, proxies, err := resolveUpstream(grant.UpstreamProxy)
		if err != nil {
			return NetworkChange{}, err
		}
		own := *grant
		own.UpstreamProxy = shown
		request.Grant, request.Upstream = &own, proxies
	}
	return askAbout(ctx, i, protocol.OpNetwork, request)
}

// resolveUpstream parts the upstream proxy of a configuration from its password. The environment is that of this process.
func resolveUpstream(text string) (shown string, proxies *spec.Upstream, err error) {
	if shown, proxies, err = rules.ResolveUpstream(text); err != nil {
		return "", nil, &ConfigError{Reason: "upstream_proxy: " + err.Error()}
	}
	return shown, proxies, nil
}
