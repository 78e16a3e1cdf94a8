package configflags

import (
	"context"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// The error of a launcher names the flags that the user typed, and no field that the
// runtime has set by itself.
func TestAsTypedNamesOnlyTypedFlags(t *testing.T) {
	tests := []struct {
		args         []string
		reason, want string
	}{
		{[]string{"--overlay", "/a"}, "overlays, cwd: no", "--overlay: no"},
		{[]string{"--overlay", "/a", "--cwd", "/a"}, "overlays, cwd: no", "--overlay, --cwd: no"},
		{[]string{"--overlay", "/a"}, "overlays[0]: no", "--overlay: no"},
		{[]string{"--config", "f", "--overlay", "/a"}, "overlays, cwd: no", "--overlay, cwd: no"},
		{[]string{"--overlay", "/a"}, "workspace /etc: no", "workspace /etc: no"},
		{[]string{"--overlay", "/a"}, "no field", "no field"},
		{nil, "cwd: no", "cwd: no"},
	}
	for _, tt := range tests {
		cmd := &cli.Command{Flags: Flags(), Action: func(_ context.Context, cmd *cli.Command) error {
			if got := AsTyped(cmd, &sandbox.ConfigError{Reason: tt.reason}).Error(); got != tt.want {
				t.Errorf("%q with %q: got %q, want %q", tt.reason, tt.args, got, tt.want)
			}
			return nil
		}}
		if err := cmd.Run(t.Context(), append([]string{"do"}, tt.args...)); err != nil {
			t.Error(err)
		}
	}
}
