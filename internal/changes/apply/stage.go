package apply

import (
	"context"
	"os"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const (
	// makers is how many goroutines make files. They wait for the disk that they read from,
	// so there may be more of them than processors.
	makers = 4
	// perBatch is how many files a goroutine makes at a time.
	perBatch = 64
)

// A stager makes the new entries of a plan in the staging directory, and notes their
// stamps. Several goroutines make the files, since the kernel needs most of the time of a
// large apply.
type stager struct {
	plan  *Plan
	maker *maker
	// idle has the makers that no goroutine uses now.
	idle  chan *maker
	links []*item

	mu     sync.Mutex // guards stamps, and Ino and Made of the plan's steps
	stamps map[string]layer.Stamp
}

// stage makes all new entries of a plan in a staging directory.
func stage(ctx context.Context, p *Plan, dir *os.File, stamps map[string]layer.Stamp) error {
	s := &stager{plan: p, maker: newMaker(newTree(dir)), idle: make(chan *maker, makers), stamps: stamps}
	defer s.maker.tree.forget()
	for range makers {
		m := newMaker(newTree(dir))
		defer m.tree.forget()
		s.idle <- m
	}
	alike, err := threadsAreAlike()
	if err != nil {
		return err
	}
	makeAll := s.makeAlone
	if alike {
		makeAll = s.makeTogether
	}
	if err := makeAll(ctx); err != nil {
		return err
	}
	if err := s.makeLinks(ctx); err != nil {
		return err
	}
	return s.finish()
}

// makeTogether makes all but hard links, by several goroutines.
func (s *stager) makeTogether(ctx context.Context) error {
	goroutines, within := errgroup.WithContext(ctx)
	goroutines.SetLimit(makers)
	err := s.makeOthers(within, func(files []*item) error {
		goroutines.Go(func() error { return s.makeFiles(within, files) })
		return nil
	})
	if failed := goroutines.Wait(); failed != nil {
		return failed // err is of the context that this has ended
	}
	return err
}

// makeAlone makes all but hard links with the rights of the calling thread.
func (s *stager) makeAlone(ctx context.Context) error {
	return s.makeOthers(ctx, func(files []*item) error { return s.makeFiles(ctx, files) })
}

// threadsAreAlike tells whether other goroutines have the rights of the caller. A thread
// can have less rights than its process: setfsuid(2).
func threadsAreAlike() (bool, error) {
	own, err := threadRights()
	if err != nil {
		return false, err
	}
	var others string
	done := make(chan struct{})
	go func() {
		defer close(done)
		others, err = threadRights()
	}()
	<-done
	return own == others, err
}

// threadRights are the lines of the thread's status, proc_pid_status(5), that its rights
// depend on.
func threadRights() (string, error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return "", err
	}
	var rights strings.Builder
	for line := range strings.Lines(string(status)) {
		name, _, _ := strings.Cut(line, ":")
		switch name {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
			rights.WriteString(line)
		}
	}
	return rights.String(), nil
}

// makeOthers makes directories, symbolic links and special files, parents first. It
// passes the regular files on.
func (s *stager) makeOthers(ctx context.Context, makeFiles func([]*item) error) error {
	var files []*item
	for i := range s.plan.steps.items {
		it := &s.plan.steps.items[i]
		switch {
		case it.first >= 0:
			s.links = append(s.links, it)
		case it.regular():
			if files = append(files, it); len(files) == perBatch {
				if err := makeFiles(files); err != nil {
					return err
				}
				files = nil
			}
		default:
			if err := s.make(ctx, s.maker, it); err != nil {
				return err
			}
		}
	}
	return makeFiles(files)
}

func (s *stager) makeFiles(ctx context.Context, files []*item) error {
	m := <-s.idle
	defer func() { s.idle <- m }()
	for _, it := range files {
		if err := s.make(ctx, m, it); err != nil {
			return err
		}
	}
	return nil
}

// make makes an entry other than a hard link. Directories are left to finish.
func (s *stager) make(ctx context.Context, m *maker, it *item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n := it.node()
	e, err := m.makeEntry(s.plan.steps.stagedPath(it), &n, func() (int, error) { return s.plan.stack.OpenListed(it.path()) })
	if err != nil {
		return errorAbout(it.path(), err)
	}
	if it.regular() {
		it.source = m.copy.source
	}
	s.noteStamp(it, e)
	return nil
}

// makeLinks makes the hard links. Each link changes the ctime of the file, so all names
// are noted last.
func (s *stager) makeLinks(ctx context.Context) error {
	for _, it := range s.links {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.maker.link(s.plan.steps.stagedPath(&s.plan.steps.items[it.first]), s.plan.steps.stagedPath(it)); err != nil {
			return errorAbout(it.path(), err)
		}
	}
	for _, link := range s.links {
		for _, it := range []*item{&s.plan.steps.items[link.first], link} {
			e, err := s.maker.tree.stat(s.plan.steps.stagedPath(it))
			if err != nil {
				return err
			}
			s.noteStamp(it, e)
		}
	}
	return nil
}

// finish gives the directories their attributes, the lower ones first.
func (s *stager) finish() error {
	for i := len(s.plan.steps.items) - 1; i >= 0; i-- {
		it := &s.plan.steps.items[i]
		if !it.dir() {
			continue
		}
		n := it.node()
		e, err := s.maker.finish(s.plan.steps.stagedPath(it), &n)
		if err != nil {
			return errorAbout(it.path(), err)
		}
		s.noteStamp(it, e)
	}
	return nil
}

// noteStamp keeps the stamp of an entry, and tells its step which entry is the new one.
func (s *stager) noteStamp(it *item, e entry) {
	if it.copied != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stamps[it.path()] = stampOf(e, it.source)
	if !it.inside {
		o := &s.plan.steps.ops[it.op]
		o.Ino, o.Made = s.plan.steps.inode(e), e.identity
	}
}

// link makes another name of a file.
func (m *maker) link(from, to string) error {
	fromDir, fromName, err := m.tree.parent(from)
	if err != nil {
		return err
	}
	// The lookup of the other directory may close this one.
	fromDir, err = unix.FcntlInt(uintptr(fromDir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fromDir)
	dir, name, err := m.tree.parent(to)
	if err != nil {
		return err
	}
	return unix.Linkat(fromDir, fromName, dir, name, 0)
}

// regular tells whether the item is a regular file.
func (it *item) regular() bool { return it.copied == nil && it.change.Type == spec.TypeFile }
