package images

import (
	"os"
	"path/filepath"
	"testing"

	imagesource "github.com/sandbox-runtime/sandbox-runtime/images/source"
)

func TestALayoutWithAColonInItsNameIsALayout(t *testing.T) {
	for _, name := range []string{"layout", "layout:1"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "oci-layout"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		text, _, err := importedFrom(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := imagesource.Parse(text)
		if err != nil || got.Kind != imagesource.Layout || filepath.Clean(got.Path) != dir || got.Tag != "" {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}
