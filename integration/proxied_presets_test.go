package integration

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// presetClients read from the services of presets with their default configuration. No server answers them, so each
// fails.
var presetClients = []struct{ name, program, preset, script string }{
	{"npm", "npm", "@npm", `npm view --fetch-retries 0 left-pad`},
	{"yarn 1 by corepack", "corepack", "@npm", `COREPACK_ENABLE_DOWNLOAD_PROMPT=0 corepack yarn@1.22.22 --version`},
	{"yarn 4 by corepack", "corepack", "@npm", `COREPACK_ENABLE_DOWNLOAD_PROMPT=0 corepack yarn@4.1.1 --version`},
	{"pnpm by corepack", "corepack", "@npm", `COREPACK_ENABLE_DOWNLOAD_PROMPT=0 corepack pnpm@8.15.4 --version`},
	{"pip", "python3", "@pypi", `PYTHONPATH=/pip python3 -m pip --isolated --retries 0 download requests`},
	{"go", "go", "@go", `export GOFLAGS=-modcacherw GOPATH=$PWD/path GOCACHE=$PWD/cache; /go/bin/go list -m -versions golang.org/x/text`},
	{"a toolchain of go", "go", "@go", `export GOFLAGS=-modcacherw GOPATH=$PWD/path GOCACHE=$PWD/cache GOTOOLCHAIN=go1.99.1; /go/bin/go version`},
	{"git", "git", "@github", `git ls-remote https://github.com/git/git`},
	{"apt of Debian", "apt-get", "@debian", `echo "deb [trusted=yes] http://deb.debian.org/debian bookworm main
deb [trusted=yes] http://cdn-aws.deb.debian.org/debian bookworm main
deb [trusted=yes] http://security.debian.org/debian-security bookworm-security main" > list; ` + presetApt},
	{"apt of Ubuntu", "apt-get", "@ubuntu", `echo "deb [trusted=yes] http://eu-north-1.ec2.archive.ubuntu.com/ubuntu noble main
deb [trusted=yes] http://eu-north-1.ec2.ports.ubuntu.com/ubuntu-ports noble main
deb [trusted=yes] http://security.ubuntu.com/ubuntu noble-security main" > list; ` + presetApt},
}

const presetApt = `mkdir -p state/lists/partial cache/archives/partial; touch status
apt-get -q -o Dir::State=$PWD/state -o Dir::State::status=$PWD/status -o Dir::Cache=$PWD/cache -o Dir::Etc::SourceList=$PWD/list -o Dir::Etc::SourceParts=/nothing \
	-o APT::Update::Error-Mode=any -o Acquire::Retries=0 update`

// A preset allows all names that a client of its service asks for. A name without a rule would be a violation.
func TestClientsAskForNamesOfTheirPresets(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newFarWorld(t)
	w.serveNames(t, t.TempDir()) // an answer is quicker than none
	for _, c := range presetClients {
		t.Run(c.name, func(t *testing.T) {
			need(t, proxiedClient{program: c.program}.missing())
			w.says(t, "up", "--allow", c.preset, "--bind", peer("usr/lib/python3/dist-packages")+":/pip", "--bind", goRoot(t)+":/go", "box")
			defer w.on(t, "down", "box")
			r := w.report(t, "exec", "--json", "box", "sh", "-c", "cd $(mktemp -d)\n"+c.script)
			if len(r.Violations) > 0 || r.ExitCode == 0 {
				t.Errorf("%+v", r)
			}
			if w.use(t).Requests == 0 {
				t.Errorf("the client has asked for no name: %+v", r)
			}
		})
	}
}
