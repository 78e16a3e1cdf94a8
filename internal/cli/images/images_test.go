package images

import (
	"bytes"
	"encoding/json"
	"testing"
)

// The author of an image chooses the texts of a config, and a terminal would obey some characters. They stay the same text.
func TestAnImagesTextIsNoCommandOfTheTerminal(t *testing.T) {
	text := "a\u009b31m\u202e\x7f\U000e0041é世"
	var out bytes.Buffer
	raw := json.RawMessage(`{"a":"` + text + `"}`)
	if err := printIndented(&out, raw); err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"a\": \"a\\u009b31m\\u202e\\u007f\\udb40\\udc41é世\"\n}\n"
	if got := out.String(); got != want {
		t.Errorf("%q instead of %q", got, want)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["a"] != text {
		t.Errorf("%q, %v", back["a"], err)
	}
}
