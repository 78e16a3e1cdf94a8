package sandboxruntime_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// alone are the packages in which the race detector runs only marked tests: the variable ALONE of the Makefile.
func alone(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^ALONE := (.*)$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("the Makefile has no ALONE")
	}
	return strings.Fields(string(found[1]))
}

// A test that starts goroutines, and that nobody marks, never runs under the race detector.
func TestConcurrentTestsAreMarked(t *testing.T) {
	marked := 0
	for _, dir := range alone(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has %d files of tests, %v", dir, len(files), err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range unmarked(parsed, &marked) {
				t.Errorf("%s: %s starts goroutines: it has to call testhost.Concurrent", file, name)
			}
		}
	}
	if marked == 0 {
		t.Error("no test is marked")
	}
}

// unmarked are the tests of a file that start goroutines without a mark. It counts the marks.
func unmarked(file *ast.File, marked *int) (names []string) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		starts, isMarked := false, false
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.SelectorExpr:
				starts = starts || n.Sel.Name == "Go" // of sync.WaitGroup and errgroup.Group
				isMarked = isMarked || n.Sel.Name == "Concurrent"
			}
			return true
		})
		if isMarked {
			*marked++
		} else if starts {
			names = append(names, f.Name.Name)
		}
	}
	return names
}

func TestTheCheckFindsUnmarkedTests(t *testing.T) {
	const source = `package p
func TestPlain(t *testing.T) { x() }
func TestStarts(t *testing.T) { go x() }
func TestGroup(t *testing.T) { for range 2 { group.Go(x) } }
func TestMarked(t *testing.T) { testhost.Concurrent(t); go x() }
`
	parsed, err := parser.ParseFile(token.NewFileSet(), "x_test.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	marked := 0
	if got := strings.Join(unmarked(parsed, &marked), " "); got != "TestStarts TestGroup" || marked != 1 {
		t.Errorf("%s, %d marked", got, marked)
	}
}
