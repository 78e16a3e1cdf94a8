package images

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Without this rule, --image dir:/ would import the whole host as an image that the sandbox does not find.
func TestOnlyNamesOfRegistriesArePulledForUse(t *testing.T) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{&sandboxtest.Fake{}}, Prefer: []string{sandboxtest.Name}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	take := func(image string, flags ...string) error {
		cmd := &cli.Command{
			Name: "do", Flags: []cli.Flag{PullFlag(), commandline.JSONFlag("")}, Writer: io.Discard, ErrWriter: io.Discard,
			Action: func(ctx context.Context, cmd *cli.Command) error {
				_, err := Take(ctx, cmd, m, spec.Config{Image: image}, TellNote(cmd))
				return err
			},
		}
		return cmd.Run(t.Context(), append([]string{"do"}, flags...))
	}
	for _, wrong := range []string{"dir:/srv/root", "dir:root", "oci:/srv/layout", "rootfs:/srv/root.tar", "-", "sha256:" + strings.Repeat("0", 64)} {
		for _, when := range []string{pullMissing, pullAlways} {
			if err := take(wrong, "--pull", when); err == nil || !strings.Contains(err.Error(), "cannot be pulled") {
				t.Errorf("--image %s --pull %s: %v", wrong, when, err)
			}
		}
	}
	if all, err := m.Images(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("images were pulled: %+v, %v", all, err)
	}
	if err := take("busybox"); err != nil {
		t.Error(err)
	}
	// An image can have the name of a kind.
	if _, err := m.PullImage(t.Context(), "busybox", sandbox.PullOptions{Name: "oci:1"}); err != nil {
		t.Fatal(err)
	}
	if err := take("oci:1"); err != nil {
		t.Error(err)
	}
}
