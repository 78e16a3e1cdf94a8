package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// packagesVariable, set to all, demands each package of the list. make test-packages
// installs them.
const packagesVariable = "SANDBOX_RUNTIME_INTEGRATION_PACKAGES"

// leastPackages is the number of packages of the list that every host of the tests has: gcc,
// gdb, git, make, perl and python3.
const leastPackages = 6

// A packageCase is a program of a package, and a shell line that uses the program.
type packageCase struct {
	packages            []string
	program, line, word string
}

func packageCases(t *testing.T) []packageCase {
	t.Helper()
	text, err := os.ReadFile("testdata/packages")
	if err != nil {
		t.Fatal(err)
	}
	var cases []packageCase
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		last := len(fields) - 1
		switch {
		case strings.HasPrefix(line, "#"):
		case last < 3:
			t.Fatalf("testdata/packages: not a case: %q", line)
		default:
			cases = append(cases, packageCase{strings.Fields(fields[0]), fields[1], strings.Join(fields[2:last], " | "), fields[last]})
		}
	}
	return cases
}

// installed says whether the host has the packages. Other systems than Debian have the program
// in packages with other names.
func (c packageCase) installed() bool {
	if _, err := exec.LookPath(c.program); err != nil {
		return false
	}
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return len(c.packages) == 1 && c.packages[0] == c.program
	}
	for _, name := range c.packages {
		status, err := exec.Command("dpkg-query", "--show", "--showformat", "${db:Status-Status}", name).Output()
		if err != nil || string(status) != "installed" {
			return false
		}
	}
	return true
}

// A part of the list is tested everywhere: the packages that the host has.
func TestProgramsOfPackagesWork(t *testing.T) {
	all := os.Getenv(packagesVariable) == "all"
	ran := 0
	for _, c := range packageCases(t) {
		if !c.installed() {
			if all {
				t.Errorf("%s is not installed", c.packages)
			}
			continue
		}
		ran++
		t.Run(c.packages[0], func(t *testing.T) {
			s := newSandboxes(t)
			if got := s.do("--timeout", "5m", "--", "sh", "-c", c.line); got.code != 0 || !strings.Contains(got.stdout, c.word) {
				t.Errorf("%s: got %+v, want %q in the output", c.line, got, c.word)
			}
		})
	}
	if ran < leastPackages {
		t.Errorf("%d packages of the list are installed; at least %d should be", ran, leastPackages)
	}
}
