package spec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Paths of any bytes come back from JSON, those that are text as such.
func TestFilesSurviveJSON(t *testing.T) {
	for _, f := range []Files{
		{},
		{Created: []string{"/a", "/b\n\"c"}, Modified: []string{"/m"}, Deleted: []string{"/d"}, Truncated: true, Partial: []string{"/workspace"}},
		{Created: []string{"/a", "/\xff"}, Modified: []string{"/\xfe"}, Deleted: []string{"/d/\x80", "/e/\x81"}},
	} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var back Files
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, f) {
			t.Errorf("%+v became %s and then %+v, %v", f, text, back, err)
		}
		if strings.Contains(string(text), "null") || strings.Contains(string(text), "\\ufffd") {
			t.Errorf("%s", text)
		}
	}
}
