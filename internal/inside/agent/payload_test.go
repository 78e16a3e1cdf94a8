package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// seeds are payloads as the host writes them.
func seeds() [][]byte {
	small := command("true")
	full := command("sh", "-c", "echo $0", "")
	full.TTY, full.PlainNewlines = &Winsize{Rows: 24, Columns: 80}, true
	full.Groups = []uint32{1, 2, 65534}
	full.Rlimits = []Rlimit{{unix.RLIMIT_NOFILE, 1024, 4096}, {unix.RLIMIT_CORE, 0, math.MaxUint64}}
	full.OOMScoreAdj = 1000
	full.Env = append(full.Env, "HOME=/", "EMPTY=")
	large := command("sh", strings.Repeat("x", 5000))
	large.Groups = make([]uint32, maxGroups)
	large.Rlimits = make([]Rlimit, maxRlimits)
	return [][]byte{small.encode(), full.encode(), large.encode()}
}

// Where payload_header has its fields.
const (
	atFlags  = 8
	atRows   = 12
	atOOM    = 20
	atGroups = 24
	atLimits = 28
	atArgc   = 32
	atEnvc   = 36
	header   = 40
)

// malformed are payloads that the parser has to refuse.
func malformed() map[string][]byte {
	base := func() []byte { c := command("true"); return c.encode() }
	with := func(at int, value uint32) []byte {
		b := base()
		binary.NativeEndian.PutUint32(b[at:], value)
		return b
	}
	all := map[string][]byte{
		"nothing":            {},
		"half a header":      base()[:header/2],
		"a header alone":     base()[:header],
		"the agent's uid":    with(0, 65535),
		"uid -1":             with(0, math.MaxUint32),
		"uid beyond the map": with(0, 65536),
		"the agent's gid":    with(4, 65535),
		"unknown flag":       with(atFlags, 4),
		"newlines of none":   with(atFlags, payloadPlainNewlines),
		"high flag":          with(atFlags, 1<<31),
		"rows":               with(atRows, 65536),
		"oom score":          with(atOOM, 1001),
		"negative oom score": with(atOOM, math.MaxUint32),
		"too many groups":    with(atGroups, maxGroups+1),
		"huge groups":        with(atGroups, math.MaxUint32),
		"absent groups":      with(atGroups, 200),
		"too many limits":    with(atLimits, maxRlimits+1),
		"huge limits":        with(atLimits, math.MaxUint32),
		"absent limits":      with(atLimits, 16),
		"no argument":        with(atArgc, 0),
		"absent argument":    with(atArgc, 2),
		"huge argc":          with(atArgc, math.MaxUint32),
		"wrapping argc":      with(atArgc, math.MaxUint32-1),
		"signed argc":        with(atArgc, 1<<31),
		"absent setting":     with(atEnvc, 3),
		"huge envc":          with(atEnvc, math.MaxUint32),
		"huge length":        with(header, math.MaxUint32),
		"signed length":      with(header, 1<<31),
		"length 0":           with(header, 0),
		"length too short":   with(header, 1),
		"length too long":    with(header, 3),
		"trailing byte":      append(base(), 0),
		"trailing string":    append(base(), 1, 0, 0, 0, 0),
		"last byte missing":  base()[:len(base())-1],
		"no final NUL":       append(base()[:len(base())-1], 'x'),
		"huge file":          make([]byte, maxPayload+1),
		"zeros":              make([]byte, 4096),
		"ones":               bytes.Repeat([]byte{0xff}, 4096),
	}
	inner := command("tr\x01ue")
	all["NUL within"] = bytes.ReplaceAll(inner.encode(), []byte("tr\x01ue"), []byte("tr\x00ue"))
	group := command("true")
	group.Groups = []uint32{65535}
	all["the agent's group"] = group.encode()
	limit := command("true")
	limit.Rlimits = []Rlimit{{16, 0, 0}}
	all["unknown limit"] = limit.encode()
	limit.Rlimits = []Rlimit{{math.MinInt64 + 7, 0, 0}}
	all["limit that wraps"] = limit.encode()
	relative := command("true")
	relative.Dir = "tmp"
	all["relative directory"] = relative.encode()
	return all
}

// mutate changes a payload in one to four places.
func mutate(r *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	interesting := []uint32{0, 1, 2, 5, 16, 17, 255, 256, 257, 65534, 65535, 65536, 1 << 31, 1<<31 - 1, math.MaxUint32, math.MaxUint32 - 1, math.MaxUint32 / 8, uint32(len(b))}
	for range 1 + r.IntN(4) {
		if len(b) < 8 {
			b = append(b, byte(r.Uint32()))
			continue
		}
		at := r.IntN(len(b) - 4)
		switch r.IntN(8) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.Uint32())
		case 2, 3: // a field of the header
			binary.NativeEndian.PutUint32(b[min(r.IntN(10)*4, len(b)-4):], interesting[r.IntN(len(interesting))])
		case 4:
			binary.NativeEndian.PutUint32(b[at:], interesting[r.IntN(len(interesting))])
		case 5:
			b = b[:at]
		case 6:
			end := at + r.IntN(len(b)-at)
			b = append(b[:end:end], b[at:]...)
		case 7:
			b = append(b[:at:at], b[at+1+r.IntN(3):]...)
		}
	}
	return b
}

// TestPayloadParserSurvivesAnything feeds it what the host writes, what it must
// refuse, and mutations of both for some seconds.
func TestPayloadParserSurvivesAnything(t *testing.T) {
	h := newHarness(t, "parse_fuzz")
	corpus := seeds()
	for _, b := range corpus {
		if h.parse(t, 'p', b) == 0 {
			t.Errorf("refused: %.200x", b)
		}
	}
	for name, b := range malformed() {
		if name != "huge file" && h.parse(t, 'p', b) != 0 {
			t.Errorf("took: %s", name)
		}
		if len(b) < 10_000 {
			corpus = append(corpus, b)
		}
	}
	fuzz(t, func(r *rand.Rand) bool {
		return h.parse(t, 'p', mutate(r, corpus[r.IntN(len(corpus))])) != 0
	})
}

// TestMalformedPayloadsHurtOnlyTheirExec sends them to a real agent.
func TestMalformedPayloadsHurtOnlyTheirExec(t *testing.T) {
	s := open(t)
	send := func(size int, b []byte) (*os.File, error) {
		exec, setup := s.sendRequest(t, request{kind: requestExec, payload: size}.encode(), b)
		defer exec.close()
		defer setup.close()
		if size > len(b) { // the host gives up half-way
			setup.close()
			return nil, nil
		}
		p := newProcess(s.Conn, "")
		p.exec, p.setup = exec, setup
		p.tty = len(b) > header && b[atFlags]&payloadTTY != 0
		err := p.Started(within(t, testhost.Patience))
		return p.Terminal(), err
	}
	valid := seeds()[2]
	for size, refused := range map[int]bool{
		0: true, 1: true, len(valid) - 1: true, len(valid): false,
		len(valid) + 1: false, maxPayload: false, maxPayload + 1: false, math.MaxInt32: false,
	} {
		_, err := send(size, valid)
		var start *StartError
		if errors.As(err, &start) != refused || refused && start.Stage != StagePayload {
			t.Errorf("%d bytes announced for %d: %v", size, len(valid), err)
		}
	}
	for name, b := range malformed() {
		_, err := send(len(b), b)
		var start *StartError
		if !errors.As(err, &start) || start.Stage != StagePayload {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	corpus := seeds()
	for range 200 {
		b := mutate(r, corpus[r.IntN(len(corpus))])
		terminal, err := send(len(b), b)
		var start *StartError
		if err != nil && !errors.As(err, &start) {
			t.Errorf("neither started nor refused: %v", err)
		}
		terminal.Close()
	}
	s.serves(t)
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

func FuzzParseEvent(f *testing.F) {
	for kind := range eventWithheld + 2 {
		b := make([]byte, eventSize)
		b[0], b[8] = byte(kind), 1
		f.Add(b)
		f.Add(b[:eventSize-1])
		f.Add(append(b, 0))
		f.Add(bytes.Repeat([]byte{0xff}, eventSize))
		for _, value := range []uint32{0, errnoMax + 1, 1 << 31, math.MaxUint32} {
			binary.NativeEndian.PutUint32(b[8:], value)
			f.Add(bytes.Clone(b))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEvent(b)
		if err != nil {
			return
		}
		if len(b) != eventSize || e.kind < eventHello || e.kind > eventDrained && e.kind != eventWithheld {
			t.Errorf("took %x as %+v", b, e)
		}
		if refused := e.exit.Refused; refused&^allRefused != 0 || refused != 0 && e.kind != eventExited {
			t.Errorf("refused calls %#x of event %d", refused, e.kind)
		}
		if (e.kind == eventFatal || e.kind == eventFailed) && (e.errno < 1 || e.errno > errnoMax) {
			t.Errorf("errno %d", e.errno)
		}
		if x := e.exit; e.kind == eventExited {
			if x.Status.Exited() == x.Status.Signaled() || x.UserTime < 0 || x.SystemTime < 0 || x.MaxRSS < 0 || x.UserTime+x.SystemTime < 0 {
				t.Errorf("exit %+v", x)
			}
		}
	})
}
