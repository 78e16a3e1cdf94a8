package configflags

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
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

func configOf(t *testing.T, args ...string) (spec.Config, error) {
	t.Helper()
	var config spec.Config
	var err error
	cmd := &cli.Command{Flags: Flags(), DisableSliceFlagSeparator: true, Action: func(_ context.Context, cmd *cli.Command) error {
		config, err = Config(cmd)
		return nil
	}}
	if err := cmd.Run(t.Context(), append([]string{"do"}, args...)); err != nil {
		t.Fatal(err)
	}
	return config, err
}

func TestVariablesOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\ufeffB=y\n")
	if c, err := configOf(t, "--env-file", file); err != nil || !maps.Equal(c.Env, map[string]string{"B": "y"}) {
		t.Errorf("with a byte order mark: %q, %v", c.Env, err)
	}
	write("# a comment\n\nA=1, 2\r\n  B= x # no comment\nC=\nD=file")
	c, err := configOf(t, "--env-file", file, "-e", "D=flag", "-w", "/tmp", "-v", "/etc/hostname:/h:ro")
	want := map[string]string{"A": "1, 2", "B": " x # no comment", "C": "", "D": "flag"}
	if err != nil || !maps.Equal(c.Env, want) {
		t.Errorf("%q, %v", c.Env, err)
	}
	if c.Cwd != "/tmp" || len(c.Binds) != 1 || c.Binds[0].Target != "/h" {
		t.Errorf("%+v", c)
	}
	for text, says := range map[string]string{
		"A=1\nHOME\n": file + ", line 2: env \"HOME\"", "=x": "line 1", "export A=1": "no space", strings.Repeat("A=1\n", 1<<18+1): "larger than 1m",
	} {
		write(text)
		if _, err := configOf(t, "--env-file", file); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if _, err := configOf(t, "--env-file", file+"-not"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
}

// A placeholder in capitals is no value.
func TestPlaceholdersOfFlagsAreNoValues(t *testing.T) {
	for _, f := range All() {
		if _, isBool := f.Flag.(*cli.BoolFlag); isBool {
			continue // it has no value
		}
		usage := f.Flag.(cli.DocGenerationFlag).GetUsage()
		_, rest, _ := strings.Cut(usage, "`")
		placeholder, _, found := strings.Cut(rest, "`")
		if !found || strings.ToUpper(placeholder) != strings.ReplaceAll(placeholder, "ro|rw", "RO|RW") {
			t.Errorf("--%s: the placeholder in %q is not in capitals", f.Name(), usage)
		}
	}
}
