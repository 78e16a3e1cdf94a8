package protocol

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

func TestListsComeInPieces(t *testing.T) {
	want := map[string]layer.Stamp{}
	for _, s := range []Stamp{
		{[]byte("a"), 1, 7, 0, false}, {[]byte("b\xff\n,;t"), -2, -3, 1 << 63, true}, {bytes.Repeat([]byte("x"), 3*PieceSize), 3, 0, 4, false},
	} {
		want[string(s.Path)] = s.Plain()
	}
	marks := map[string]layer.Mark{"d": {Opaque: true}, "e/f": {Copied: true, Origin: "\x00\xfb"}, "g": {Copied: true}}
	client := connect(t, func(c *call) {
		c.answer(LayersAnswer{Tree: &WireTree{OverlayHead: layer.OverlayHead{Path: "/t"}, Listed: []bool{true, false}, Stamped: true}}, nullFile(t), nullFile(t))
		var list []byte
		for path, m := range marks {
			list = AppendMark(list, path, m)
		}
		c.answer(LayersAnswer{Piece: &Piece{Bytes: list[:3]}})
		c.answer(LayersAnswer{Piece: &Piece{Bytes: list[3:], Last: true}})
		list = nil
		for _, s := range StampList(want) {
			list = AppendStamp(list, s)
		}
		for len(list) > 0 {
			n := min(len(list), PieceSize)
			c.answer(LayersAnswer{Piece: &Piece{Bytes: list[:n]}})
			list = list[n:]
		}
		c.answer(LayersAnswer{Piece: &Piece{Last: true}})
		c.answer(LayersAnswer{})
	})
	trees, err := client.Layers(t.Context(), "box")
	if err != nil || len(trees) != 1 {
		t.Fatal(trees, err)
	}
	defer trees[0].Close()
	if !maps.Equal(trees[0].Stamps, want) || !maps.Equal(trees[0].Layers[0].Marks, marks) || trees[0].Layers[1].Marks != nil {
		t.Errorf("got %d stamps, marks %+v", len(trees[0].Stamps), trees[0].Layers)
	}
}

// What came before is closed where a list does not come, or says why not.
func TestListsThatDoNotCome(t *testing.T) {
	for name, next := range map[string]Answer[any]{
		"another answer": {}, "an error": {Error: fault.ToWire(fault.ErrNotRunning)},
		"no list": {Value: LayersAnswer{Piece: &Piece{Bytes: []byte("half"), Last: true}}},
	} {
		client := connect(t, func(c *call) {
			c.answer(LayersAnswer{Tree: &WireTree{OverlayHead: layer.OverlayHead{Path: "/t"}, Listed: []bool{false}, Stamped: true}}, nullFile(t))
			c.send(next)
			c.control()
		})
		trees, err := client.Layers(t.Context(), "box")
		if err == nil || trees != nil || (name == "an error") != errors.Is(err, fault.ErrNotRunning) {
			t.Errorf("%s: %+v, %v", name, trees, err)
		}
	}
}

func TestListsThatAreNone(t *testing.T) {
	for _, text := range []string{"a", "a\x00", "a\x001", "a\x00x\x00", "a\x001,x\x00"} {
		if got, err := DecodeStamps([]byte(text)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestValuesAreCounted(t *testing.T) {
	for text, want := range map[string]int{
		"": 1, "1": 1, `"a,[{\",{\\"`: 1, `[]`: 2, `[1,2]`: 3, `{"a":[{},{}],"b\\":1}`: 7,
	} {
		if got := countValues([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	if err := CheckValues([]byte(strings.Repeat("[", 10)), 10); err == nil {
		t.Error("more than allowed")
	}
}

// nullFile is an open file that the test's end closes.
func nullFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
