package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
)

// A client can keep the store of a sandbox: by the descriptors of the layers that it asked for, and
// by files that a process inside has sent to it. The second way is open to each client, and counts
// for clients with a rule. A removal frees the space of the store nevertheless: it shuts down and
// truncates an image ([store.RemoveImage]), and empties a store in memory. An empty file system
// remains, with the deleted files that the client has open. This rest counts as one of the
// user's sandboxes until the client closes its descriptors.

// handedName is a file in a sandbox's directory. It says that a client may hold the store.
const handedName = "handed"

func wasHanded(dir string) bool { return statedir.Exists(filepath.Join(dir, handedName)) }

// handed are the stores that clients may hold.
type handed struct {
	record.Roots
	// every is the pause between two looks for stores that nobody needs any more.
	every time.Duration
	// looking are the looks under way. close waits for them.
	looking sync.WaitGroup

	// mu guards the fields below.
	mu     sync.Mutex
	closed bool
	// timer runs as long as there is a store in memory.
	timer *time.Timer
	// memory has the stores in memory of sandboxes that are up, or have stopped, by id. After the
	// end of PID 1 nothing else leads to such a store.
	memory map[string]heldStore
	// retired are the stores of removed sandboxes.
	retired []retiredStore
}

// lookForEnded is the value of every for a launcher.
const lookForEnded = time.Minute

// A heldStore is a store in memory.
type heldStore struct {
	uid  uint32
	init process.ID
	top  *os.File
}

// newHanded returns a handed without stores. The caller must close it.
func newHanded(roots record.Roots) *handed {
	return &handed{Roots: roots, memory: map[string]heldStore{}, every: lookForEnded}
}

// add notes that a client may hold a store from now on. Call add before the client gets layers.
func (h *handed) add(id string, r record.Record, top *os.File) error {
	if err := os.WriteFile(filepath.Join(h.Dir(id), handedName), nil, 0o600); err != nil {
		return fmt.Errorf("note that a client may hold the files of %s: %w", id, err)
	}
	if r.Backend(h.Roots).Durable() {
		return nil
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", top.Fd()), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	h.keep(id, heldStore{r.UID, r.Init, again})
	return nil
}

// keep keeps a store for the removal of its sandbox.
func (h *handed) keep(id string, held heldStore) {
	h.mu.Lock()
	old, ok := h.memory[id]
	if ok && old.init == held.init {
		h.mu.Unlock()
		held.top.Close()
		return
	}
	h.memory[id] = held
	h.armLookLocked()
	h.mu.Unlock()
	if ok {
		h.retire(old.uid, old.top)
	}
}

// takeOpen opens the store of a sandbox that is about to be removed. It returns nil if the store
// is not in memory or no client can hold it.
func (h *handed) takeOpen(id, dir string, r record.Record) *os.File {
	if r.Backend(h.Roots).Durable() || !wasHanded(dir) {
		return nil
	}
	if top := h.take(id, r.Init); top != nil {
		return top
	}
	top, err := record.OpenStore(r.Init)
	if err != nil {
		return nil // the store has ended with PID 1
	}
	return top
}

// take takes the store of a sandbox out of memory.
func (h *handed) take(id string, init process.ID) *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	held, ok := h.memory[id]
	if !ok || held.init != init {
		return nil
	}
	delete(h.memory, id)
	return held.top
}

// leave ends the use of the store that takeOpen returned. If the sandbox was removed, leave
// empties the store: nothing writes to it any more.
func (h *handed) leave(id string, r record.Record, top *os.File, removed bool) {
	if top == nil && removed { // a client may have come after takeOpen
		top = h.take(id, r.Init)
	}
	switch {
	case top == nil:
	case removed:
		h.retire(r.UID, top)
	default:
		h.keep(id, heldStore{r.UID, r.Init, top})
	}
}

// retire empties a store in memory, and watches the store as long as a client holds it.
func (h *handed) retire(uid uint32, top *os.File) {
	dir, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", top.Fd()), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		_ = erase.ContentsInUse(context.Background(), dir) // the files that stay count for the user
		dir.Close()
	}
	h.watch(retiredStore{uid: uid, top: top})
}

// retireImages watches the images of a sandbox that is about to be removed, if a client
// may hold them.
func (h *handed) retireImages(dir string, uid uint32, names []string) {
	if !wasHanded(dir) {
		return
	}
	for _, name := range names {
		image, err := os.OpenFile(h.ImagePath(name), unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err == nil {
			h.watch(retiredStore{uid: uid, image: image})
		}
	}
}

// watch takes over a store as long as a client holds it. Otherwise it closes the store.
func (h *handed) watch(s retiredStore) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.retired, s.same) || !s.held() {
		s.close()
		return
	}
	h.retired = append(h.retired, s)
}

// Retired is how many stores of removed sandboxes a user still holds.
func (l *Launcher) Retired(uid uint32) int {
	l.handed.retireEnded()
	return l.handed.count(uid)
}

// retireEnded retires the stores of sandboxes that others have removed, or that have
// stopped.
func (h *handed) retireEnded() {
	for _, held := range h.takeEnded() {
		h.retire(held.uid, held.top)
	}
}

// armLookLocked starts the timer of look. The caller must hold mu.
func (h *handed) armLookLocked() {
	if h.timer == nil && !h.closed {
		h.timer = time.AfterFunc(h.every, h.look)
	}
}

// look retires the stores of ended sandboxes, and arms the timer again if other stores remain.
func (h *handed) look() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.looking.Add(1) // before close can wait
	h.mu.Unlock()
	defer h.looking.Done()
	h.retireEnded()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = nil
	if len(h.memory) > 0 {
		h.armLookLocked()
	}
}

// takeEnded takes the stores of sandboxes that others have removed, or that have stopped, out of
// memory.
func (h *handed) takeEnded() (ended []heldStore) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, held := range h.memory {
		if !held.init.Lives() {
			delete(h.memory, id)
			ended = append(ended, held)
		}
	}
	return ended
}

func (h *handed) count(uid uint32) (count int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired = slices.DeleteFunc(h.retired, func(s retiredStore) bool {
		if !s.held() {
			s.close()
			return true
		}
		if s.uid == uid && !s.named() {
			count++
		}
		return false
	})
	return count
}

// close closes all stores.
func (h *handed) close() {
	h.mu.Lock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	h.looking.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.memory {
		held.top.Close()
	}
	for _, s := range h.retired {
		s.close()
	}
	h.memory, h.retired = map[string]heldStore{}, nil
}

// A retiredStore is the store of a removed sandbox: a store in memory, or an image.
type retiredStore struct {
	uid        uint32
	top, image *os.File
}

// held tells whether another process holds a part of the store. If none does, a store in memory
// has only its root left, and an image has no loop device.
func (s retiredStore) held() bool {
	if s.image != nil {
		used, err := store.InUse(s.image)
		return used && err == nil
	}
	var st unix.Statfs_t
	err := unix.Fstatfs(int(s.top.Fd()), &st)
	return err == nil && (st.Files-st.Ffree > 1 || st.Blocks != st.Bfree)
}

// named tells whether the store is an image that still has a name, because snapshots or other
// sandboxes use it.
func (s retiredStore) named() bool {
	var st unix.Stat_t
	return s.image != nil && unix.Fstat(int(s.image.Fd()), &st) == nil && st.Nlink > 0
}

// same tells whether two stores are the same image.
func (s retiredStore) same(other retiredStore) bool {
	if s.image == nil || other.image == nil {
		return false
	}
	var one, two unix.Stat_t
	err := errors.Join(unix.Fstat(int(s.image.Fd()), &one), unix.Fstat(int(other.image.Fd()), &two))
	return err == nil && one.Ino == two.Ino && one.Dev == two.Dev
}

func (s retiredStore) close() {
	descriptor.Close(s.top, s.image)
}
