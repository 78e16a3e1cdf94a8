package gateway

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// shares divide the descriptors of the process among the boxes. Half of the connections are divided into
// equal shares, which no other box can take. Each box can borrow from the other half.
type shares struct {
	files int

	mu sync.Mutex
	// share and common are numbers of connections: the share of each box, and all that can be borrowed.
	share, common int
	// borrowed are the connections of all boxes above their shares.
	borrowed int
	// open are the connections of each box.
	open map[*box]int
}

func newShares() (*shares, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, os.NewSyscallError("getrlimit", err)
	}
	return sharesOf(int(min(files.Cur, 1<<30))), nil
}

func sharesOf(files int) *shares {
	s := &shares{files: files, open: map[*box]int{}}
	s.setBoxes(0, 0)
	return s
}

// setBoxes divides the descriptors among n boxes, which have listening sockets.
func (s *shares) setBoxes(n, sockets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(n, 1)
	all := max((s.files-link.FilesOfWorker-sockets)/link.FilesPerConnection, n)
	s.share = min(max(all/2/n, 1), link.MaxConnections)
	s.common = all - s.share*n
	s.borrowed = 0
	for _, open := range s.open {
		s.borrowed += max(open-s.share, 0)
	}
}

// acquire is false if the box has all connections that it can have.
func (s *shares) acquire(b *box) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.open[b]
	switch {
	case open >= link.MaxConnections, open >= s.share && s.borrowed >= s.common:
		return false
	case open >= s.share:
		s.borrowed++
	}
	s.open[b] = open + 1
	return true
}

func (s *shares) release(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.open[b]
	if open > s.share {
		s.borrowed--
	}
	if s.open[b] = open - 1; open == 1 {
		delete(s.open, b)
	}
}
