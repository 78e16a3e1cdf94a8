package launcher

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A sandbox may set the set-group-ID bit as long as no file of the host can get the bit from
// the sandbox. Its filter allows the bit then. Before the first directory of the host becomes
// writable, PID 1 withholds the bit from all later commands.

// withholdGroupIDs prepares a sandbox for its first writable directory of the host. No filter
// can be changed for a process that runs, so there must be none but PID 1. The caller must hold
// the sandbox.
func (s *Sandbox) withholdGroupIDs(ctx context.Context, r *record.Record) error {
	if !r.GroupIDs {
		return nil
	}
	s.session.Enter()
	defer s.session.Leave()
	conn, err := s.session.Connect(ctx)
	if err == nil {
		err = s.session.UnlessPaused(ctx, conn.Withhold)
	}
	if err != nil {
		return s.session.Why(ctx, err)
	}
	if err := s.awaitNoCommand(ctx, r.Init.Pid); err != nil {
		return err
	}
	r.GroupIDs = false
	return nil
}

// lastMoments is how long the processes of a command that has ended may stay.
const lastMoments = 300 * time.Millisecond

// awaitNoCommand waits for the end of processes that are about to end. Another process is an
// error.
func (s *Sandbox) awaitNoCommand(ctx context.Context, init int) error {
	for end := time.Now().Add(lastMoments); ; {
		others, err := s.othersThan(init)
		if err != nil || len(others) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: processes in the sandbox can set the set-group-ID bit, which no file of the host may get: %s; "+
				"end these processes first, or make a sandbox with this workspace", statedir.ErrHeld, strings.Join(others, ", "))
		}
		if err := statedir.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// othersThan names the processes of the sandbox beside PID 1. The list of processes alone could
// lack one that moves to another cgroup meanwhile. The count of tasks lacks none.
func (s *Sandbox) othersThan(init int) (others []string, err error) {
	pids, err := s.session.Group.Procs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if pid == init {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))                   // it can have ended
		others = append(others, fmt.Sprintf("%d (%q)", pid, bytes.TrimSpace(name))) // the sandbox chooses the name
	}
	stats, err := s.session.Group.Stats()
	if err != nil {
		return nil, err
	}
	if len(others) == 0 && stats.Pids > 1 {
		others = append(others, "one that has just begun")
	}
	return others, nil
}
