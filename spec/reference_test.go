package spec

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// jsonNames are the names in JSON of a type's fields, and of the fields of structs in it.
func jsonNames(t reflect.Type) (all []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return jsonNames(t.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			all = append(all, name)
		}
		all = append(all, jsonNames(t.Field(i).Type)...)
	}
	return all
}

func TestReferenceHasEachField(t *testing.T) {
	page, err := os.ReadFile("../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	config, result, ok := strings.Cut(string(page), "\n## Result\n")
	if !ok {
		t.Fatal("the page has no part about Result")
	}
	// Output that is no text has other names.
	data, err := json.Marshal(Result{Stdout: []byte{0xff}, Stderr: []byte("text"), Exec: "x", Duration: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var printed map[string]any
	if err := json.Unmarshal(data, &printed); err != nil {
		t.Fatal(err)
	}
	ofResult := append(jsonNames(reflect.TypeFor[Result]()), jsonNames(reflect.TypeFor[wireFiles]())...)
	for name := range printed {
		ofResult = append(ofResult, name)
	}
	for part, fields := range map[string][]string{config: jsonNames(reflect.TypeFor[Config]()), result: ofResult} {
		if len(fields) < 20 {
			t.Errorf("only %d fields: %q", len(fields), fields)
		}
		for _, name := range fields {
			if !strings.Contains(part, "`"+name+"`") {
				t.Errorf("docs/reference.md lacks the field %s", name)
			}
		}
	}
}

// The error of a value below the bounds names the bounds.
func TestReferenceHasTheBoundsOfLimits(t *testing.T) {
	page, err := os.ReadFile("../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range LimitFields() {
		_, row, _ := strings.Cut(string(page), "\n| `"+l.Name+"` |")
		row, _, _ = strings.Cut(row, "\n")
		var little Limits
		text := "1"
		if l.Name == "cpus" {
			text = "0.001"
		}
		if err := l.Parse(&little, text); err != nil {
			t.Fatal(err)
		}
		for i, word := range strings.Fields(l.problem(little)) {
			if i > 0 && strings.ContainsAny(word, "0123456789") && !strings.Contains(row, "| "+word+" |") {
				t.Errorf("%s: the row %q lacks the bound %s", l.Name, row, word)
			}
		}
	}
}
