package cgroups

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDeleteRemovesEverywhereWithNestedGroups(t *testing.T) {
	b := newBox(t, nil)
	b.mkdir(b.path + "/nested/deep")
	b.mkdir(b.path + "/nested/deeper")
	b.mkdir(b.parent + "/sibling")
	g := b.group(nil)
	for range 2 { // the second time there is nothing
		if err := g.Delete(bounded(t)); err != nil {
			t.Error(err)
		}
	}
	for _, tree := range b.host.trees {
		if exists(tree.path(b.path)) {
			t.Errorf("%s is still there", tree.path(b.path))
		}
		if !exists(tree.path(b.parent + "/sibling")) {
			t.Errorf("the sibling in %s is gone", tree.dir)
		}
	}
}

func TestDeleteWaitsForDyingProcesses(t *testing.T) {
	b := newBox(t, nil)
	p := b.run("echo")
	done := make(chan error)
	start := time.Now()
	go func() { done <- b.group(nil).Delete(bounded(t)) }()
	// Hierarchies without the process go at once; then Delete is at it.
	p.in.Close()
	p.wait(patience)
	err := <-done
	if errors.Is(err, unix.EBUSY) && time.Since(start) >= deleteWait { // which a slow machine took to end it
		err = b.group(nil).Delete(bounded(t))
	}
	if err != nil {
		t.Error(err)
	}
}

func TestDeleteOfABusyGroupNamesTheProcesses(t *testing.T) {
	b := newBox(t, nil)
	p := b.run("echo")
	ctx, cancel := context.WithTimeout(bounded(t), 20*time.Millisecond)
	defer cancel()
	err := b.group(nil).Delete(ctx)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), strconv.Itoa(p.Process.Pid)) {
		t.Errorf("got %v", err)
	}
	if !p.echoes(t, patience) {
		t.Error("the process is dead")
	}
}

func TestDeleteStopsAtAForeignMount(t *testing.T) {
	b := newBox(t, nil)
	b.mkdir(b.path + "/nested")
	over := b.host.trees[0].path(b.path) + "/nested"
	v := inMounts(t, "tmpfs", over, b.path) // fails if what is on the mount is touched
	if !strings.Contains(v.Delete, over) || !strings.Contains(v.Delete, "cross-device") {
		t.Errorf("got %q", v.Delete)
	}
	if _, err := os.Stat(over); err != nil {
		t.Error(err)
	}
}
