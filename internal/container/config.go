package container

import (
	"sync"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
)

// conversion serialises newConfig: specconv v1.5.2 puts pointers to its own table of
// default devices into each configuration, and writes the container's root into those
// devices.
var conversion sync.Mutex

// newConfig turns a specification into libcontainer's configuration, which
// shares nothing with any other.
func newConfig(opts *specconv.CreateOpts) (*configs.Config, error) {
	conversion.Lock()
	defer conversion.Unlock()
	c, err := specconv.CreateLibcontainerConfig(opts)
	if err != nil {
		return nil, err
	}
	for i, shared := range c.Devices {
		own := *shared
		c.Devices[i] = &own
	}
	return c, nil
}
