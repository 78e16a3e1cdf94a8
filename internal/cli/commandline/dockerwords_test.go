package commandline

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

func TestFlagsOfDockerLeadToOurs(t *testing.T) {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "memory"}, &cli.StringFlag{Name: "publish"}, &cli.StringFlag{Name: "user"},
		&cli.StringFlag{Name: "bind"}, &cli.BoolFlag{Name: "detach"},
	}
	for _, tt := range []struct{ command, flag, want string }{
		{"up", "-m", "unknown flag -m; did you mean --memory?"},
		{"up", "-p", "unknown flag -p; did you mean --publish?"},
		{"up", "-u", "unknown flag -u; did you mean --user?"},
		{"up", "-volume", "unknown flag --volume; did you mean --bind?"},
		{"logs", "-d", "unknown flag -d; did you mean --detach?"},
		{"up", "-memry", "unknown flag --memry; did you mean --memory?"},
		{"up", "-x", "unknown flag -x"},
		{"up", "-root", "unknown flag --root; it comes before the command, as in: sandbox-runtime --root … up"},
		{"changes", "-data", "unknown flag --data; it comes before the command, as in: sandbox-runtime --data … changes"},
		{"do", "-d", "exec --detach NAME COMMAND"},
		{"do", "-rm", "leave it out: do removes the sandbox"},
		{"do", "-name", "up NAME"},
		{"up", "-name", "as in: up box"},
		{"up", "-rm", "down NAME removes"},
		{"exec", "-rm", "the sandbox stays"},
		{"run", "-rm", "do --image NAME -- COMMAND"},
		{"run", "-it", "do --image NAME -- COMMAND"},
	} {
		got := UnknownFlag(&cli.Command{Name: tt.command, Flags: flags}, errors.New("flag provided but not defined: "+tt.flag)).Error()
		if whole := strings.HasPrefix(tt.want, "unknown"); whole && got != tt.want || !strings.Contains(got, tt.want) {
			t.Errorf("%s %s: %s, want %s", tt.command, tt.flag, got, tt.want)
		}
	}
}

func TestCommandsOfDockerLeadToOurs(t *testing.T) {
	names := []string{"do", "up", "down", "image", "kill", "list"}
	for typed, want := range map[string]string{
		"rm": "sandbox-runtime down NAME", "stop": "sandbox-runtime down NAME", "version": "sandbox-runtime --version",
		"images": "sandbox-runtime image ls", "pull": "sandbox-runtime image pull NAME", "lst": "did you mean list?",
	} {
		if got := CommandLike(names, typed); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
	if got := CommandLike(names, "nonsense"); got != "" {
		t.Errorf("nonsense: %q", got)
	}
	for typed := range dockerCommands {
		if slices.Contains(names, typed) {
			t.Errorf("%s is a command of ours", typed)
		}
	}
}
