package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestEachOperationOfTheProtocolHasAHandler(t *testing.T) {
	source, err := os.ReadFile("../../protocol/op.go")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, match := range regexp.MustCompile(`\{word: "([a-z-]+)"`).FindAllSubmatch(source, -1) {
		words = append(words, string(match[1]))
	}
	slices.Sort(words)
	if served := slices.Sorted(maps.Keys(operations)); len(words) < 30 || !slices.Equal(words, served) {
		t.Errorf("the protocol has\n%v, and the server\n%v", words, served)
	}
}

// A user without any permission of a rule reaches nothing of others with any operation.
func TestEachOperationNeedsItsPermission(t *testing.T) {
	const start = `{"command":{"args":["true"]}}`
	refused := map[string]struct {
		request string
		is      error
	}{
		"create": {ask("create", `{"create":{"config":{"network":"full"}}}`), fault.ErrRefused},
		"pool":   {ask("pool", `{"min":1,"max":2}`), fault.ErrRefused},

		"image-pull":   {ask("image-pull", `[]`), fault.ErrRefused},
		"image-layer":  {ask("image-layer", `{"diff_id":"x"}`), fault.ErrRefused},
		"image-add":    {ask("image-add", `{"config":""}`), fault.ErrRefused},
		"images":       {ask("images", `{}`), fault.ErrRefused},
		"image":        {ask("image", `"x"`), fault.ErrRefused},
		"image-remove": {ask("image-remove", `"x"`), fault.ErrRefused},
		"image-prune":  {ask("image-prune", `{}`), fault.ErrRefused},
		"image-verify": {ask("image-verify", `"x"`), fault.ErrRefused},

		"info":           {about("info", "theirs", `{}`), fault.ErrNotFound},
		"start":          {about("start", "theirs", start), fault.ErrNotFound},
		"attach":         {about("attach", "theirs", `"e1"`), fault.ErrNotFound},
		"execs":          {about("execs", "theirs", `{}`), fault.ErrNotFound},
		"stats":          {about("stats", "theirs", `{}`), fault.ErrNotFound},
		"pause":          {about("pause", "theirs", `{}`), fault.ErrNotFound},
		"resume":         {about("resume", "theirs", `{}`), fault.ErrNotFound},
		"update":         {about("update", "theirs", `{"pids":20}`), fault.ErrNotFound},
		"network":        {about("network", "theirs", `{}`), fault.ErrNotFound},
		"network-log":    {about("network-log", "theirs", `false`), fault.ErrNotFound},
		"network-decide": {about("network-decide", "theirs", `{}`), fault.ErrNotFound},
		"dial":           {about("dial", "theirs", `{"network":"tcp","address":":80"}`), fault.ErrNotFound},
		"undo":           {about("undo", "theirs", `1`), fault.ErrNotFound},
		"discard":        {about("discard", "theirs", `{}`), fault.ErrNotFound},
		"snapshot":       {about("snapshot", "theirs", `"s"`), fault.ErrNotFound},
		"workspace":      {about("workspace", "theirs", `{"workspace":"/"}`), fault.ErrNotFound},
		"layers":         {about("layers", "theirs", `{}`), fault.ErrNotFound},
		"applied":        {about("applied", "theirs", `{"tree":"/t","stamps":[]}`), fault.ErrNotFound},
		"verify":         {about("verify", "theirs", `true`), fault.ErrNotFound},
		"untie":          {about("untie", "theirs", `{"since":"0001-01-01T00:00:00Z"}`), fault.ErrNotFound},

		"update of one's own":    {about("update", "mine", `{"pids":100000}`), fault.ErrRefused},
		"network of one's own":   {about("network", "mine", `{"grant":{"network":"full"}}`), fault.ErrRefused},
		"workspace of one's own": {about("workspace", "mine", `{"workspace":"/"}`), fault.ErrRefused},
		"start in one's own":     {about("start", "mine", `{"command":{"args":["true"],"detached":true,"output_limit":1000000000}}`), fault.ErrRefused},
	}
	own := map[string]struct{ request, answer string }{ // the user has these, with the user's own objects
		"list":            {ask("list", `{}`), `"id":"mine"`},
		"events":          {ask("events", `{}`), ""},
		"snapshots":       {ask("snapshots", `{}`), `["of-1001"]`},
		"beginning":       {ask("beginning", `"theirs"`), ""},
		"remove-snapshot": {ask("remove-snapshot", `"theirs"`), ""},
		"remove":          {about("remove", "theirs", `"0001-01-01T00:00:00Z"`), ""},
	}
	for word := range operations {
		if refused[word].is == nil && own[word].request == "" {
			t.Errorf("%s: add the permission to this test", word)
		}
	}
	w := newWorld(t, Rule{User: "1001"}, Rule{User: "1002"})
	w.core.beginnings = map[string]protocol.Beginning{"theirs of 1002": {Cwd: "/secret"}}
	box(t, w.client(t, 1001), "mine")
	box(t, w.client(t, 1002), "theirs")
	h := newHostileClient(t, w, 1001)
	h.hello()
	for name, test := range refused {
		if a, err := answer(t, h.call(frame(0, test.request))); err != nil || a.Error == nil || !errors.Is(a.Error.Err(), test.is) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	for name, test := range own {
		a, err := answer(t, h.call(frame(0, test.request)))
		if err != nil || a.Error != nil || !strings.Contains(string(a.Value), test.answer) || strings.Contains(string(a.Value), "theirs") ||
			strings.Contains(string(a.Value), "secret") {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if theirs := w.core.box("theirs"); theirs == nil || theirs.currentInfo().State != spec.StateRunning || theirs.execs > 0 || theirs.updated() != (spec.Limits{}) {
		t.Errorf("the sandbox of another user was reached: %+v", theirs)
	}
}

// A server takes each request that a client can encode, without a loss.
func TestRequestsAreDecodedAsEncoded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		for _, q := range []any{
			&protocol.CreateRequest{}, &protocol.About[protocol.StartRequest]{}, &protocol.About[protocol.NetworkRequest]{},
			&protocol.About[spec.Limits]{}, &protocol.About[protocol.WorkspaceRequest]{}, &protocol.About[protocol.AppliedRequest]{},
			&protocol.About[protocol.Untie]{}, &protocol.About[protocol.Target]{}, &protocol.About[time.Time]{}, &protocol.About[bool]{},
			&protocol.ImageLayer{}, &protocol.AddImage{}, &spec.PoolConfig{},
		} {
			fill(random, reflect.ValueOf(q).Elem())
			sent, err := json.Marshal(q)
			if err != nil {
				continue // no JSON has this value
			}
			got := reflect.New(reflect.TypeOf(q).Elem()).Interface()
			if err := decode(sent, got); err != nil {
				t.Fatalf("%s: %v", sent, err)
			}
			if again, err := json.Marshal(got); err != nil || !bytes.Equal(again, sent) {
				t.Fatalf("%s became %s, %v", sent, again, err)
			}
		}
	}
}

// fill sets about half of the fields of a value.
func fill(random *rand.Rand, v reflect.Value) {
	if random.IntN(2) == 0 || !v.CanSet() {
		return
	}
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(random.Int64N(1e9), 5).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString([]string{"a", "<é>", "\n\"", "10m"}[random.IntN(4)])
	case reflect.Int, reflect.Int64:
		v.SetInt(random.Int64N(1e6))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(random.Uint64N(200))
	case reflect.Float64:
		v.SetFloat(float64(random.IntN(9)) / 2)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(random, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), random.IntN(3), 3))
		for i := range v.Len() {
			fill(random, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(random, key)
		fill(random, value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(random, v.Field(i))
		}
	}
}
