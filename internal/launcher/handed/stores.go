package handed

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
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// fileName is a file in a sandbox's directory. It says that a client may hold the store.
const fileName = "handed"

// Was says that a client may hold the store of the sandbox with this directory.
func Was(dir string) bool { return statedir.Exists(filepath.Join(dir, fileName)) }

// Stores are the stores that clients may hold.
type Stores struct {
	record.Roots
	// Every is the pause between two looks for stores that nobody needs any more.
	Every time.Duration
	// looking are the looks under way. Close waits for them.
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

// lookForEnded is the value of Every for a launcher.
const lookForEnded = time.Minute

// A heldStore is a store in memory.
type heldStore struct {
	uid  uint32
	init process.ID
	top  *os.File
}

// New returns Stores without any. The caller must close it.
func New(roots record.Roots) *Stores {
	return &Stores{Roots: roots, memory: map[string]heldStore{}, Every: lookForEnded}
}

// Add notes that a client may hold a store from now on. Call Add before the client gets layers.
func (h *Stores) Add(id string, r record.Record, top *os.File) error {
	if err := os.WriteFile(filepath.Join(h.Dir(id), fileName), nil, 0o600); err != nil {
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
func (h *Stores) keep(id string, held heldStore) {
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

// TakeOpen opens the store of a sandbox that is about to be removed. It returns nil if the store
// is not in memory or no client can hold it.
func (h *Stores) TakeOpen(id, dir string, r record.Record) *os.File {
	if r.Backend(h.Roots).Durable() || !Was(dir) {
		return nil
	}
	if top := h.take(id, r.Init); top != nil {
		return top
	}
	top, _ := record.OpenStore(r.Init) // after an error there is no store: it has ended with PID 1
	return top
}

// take takes the store of a sandbox out of memory.
func (h *Stores) take(id string, init process.ID) *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	held, ok := h.memory[id]
	if !ok || held.init != init {
		return nil
	}
	delete(h.memory, id)
	return held.top
}

// Leave ends the use of the store that TakeOpen returned. If the sandbox was removed, Leave
// empties the store: nothing writes to it any more.
func (h *Stores) Leave(id string, r record.Record, top *os.File, removed bool) {
	if top == nil && removed { // a client may have come after TakeOpen
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
func (h *Stores) retire(uid uint32, top *os.File) {
	dir, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", top.Fd()), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		_ = erase.ContentsInUse(context.Background(), dir) // the files that stay count for the user
		dir.Close()
	}
	h.watch(retiredStore{uid: uid, top: top})
}

// RetireImages watches the images of a sandbox that is about to be removed, if a client
// may hold them.
func (h *Stores) RetireImages(dir string, uid uint32, names []string) {
	if !Was(dir) {
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
func (h *Stores) watch(s retiredStore) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.retired, s.sameImage) || !s.isHeld() {
		s.close()
		return
	}
	h.retired = append(h.retired, s)
}

// Count returns how many stores of removed sandboxes a user still holds.
func (h *Stores) Count(uid uint32) (count int) {
	h.retireEnded()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired = slices.DeleteFunc(h.retired, func(s retiredStore) bool {
		if !s.isHeld() {
			s.close()
			return true
		}
		if s.uid == uid && !s.isNamed() {
			count++
		}
		return false
	})
	return count
}

// retireEnded retires the stores of sandboxes that others have removed, or that have
// stopped.
func (h *Stores) retireEnded() {
	var ended []heldStore
	h.mu.Lock()
	for id, held := range h.memory {
		if !held.init.Lives() {
			delete(h.memory, id)
			ended = append(ended, held)
		}
	}
	h.mu.Unlock()
	for _, held := range ended {
		h.retire(held.uid, held.top)
	}
}

// armLookLocked starts the timer of checkEnded. The caller must hold mu.
func (h *Stores) armLookLocked() {
	if h.timer == nil && !h.closed {
		h.timer = time.AfterFunc(h.Every, h.checkEnded)
	}
}

// checkEnded retires the stores of ended sandboxes, and arms the timer again if other stores remain.
func (h *Stores) checkEnded() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.looking.Add(1) // before Close can wait
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

// Close closes all stores.
func (h *Stores) Close() {
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

// isHeld tells whether another process holds a part of the store. If none does, a store in memory
// has only its root left, and an image has no loop device.
func (s retiredStore) isHeld() bool {
	if s.image != nil {
		used, err := store.InUse(s.image)
		return used && err == nil
	}
	var st unix.Statfs_t
	err := unix.Fstatfs(int(s.top.Fd()), &st)
	return err == nil && (st.Files-st.Ffree > 1 || st.Blocks != st.Bfree)
}

// isNamed tells whether the store is an image that still has a name, because snapshots or other
// sandboxes use it.
func (s retiredStore) isNamed() bool {
	var st unix.Stat_t
	return s.image != nil && unix.Fstat(int(s.image.Fd()), &st) == nil && st.Nlink > 0
}

// sameImage tells whether two stores are the same image.
func (s retiredStore) sameImage(other retiredStore) bool {
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

// Idle says that no store in memory is kept for its sandbox, and nothing looks for ended ones.
func (h *Stores) Idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.memory) == 0 && h.timer == nil
}
