package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A peer is one thing to run.
type peer struct {
	name    string
	args    []string   // the whole command line
	after   [][]string // commands that undo it, not measured
	env     []string   // on top of this process's own
	version string     // one line
	missing string     // why it can't be run, or nothing
}

// An ociRuntime is an OCI runtime with a state root of its own.
type ociRuntime struct {
	name    string
	program string
	root    string
	env     []string
}

// The names of the runtimes that others are compared with, or that are.
const (
	runcName = "runc"
	ourName  = "sandbox-runtime"
)

// runtimes are the OCI runtimes, with their state below dir.
func runtimes(o options, dir string) []ociRuntime {
	in := func(path string) string { return filepath.Join(o.peers, path) }
	libs, _ := filepath.Glob(in("usr/lib/*-linux-gnu"))
	all := []ociRuntime{
		{name: "crun", program: in("usr/bin/crun"), env: []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":")}},
		{name: "runc (Debian)", program: in("usr/sbin/runc")},
		{name: runcName, program: in("bin/runc")},
		{name: ourName, program: o.binary},
	}
	for i := range all {
		all[i].root = filepath.Join(dir, fmt.Sprintf("state%d", i))
	}
	return all
}

func (r ociRuntime) args(args ...string) []string {
	return append([]string{r.program, "--root", r.root}, args...)
}

// peer is a command of the runtime, named after the word that says which.
func (r ociRuntime) peer(word string, args ...string) peer {
	return peer{name: r.name + " " + word, args: r.args(args...), env: r.env}
}

func (p peer) command() *exec.Cmd { return p.commandOf(p.args) }

func (p peer) commandOf(args []string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	return cmd
}

// undo runs what comes after the peer.
func (p peer) undo() error {
	for _, args := range p.after {
		if out, err := p.commandOf(args).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w: %s", args, err, out)
		}
	}
	return nil
}

// look finds the peer's version, or why it is missing: one run must work.
func (p *peer) look(c contest) {
	if p.missing != "" {
		return
	}
	if !executable(p.args[0]) {
		p.missing = "no " + p.args[0]
		return
	}
	if strings.Contains(p.args[0], "busybox") {
		p.version = "busybox"
	} else {
		out, _ := p.commandOf([]string{p.args[0], "--version"}).Output()
		p.version, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	}
	if _, err := c.measure(*p); err != nil {
		p.missing = err.Error()
	}
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func present(peers []peer) []peer {
	var there []peer
	for _, p := range peers {
		if p.missing == "" {
			there = append(there, p)
		}
	}
	return there
}
