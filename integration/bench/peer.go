package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A peer is one thing to run.
type peer struct {
	name    string
	args    []string                      // the whole command line, if it is a program
	call    func() error                  // a call in this process otherwise
	clock   func() (time.Duration, error) // the same, with the time that counts
	after   [][]string                    // commands that undo it, not measured
	env     []string                      // on top of this process's own
	version string                        // one line
	missing string                        // why it can't be run, or nothing
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
	crunName = "crun"
	runcName = "runc"
	ourName  = "sandbox-runtime"
)

// runtimes are the OCI runtimes, with their state below dir.
func runtimes(o options, dir string) []ociRuntime {
	in := func(path string) string { return filepath.Join(o.peers, path) }
	libs, _ := filepath.Glob(in("usr/lib/*-linux-gnu"))
	all := []ociRuntime{
		{name: crunName, program: in("usr/bin/crun"), env: []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":")}},
		{name: "runc (Debian)", program: in("usr/sbin/runc")},
		{name: runcName, program: in("bin/runc")},
		{name: ourName, program: o.binary},
	}
	for i := range all {
		all[i].root = o.root(dir, fmt.Sprintf("state%d", i))
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

// run runs the peer once.
func (p peer) run() error {
	if p.call != nil {
		return p.call()
	}
	if err := p.command().Run(); err != nil {
		return fmt.Errorf("%q: %w", p.args, err)
	}
	return nil
}

// captured is the peer as a Go program runs it that wants its output.
func (p peer) captured() peer {
	p.call = func() error { return capture(p.command()) }
	return p
}

// capture runs a command with its output in memory, each stream by itself.
func capture(cmd *exec.Cmd) error {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%q: %w: %s", cmd.Args, err, stderr.Bytes())
	}
	return nil
}

func (p peer) command() *exec.Cmd { return p.commandOf(p.args) }

func (p peer) commandOf(args []string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	return cmd
}

// undo runs the clean-up of the peer.
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
	if len(p.args) > 0 {
		if !executable(p.args[0]) {
			p.missing = "no " + p.args[0]
			return
		}
		p.version = p.versionOf(p.args[0])
	}
	if _, err := c.measure(*p); err != nil {
		p.missing = err.Error()
	}
}

func (p peer) versionOf(program string) string {
	if strings.Contains(program, "busybox") {
		return "busybox"
	}
	out, _ := p.commandOf([]string{program, "--version"}).Output()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func present(peers []peer) []peer {
	return slices.DeleteFunc(slices.Clone(peers), func(p peer) bool { return p.missing != "" })
}
