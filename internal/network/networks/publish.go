package networks

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Publish opens the published ports of a sandbox that is being made. PID 1 has started: the ports
// close with its end.
func (n Networks) Publish(ctx context.Context, namespace func() (*os.File, error), names record.Names, r record.Record) error {
	if len(r.Config.Publish) == 0 {
		return nil
	}
	inside, err := namespace()
	if err != nil {
		return err
	}
	return n.openPorts(ctx, inside, names, r)
}

// republish opens the published ports of the record in place of the earlier ones. Equal ones stay open as long as
// the kind of the network stays.
func (n Networks) republish(ctx context.Context, namespace *os.File, names record.Names, from spec.NetworkGrant, r record.Record) error {
	switch {
	case from.Network == r.Config.Network && slices.Equal(from.Publish, r.Config.Publish):
		return nil
	case len(r.Config.Publish) == 0:
		return n.unpublish(ctx, names)
	}
	return n.openPorts(ctx, namespace, names, r)
}

func (n Networks) openPorts(ctx context.Context, namespace *os.File, names record.Names, r record.Record) error {
	ports, err := publishedPorts(r.Config)
	if err != nil {
		return err
	}
	return n.router().Publish(ctx, namespace, r.Init, linkName(names), ports)
}

// unpublish closes the published ports of the sandbox.
func (n Networks) unpublish(ctx context.Context, names record.Names) error {
	if !n.router().HasPublisher(linkName(names)) {
		return nil
	}
	return n.router().Publish(ctx, nil, process.ID{}, linkName(names), nil)
}

func publishedPorts(c spec.Config) (ports []spec.PublishedPort, err error) {
	for _, text := range c.Publish {
		port, wrong := spec.ParsePublishedPort(text)
		err = errors.Join(err, wrong)
		ports = append(ports, port)
	}
	return ports, err
}
