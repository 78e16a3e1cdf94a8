package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// asEnv names what the test binary does when a test has started it in other
// circumstances: first a change to those, then the features to check.
const asEnv = "KERNEL_TEST_CIRCUMSTANCE"

func TestMain(m *testing.M) {
	if name := os.Getenv(asEnv); name != "" {
		os.Exit(answer(name, os.Args[1:]))
	}
	os.Exit(testhost.Run(m))
}

// required stands for all that is, among names of features.
const required = "required"

// check tries one feature, as Survey tries all.
func check(name Feature) error {
	for _, info := range table {
		if info.Name == name {
			return newProber().find(info).Err
		}
	}
	return nil
}

// verdict is the answer about a feature in other circumstances.
type verdict struct {
	Feature      Feature
	NotSupported bool
	Fix, Text    string
}

func answer(circumstance string, features []string) int {
	if err := circumstances[circumstance](); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", circumstance, err)
		return 1
	}
	var all []verdict
	for _, name := range features {
		v := verdict{Feature: Feature(name)}
		err := check(v.Feature)
		if name == required {
			err = CheckRequired()
		}
		if err != nil {
			v.Text, v.NotSupported = err.Error(), errors.Is(err, ErrNotSupported)
			if e := (*NotSupportedError)(nil); errors.As(err, &e) {
				v.Fix = e.Fix
			}
		}
		all = append(all, v)
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		return 1
	}
	return 0
}

// checkIn checks features in a process with the given attributes, after it has
// changed its circumstances.
func checkIn(t *testing.T, circumstance string, attr *syscall.SysProcAttr, features ...Feature) map[Feature]verdict {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	for _, f := range features {
		cmd.Args = append(cmd.Args, string(f))
	}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), asEnv+"="+circumstance)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", circumstance, err)
	}
	var all []verdict
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%s: %q: %v", circumstance, out, err)
	}
	verdicts := make(map[Feature]verdict)
	for _, v := range all {
		verdicts[v.Feature] = v
	}
	return verdicts
}

func needRoot(t *testing.T) {
	t.Helper()
	if lacking := lackingCapabilities(); len(lacking) > 0 {
		t.Skipf("needs root with all its capabilities, lacks %v", lacking)
	}
}

func nobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func allFeatures() []Feature {
	var names []Feature
	for _, info := range Features() {
		names = append(names, info.Name)
	}
	return slices.Clip(names)
}
