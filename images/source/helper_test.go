package source

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// helperHome is a home with Docker's config.json, and with programs on the PATH.
func helperHome(t *testing.T, config string, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	testhost.WriteFile(t, filepath.Join(dir, ".docker/config.json"), config)
	for name, text := range programs {
		testhost.Script(t, filepath.Join(dir, "docker-credential-"+name), text)
	}
	t.Setenv("HOME", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func authOf(user string) string {
	return fmt.Sprintf(`{"auth":%q}`, base64.StdEncoding.EncodeToString([]byte(user+":x")))
}

// A public image needs no credentials, so a helper that does not give them costs a note, and a bounded time.
func TestFailedHelperStopsNoPublicPull(t *testing.T) {
	testhost.Long(t)
	for name, test := range map[string]struct{ program, says string }{
		"missing":   {"", "executable file not found"},
		"failing":   {"#!/bin/sh\necho secret; exit 3\n", "exit status 3"},
		"no answer": {"#!/bin/sh\necho secret\n", "not JSON"},
		"hanging":   {"#!/bin/sh\nsleep 1000 & echo $! >$HOME/child; wait\n", "did not answer within 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			programs := map[string]string{}
			if test.program != "" {
				programs["test"] = test.program
			}
			home := helperHome(t, `{"credsStore":"test"}`, programs)
			f := newFakeRegistry(t)
			layer := noise(t, 1, 1000)
			f.putImage(t, "tag", "amd64", layer)
			var notes []string
			o := testOptions(t)
			o.Mirrors = map[string][]string{f.host: {f.host}}
			o.Note = func(line string) { notes = append(notes, line) }
			mustRead(t, f.ref(), o, layer)
			if len(notes) != 1 || !strings.Contains(notes[0], "config.json: credential helper docker-credential-test: ") ||
				!strings.Contains(notes[0], test.says) || strings.Contains(notes[0], "secret") {
				t.Errorf("notes %q", notes)
			}
			if name == "hanging" {
				checkEnded(t, filepath.Join(home, "child"))
			}
			// A registry that wants credentials makes the pull fail, with the reason.
			demand(f, "")
			o.Mirrors, o.Cache = nil, t.TempDir()
			refuses(t, f.ref(), o, "401", "docker-credential-test", test.says)
		})
	}
}

// checkEnded checks that the process whose number is in a file has ended.
func checkEnded(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "the helper's child has ended", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return unix.Kill(pid, 0) == unix.ESRCH || err == nil && strings.Contains(string(state), ") Z ")
	})
}

// A helper that leaves a program with its output open has answered.
func TestHelperThatLeavesAProgram(t *testing.T) {
	home := helperHome(t, `{"credsStore":"test"}`, map[string]string{"test": "#!/bin/sh\nsleep 1000 & echo $! >$HOME/child\necho '{\"Username\":\"u\",\"Secret\":\"x\"}'\n"})
	found, err := Files{}.Lookup(t.Context(), "some.example", "a")
	if err != nil || found.Username != "u" {
		t.Errorf("%+v, %v", found, err)
	}
	text, err := os.ReadFile(filepath.Join(home, "child"))
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = unix.Kill(pid, unix.SIGKILL) // it can have ended
	}
}

// A helper ends with a killed client.
func TestHelperEndsWithItsClient(t *testing.T) {
	if os.Getenv("SOURCE_TEST_CLIENT") != "" {
		_, _, _ = askHelper(t.Context(), "test", "some.example")
		return
	}
	home := helperHome(t, `{"credsStore":"test"}`, map[string]string{"test": "#!/bin/sh\ncd ${0%/*} && echo $$ >new && mv new helper && exec sleep 1000\n"})
	client := exec.Command("/proc/self/exe", "-test.run=^TestHelperEndsWithItsClient$")
	client.Env = append(os.Environ(), "SOURCE_TEST_CLIENT=1")
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "the helper runs", func() bool {
		_, err := os.Stat(filepath.Join(home, "helper"))
		return err == nil
	})
	if err := client.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = client.Wait() // tells that it was killed
	checkEnded(t, filepath.Join(home, "helper"))
}

// A file that cannot be read stops no pull of a public image, either.
func TestDamagedCredentialFileStopsNoPublicPull(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "no base64": `{"auths":{"HOST":{"auth":"!"}}}`} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 1000)
			f.putImage(t, "tag", "amd64", layer)
			helperHome(t, strings.Replace(text, "HOST", f.host, 1), nil)
			var notes []string
			o := testOptions(t)
			o.Note = func(line string) { notes = append(notes, line) }
			mustRead(t, f.ref(), o, layer)
			if len(notes) != 1 || !strings.Contains(notes[0], "config.json") {
				t.Errorf("notes %q", notes)
			}
			f.set(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusNotFound)
				return true
			})
			o.Cache = t.TempDir()
			refuses(t, f.ref(), o, "404")
		})
	}
}

func TestHelpersAndEntriesHaveDockersOrder(t *testing.T) {
	const good = "#!/bin/sh\necho '{\"Username\":\"helped\",\"Secret\":\"x\"}'\n"
	const none = "#!/bin/sh\necho 'credentials not found in native keychain'; exit 1\n"
	for name, test := range map[string]struct{ config, program, want string }{
		"store before entry":              {`{"auths":{"h.example":` + authOf("old") + `},"credsStore":"test"}`, good, "helped"},
		"entry without one in the store":  {`{"auths":{"h.example":` + authOf("entry") + `},"credsStore":"test"}`, none, "entry"},
		"entry behind a failed helper":    {`{"auths":{"h.example":` + authOf("entry") + `},"credsStore":"none"}`, good, "entry"},
		"helper before store":             {`{"credHelpers":{"h.example":"test"},"credsStore":"none"}`, good, "helped"},
		"helper of an address":            {`{"credHelpers":{"https://H.example/v2/":"test"},"credsStore":"none"}`, good, "helped"},
		"helper of another registry":      {`{"credHelpers":{"g.example":"none"},"credsStore":"test"}`, good, "helped"},
		"empty helper leaves the entries": {`{"auths":{"h.example":` + authOf("entry") + `},"credHelpers":{"h.example":""},"credsStore":"test"}`, good, "entry"},
	} {
		t.Run(name, func(t *testing.T) {
			helperHome(t, test.config, map[string]string{"test": test.program})
			if found, _ := (Files{}).Lookup(t.Context(), "h.example", "a"); found.Username != test.want {
				t.Errorf("%q instead of %q", found.Username, test.want)
			}
		})
	}
}

// A question to a helper names the server as Docker's logins do, for each spelling of the key.
func TestHelperIsAskedForDockersServer(t *testing.T) {
	helperHome(t, `{"credHelpers":{"https://h.example/v1/":"test","docker.io":"test"}}`,
		map[string]string{"test": "#!/bin/sh\nread -r s || [ -n \"$s\" ]\necho \"{\\\"Username\\\":\\\"$s\\\",\\\"Secret\\\":\\\"x\\\"}\"\n"})
	for host, want := range map[string]string{"h.example": "h.example", "docker.io": "https://index.docker.io/v1/"} {
		if found, err := (Files{}).Lookup(t.Context(), host, "a"); err != nil || found.Username != want {
			t.Errorf("%s: %+v, %v", host, found, err)
		}
	}
}

func TestKeysOfCredentials(t *testing.T) {
	for name, test := range map[string]struct {
		keys             []string // the user of each entry is its key
		host, repository string
		want             string
	}{
		"host":                       {[]string{"r.example"}, "r.example", "team/app", "r.example"},
		"port":                       {[]string{"r.example", "r.example:5000"}, "r.example:5000", "a", "r.example:5000"},
		"another port":               {[]string{"r.example:5001", "r.example"}, "r.example:5000", "a", ""},
		"address":                    {[]string{"https://r.example"}, "r.example", "a", "https://r.example"},
		"address with a slash":       {[]string{"https://r.example/"}, "r.example", "a", "https://r.example/"},
		"address with v1":            {[]string{"https://r.example/v1/"}, "r.example", "a", "https://r.example/v1/"},
		"address with v2":            {[]string{"https://r.example:5000/v2"}, "r.example:5000", "a", "https://r.example:5000/v2"},
		"address with a path":        {[]string{"https://r.example/artifactory/docker/"}, "r.example", "a", "https://r.example/artifactory/docker/"},
		"plain http":                 {[]string{"http://r.example:5000/"}, "r.example:5000", "a", "http://r.example:5000/"},
		"slash alone":                {[]string{"r.example/"}, "r.example", "a", "r.example/"},
		"v2 without scheme":          {[]string{"r.example/v2/"}, "r.example", "a", "r.example/v2/"},
		"large letters":              {[]string{"R.Example:5000"}, "r.example:5000", "a", "R.Example:5000"},
		"large letters in the name":  {[]string{"r.example"}, "R.EXAMPLE", "a", "r.example"},
		"the scope itself first":     {[]string{"https://r.example/v1/", "http://r.example", "R.example", "r.example"}, "r.example", "a", "r.example"},
		"https before http":          {[]string{"http://r.example", "https://r.example/v1/", "r.example/"}, "r.example", "a", "https://r.example/v1/"},
		"repository":                 {[]string{"r.example", "r.example/team", "r.example/team/app"}, "r.example", "team/app", "r.example/team/app"},
		"parent of a repository":     {[]string{"r.example", "r.example/team"}, "r.example", "team/app", "r.example/team"},
		"parent with a slash":        {[]string{"r.example", "r.example/team/"}, "r.example", "team/app", "r.example/team/"},
		"another repository":         {[]string{"r.example/team/app"}, "r.example", "team/application", ""},
		"repository of Docker Hub":   {[]string{"https://index.docker.io/v1/", "docker.io/me"}, "docker.io", "me/app", "docker.io/me"},
		"Docker Hub":                 {[]string{"https://index.docker.io/v1/"}, "docker.io", "library/debian", "https://index.docker.io/v1/"},
		"Docker Hub without scheme":  {[]string{"index.docker.io"}, "docker.io", "library/debian", "index.docker.io"},
		"Docker Hub as podman's":     {[]string{"docker.io"}, "docker.io", "library/debian", "docker.io"},
		"Docker Hub by its registry": {[]string{"https://registry-1.docker.io/v2/"}, "docker.io", "library/debian", "https://registry-1.docker.io/v2/"},
		"longer host":                {[]string{"r.example.org", "xr.example"}, "r.example", "a", ""},
		"no key":                     {[]string{"", "/", "https://"}, "r.example", "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			auths := map[string]authEntry{}
			for _, key := range test.keys {
				auths[key] = authEntry{Username: key, Password: "x"}
			}
			found, _, err := (&authFile{Auths: auths}).lookup(t.Context(), test.host, test.repository)
			if err != nil || found.Username != test.want {
				t.Errorf("%q instead of %q, %v", found.Username, test.want, err)
			}
		})
	}
	// An empty entry, as Docker leaves for a store, hides none of the others.
	f := &authFile{Auths: map[string]authEntry{"r.example": {}, "https://r.example": {IdentityToken: "token"}}}
	if found, ok, err := f.lookup(t.Context(), "r.example", "a"); !ok || err != nil || found.IdentityToken != "token" {
		t.Errorf("%+v, %v", found, err)
	}
}

// podman login without XDG_RUNTIME_DIR, such as by sudo, writes below /run/containers.
func TestPodmansFileWithoutRuntimeDirectory(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	if all, want := authFiles(), fmt.Sprintf("/run/containers/%d/auth.json", os.Getuid()); !slices.Contains(all, want) {
		t.Errorf("%q lack %s", all, want)
	}
}

type failingCredentials struct{}

func (failingCredentials) Lookup(context.Context, string, string) (Credential, error) {
	return Credential{}, fmt.Errorf("the vault is sealed")
}

func TestFailedCredentialsOfACallerStopNoPublicPull(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 1000)
	f.putImage(t, "tag", "amd64", layer)
	o := testOptions(t)
	o.Credentials = failingCredentials{}
	mustRead(t, f.ref(), o, layer)
	demand(f, "")
	o.Cache = t.TempDir()
	refuses(t, f.ref(), o, "401", "the vault is sealed")
}
