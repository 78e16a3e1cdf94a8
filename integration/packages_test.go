package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// packagesVariable, set to all, demands each package of the list. make test-packages
// installs them.
const packagesVariable = "SANDBOX_RUNTIME_INTEGRATION_PACKAGES"

// leastPackages is the number of packages of the list that every host of the tests has: gcc,
// gdb, git, make, perl and python3.
const leastPackages = 6

// leastPrograms is the number of programs in the list.
const leastPrograms = 100

// A packageCase is a program of a package, and a shell line that uses the program.
type packageCase struct {
	packages            []string
	program, line, word string
	// result is "works", with an option that the program needs inside, or the reason why it does not
	// work, after "no: ".
	result string
}

func (c packageCase) works() bool { return !strings.HasPrefix(c.result, "no: ") }

func packageCases(t *testing.T) []packageCase {
	t.Helper()
	text, err := os.ReadFile("testdata/packages")
	if err != nil {
		t.Fatal(err)
	}
	var cases []packageCase
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields, result := strings.Split(strings.TrimSuffix(line, "\n"), " | "), "works"
		last := len(fields) - 1
		if strings.HasPrefix(fields[last], "works ") || strings.HasPrefix(fields[last], "no: ") {
			result, last = fields[last], last-1
		}
		if last < 3 {
			t.Fatalf("testdata/packages: not a case: %q", line)
		}
		cases = append(cases, packageCase{strings.Fields(fields[0]), fields[1], strings.Join(fields[2:last], " | "), fields[last], result})
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

// A part of the list is tested everywhere: the packages that the host has. A program that does not work
// has to fail for the reason in the list.
func TestProgramsOfPackagesWork(t *testing.T) {
	testhost.Long(t)
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
			got := s.do("--timeout", "5m", "--", "sh", "-c", c.line)
			if (got.code == 0) != c.works() || !strings.Contains(got.stdout, c.word) {
				t.Errorf("%s: got %+v, want %q in the output: %s", c.line, got, c.word, c.result)
			}
		})
	}
	if ran < leastPackages {
		t.Errorf("%d packages of the list are installed; at least %d should be", ran, leastPackages)
	}
}

var updatePackages = flag.Bool("update-packages", false, "write the table of packages in docs/host.md")

func TestThePageHasTheProgramsOfPackages(t *testing.T) {
	const name, begin, end = "../docs/host.md", "<!-- begin packages -->\n", "<!-- end packages -->\n"
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), begin)
	_, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no place for the table", name)
	}
	cases := packageCases(t)
	if len(cases) < leastPrograms {
		t.Errorf("the list has %d programs; at least %d should be there", len(cases), leastPrograms)
	}
	table := "| packages | program | inside |\n|---|---|---|\n"
	for _, c := range cases {
		table += fmt.Sprintf("| `%s` | `%s` | %s |\n", strings.Join(c.packages, "`, `"), c.program, c.result)
	}
	page := head + begin + table + end + tail
	if page == string(data) {
		return
	}
	if !*updatePackages {
		t.Fatalf("%s differs from the list; run: go test ./integration -run TestThePageHasThePrograms -update-packages", name)
	}
	if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
