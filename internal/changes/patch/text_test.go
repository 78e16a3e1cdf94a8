package patch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// TestWorstCasesAreBounded compares the largest files that are compared, each
// pair in a process of its own, which tells how large its heap has been.
func TestWorstCasesAreBounded(t *testing.T) {
	if kind := os.Getenv("PATCH_TEST_WORST"); kind != "" {
		var b bytes.Buffer
		if hunks(&b, worstText(kind, 1), worstText(kind, 2)); b.Len() == 0 {
			t.Fatal("no hunk")
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Println(m.HeapSys >> 20)
		return
	}
	for _, kind := range []string{"no line in common", "lines of one character", "empty lines", "every second line"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWorstCasesAreBounded$", "-test.timeout=60s")
			// Garbage counts, too. How much there is depends on when it is collected.
			cmd.Env = append(os.Environ(), "PATCH_TEST_WORST="+kind, "GOGC=50")
			out, err := cmd.CombinedOutput()
			var took int
			if _, scan := fmt.Sscan(string(out), &took); err != nil || scan != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if t.Logf("%d MiB", took); took > 400 {
				t.Errorf("%d MiB, more than 400", took)
			}
		})
	}
}

// worstText has the greatest length or the most lines that are still compared.
func worstText(kind string, seed int) []byte {
	var b bytes.Buffer
	for lines := 0; lines < maxLines-1 && b.Len() < maxSize-128; lines++ {
		switch i := lines; kind {
		case "no line in common":
			fmt.Fprintf(&b, "%d%062x\n", seed, i)
		case "lines of one character":
			fmt.Fprintf(&b, "%c\n", 'a'+byte((i*7+i/3*seed+i*i*seed)%3))
		case "empty lines":
			b.WriteString("\n")
		case "every second line":
			fmt.Fprintf(&b, "%0120d\n%d\n", i, i*seed)
			lines++
		}
	}
	if seed == 2 {
		b.WriteString("end")
	}
	return b.Bytes()
}
