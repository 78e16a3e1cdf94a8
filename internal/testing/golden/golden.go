// Package golden compares the output of a test with a file in testdata, byte for byte. It is for tests alone.
package golden

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Check compares got with a file in testdata. With the flag -update it writes the file first.
func Check(t testing.TB, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("differs from %s; go test -update rewrites the file:\n%s", file, got)
	}
}

// Full fails the test for each member of a value, at any depth, that has its zero value: a golden file must show each
// member. The elements of lists and maps must be full, too. Members that are not in JSON do not count, and neither do
// those below the names in but.
func Full(t testing.TB, v any, but ...string) {
	t.Helper()
	for _, name := range zeros("", reflect.ValueOf(v)) {
		if !slices.ContainsFunc(but, func(top string) bool { return strings.HasPrefix(name, top+".") }) {
			t.Errorf("the value for the golden file has no %s", name)
		}
	}
}

func zeros(name string, v reflect.Value) (names []string) {
	if v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0 {
		return []string{name}
	}
	switch v.Kind() {
	case reflect.Pointer:
		return zeros(name, v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			names = append(names, zeros(fmt.Sprintf("%s[%d]", name, i), v.Index(i))...)
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			names = append(names, zeros(fmt.Sprintf("%s[%v]", name, key), value)...)
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() && field.Tag.Get("json") != "-" {
				names = append(names, zeros(name+"."+field.Name, value)...)
			}
		}
	}
	return names
}
