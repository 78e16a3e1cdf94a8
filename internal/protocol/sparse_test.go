package protocol

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// encoding/json reads what marshalSparse writes, and unmarshalSparse reads what encoding/json writes.
func TestSparseIsJSON(t *testing.T) {
	check := func(v any) bool {
		at := reflect.New(reflect.TypeOf(v))
		at.Elem().Set(reflect.ValueOf(v))
		usual, err := json.Marshal(at.Interface())
		if err != nil {
			return true // no JSON has this value
		}
		sparse, err := marshalSparse(at.Interface())
		if err != nil || !reflect.DeepEqual(parsed(t, sparse), parsed(t, usual)) {
			t.Errorf("got %s (%v), not %s", sparse, err, usual)
			return false
		}
		want, got := reflect.New(reflect.TypeOf(v)), reflect.New(reflect.TypeOf(v))
		wanted, err := json.Unmarshal(usual, want.Interface()), unmarshalSparse(usual, got.Interface())
		if (wanted == nil) != (err == nil) || !reflect.DeepEqual(want.Interface(), got.Interface()) {
			t.Errorf("%s became %+v (%v), not %+v (%v)", usual, got.Elem(), err, want.Elem(), wanted)
			return false
		}
		return true
	}
	type inner struct{ Name, Other string }
	type shadowing struct {
		inner
		Name string
	}
	for _, v := range []any{
		shadowing{inner{"a", "b"}, "c"}, struct{ P byPointer }{},
		Request{}, Request{Op: OpStart, Command: newWireCommand(spec.Command{Args: []string{"echo", "\xff\x00"}})}, Answer{},
		Request{Created: time.Now().Round(0), Stamps: []Stamp{{}}}, Answer{List: []spec.Info{{}}, Lacks: &[]string{}},
		Answer{Result: NewWireResult(spec.Result{Duration: 1, CPU: 2, ExitCode: 3})},
		Control{Signal: 9}, struct{ Name string }{"<a\u2028b>"},
	} {
		check(v)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		for _, v := range []any{&Request{}, &Answer{}, &Control{}} {
			fill(random, reflect.ValueOf(v).Elem())
			if !check(reflect.ValueOf(v).Elem().Interface()) {
				return
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

// byPointer has a form in JSON that only its pointer has.
type byPointer struct{ N int }

func (*byPointer) MarshalJSON() ([]byte, error) { return []byte(`"pointer"`), nil }
func (*byPointer) UnmarshalJSON([]byte) error   { return nil }

func parsed(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return v
}

// A text of another kind is an error, and a struct with an unknown tag is left to encoding/json.
func TestSparseRefusals(t *testing.T) {
	for _, text := range []string{"", "[]", "{", `{"op":1}`, `{"create":[]}`, `{"limits":{"pids":"x"}}`, `{} {}`} {
		if err := unmarshalSparse([]byte(text), &Request{}); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	type unknown struct {
		N int `json:"n,string"`
	}
	if text, err := marshalSparse(unknown{1}); err != nil || string(text) != `{"n":"1"}` {
		t.Errorf("got %s, %v", text, err)
	}
}
