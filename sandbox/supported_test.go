package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// setField gives a field a value that is not empty.
func setField(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		setField(t, v.Field(0))
	case reflect.Interface:
		v.Set(reflect.ValueOf(struct {
			io.Reader
			io.Writer
		}{}))
	default:
		t.Fatalf("set a field of kind %s", v.Kind())
	}
}

// eachField calls check with one copy of T for each field, in which this field alone
// is set.
func eachField[T any](t *testing.T, check func(t *testing.T, name string, only T)) {
	for i := range reflect.TypeFor[T]().NumField() {
		field := reflect.TypeFor[T]().Field(i)
		t.Run(fieldName(field), func(t *testing.T) {
			var only T
			setField(t, reflect.ValueOf(&only).Elem().Field(i))
			check(t, fieldName(field), only)
		})
	}
}

func refused(t *testing.T, name string, err error, supported []string) {
	t.Helper()
	if slices.Contains(supported, name) {
		if err != nil {
			t.Errorf("%s is refused: %v", name, err)
		}
		return
	}
	var wrong *ConfigError
	if !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Reason, name+":") {
		t.Errorf("want a refusal of %s, got %v", name, err)
	}
}

func TestLocalRefusesEachFieldThatItDoesNotSupport(t *testing.T) {
	t.Chdir(t.TempDir()) // the workspace is made there
	create := func(r Request) error {
		p := newLocalProvider()
		defer p.Close()
		_, err := p.Create(t.Context(), r)
		return err
	}
	t.Run("config", func(t *testing.T) {
		eachField(t, func(t *testing.T, name string, only Config) {
			refused(t, name, create(Request{Config: only}), []string{"workspace", "env", "timeout", "grace"})
		})
	})
	t.Run("request", func(t *testing.T) {
		eachField(t, func(t *testing.T, name string, only Request) {
			if name != "Config" { // its fields are above
				refused(t, name, create(only), []string{"Name", "Reuse", "Tied"})
			}
		})
	})
	t.Run("command", func(t *testing.T) {
		eachField(t, func(t *testing.T, name string, only Command) {
			refused(t, name, startLocal(t, only), []string{"Args", "Env", "Timeout", "Grace", "Stdin", "Stdout", "Stderr", "OutputLimit", "NoFiles"})
		})
	})
}

func startLocal(t *testing.T, c Command) error {
	p := newLocalProvider()
	defer p.Close()
	i, err := p.Create(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	c.Args = []string{"true"}
	c.Env = nil // the value of the test is no variable
	e, err := i.Start(context.Background(), c, [3]*os.File{})
	if err == nil {
		err = e.Close()
	}
	return err
}

// A slice of no elements asks for nothing.
func TestLocalTakesEmptyLists(t *testing.T) {
	c := Config{Binds: []Bind{}, Overlays: []string{}, Env: map[string]string{}}
	if err := refuseOther(c, localConfig(c)); err != nil {
		t.Error(err)
	}
}

// Each field reaches the launcher, which refuses the ones that it cannot hold.
func TestIsolatedPassesOnEachField(t *testing.T) {
	eachField(t, func(t *testing.T, name string, only Request) {
		if reflect.DeepEqual(launchRequest(only), launchRequest(Request{})) {
			t.Errorf("the launcher is not told %s", name)
		}
	})
	eachField(t, func(t *testing.T, name string, only Command) {
		stream := slices.Contains([]string{"Stdin", "Stdout", "Stderr"}, name) // descriptors stand for these
		if told := !reflect.DeepEqual(only.withoutStreams(), spec.Command{}); told == stream {
			t.Errorf("the launcher is told %s: %t", name, told)
		}
	})
}
