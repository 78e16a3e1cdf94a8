// Package names keeps the synthetic addresses of one sandbox. Each name has two addresses, one per
// family, so a connection to such an address has exactly one name. The package does no I/O.
//
// The first name gets the first address, and so on. So the list of names, in their order, is the
// whole state. The worker that uses a Table can be killed, and its parent keeps the list: the
// table tells each new name to the parent before any client learns the address (see New). A new
// worker makes the same table from that list. No address is ever given to a second name.
package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// Max is the number of names that a sandbox can have.
const Max = 10_000

// ErrFull means that the sandbox has Max names.
var ErrFull = errors.New("the sandbox has used 10,000 names; start a new sandbox for more")

// first is the number of the first name. The numbers below are the addresses 198.18.0.0/24, which
// belong to the sandbox's own interface.
const first = 256

// A Pair is the addresses of one name. Their last bytes are the same number.
type Pair struct{ V4, V6 netip.Addr }

// A Table has the names of one sandbox. Several goroutines can use a Table at once.
type Table struct {
	record func(name string) error

	mu      sync.RWMutex
	names   []string // by their number, less first
	numbers map[string]int
}

// New makes the table of a sandbox that has the known names, in the order in which they were
// recorded. The table calls record with each new name, one call at a time. The name has an address
// only if record succeeds. A nil record forgets the names with the table.
func New(known []string, record func(name string) error) (*Table, error) {
	if len(known) > Max {
		return nil, fmt.Errorf("restore %d names: %w", len(known), ErrFull)
	}
	t := &Table{record: record, numbers: make(map[string]int, len(known))}
	for _, name := range known {
		if _, ok := t.numbers[name]; ok {
			return nil, fmt.Errorf("restore names: %q is listed twice", name)
		}
		t.addLocked(name)
	}
	return t, nil
}

// Of returns the addresses of a name, always the same ones. The name is in lower case, without a
// trailing dot. The error of a table without room is ErrFull; other errors are those of record.
func (t *Table) Of(name string) (Pair, error) {
	t.mu.RLock()
	number, ok := t.numbers[name]
	t.mu.RUnlock()
	if ok {
		return pair(number), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if number, ok := t.numbers[name]; ok {
		return pair(number), nil
	}
	if len(t.names) >= Max {
		return Pair{}, ErrFull
	}
	if t.record != nil {
		if err := t.record(name); err != nil {
			return Pair{}, fmt.Errorf("record name %q: %w", name, err)
		}
	}
	return pair(t.addLocked(name)), nil
}

func (t *Table) addLocked(name string) (number int) {
	number = first + len(t.names)
	t.names = append(t.names, name)
	t.numbers[name] = number
	return number
}

// Name returns the name that has the address.
func (t *Table) Name(a netip.Addr) (string, bool) {
	number, ok := numberOf(a.Unmap())
	if !ok {
		return "", false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if number < first || number >= first+len(t.names) {
		return "", false
	}
	return t.names[number-first], true
}

// Reserved is true for each address that can only mean this sandbox: its own addresses and all
// synthetic ones, whether they have a name or not.
func Reserved(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return Range(a).Contains(a)
}

// Range has the reserved addresses of one family, that of a: IPv4 or IPv6. The range of IPv6 is more than the
// synthetic addresses, fd53:0:0:1::/64: the sandbox's own address is fd53::2.
func Range(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18}), 15)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x53}), 16)
}

func pair(number int) Pair {
	v4 := [4]byte{198, 18}
	binary.BigEndian.PutUint16(v4[2:], uint16(number))
	v6 := [16]byte{0: 0xfd, 1: 0x53, 7: 1}
	binary.BigEndian.PutUint16(v6[14:], uint16(number))
	return Pair{netip.AddrFrom4(v4), netip.AddrFrom16(v6)}
}

func numberOf(a netip.Addr) (int, bool) {
	b := a.AsSlice()
	if len(b) == 0 {
		return 0, false
	}
	number := int(binary.BigEndian.Uint16(b[len(b)-2:]))
	p := pair(number)
	return number, a == p.V4 || a == p.V6
}
