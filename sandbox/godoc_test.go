package sandbox_test

import (
	"os/exec"
	"reflect"
	"regexp"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// The types are aliases, for which go doc shows no fields: the comments list them.
func TestGoDocShowsTheFields(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[sandbox.Config](), reflect.TypeFor[sandbox.Limits](), reflect.TypeFor[sandbox.Result](),
		reflect.TypeFor[sandbox.PoolConfig](), reflect.TypeFor[sandbox.PoolStats](), reflect.TypeFor[sandbox.Stats](),
		reflect.TypeFor[sandbox.Info](), reflect.TypeFor[sandbox.ExecInfo](), reflect.TypeFor[sandbox.NetworkChange](),
	} {
		text, err := exec.Command("go", "doc", ".", typ.Name()).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			if !regexp.MustCompile(`(?m)^\s+(\w+, )*` + name + `(, \w+)*\s+\S.*$`).Match(text) {
				t.Errorf("go doc %s does not show the field %s:\n%s", typ.Name(), name, text)
			}
		}
	}
}
