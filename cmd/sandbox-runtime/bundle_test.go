package main

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mount(2) would take the first page of the options, and not the size.
func TestOptionsThatWouldBeCutOffAreRefused(t *testing.T) {
	h := newHost(t)
	with := func(n int) string {
		return h.bundle(func(s *specs.Spec) {
			padding := "mode=" + strings.Repeat("0", n-len("mode=,size=4k"))
			s.Mounts = append(s.Mounts, specs.Mount{Source: "tmpfs", Destination: "/dev/shm", Type: "tmpfs", Options: []string{padding, "size=4k"}})
		}, "exit", "0")
	}
	h.refuse(1, []string{"mount /dev/shm", "options of 4096 bytes", "4095"}, "run", "--bundle", with(4096), h.id())
	h.must("run", "--bundle", with(4000), h.id())
	h.nothingLeft()
}
