package launcher

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestAForkWithoutTheImageStartsInNoDirectoryOfTheImage(t *testing.T) {
	for _, c := range []struct {
		config spec.Config
		want   string
	}{
		{spec.Config{Image: "app", Cwd: "/data"}, ""},
		{spec.Config{Image: "app", Cwd: "/src", Overlays: []string{"/src"}}, "/src"},
		{spec.Config{Cwd: "/workspace"}, "/workspace"},
	} {
		if b := beginningOf(&overlay.Snapshot{Config: c.config}); b.Cwd != c.want || b.Image != "" {
			t.Errorf("%+v: %+v", c.config, b)
		}
	}
}
