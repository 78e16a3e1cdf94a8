package frontend

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ConfigName is the file with the specification in a bundle.
const ConfigName = "config.json"

// EnterBundle makes the bundle the working directory, and reads its config. Relative paths of
// the config and of hooks start from that directory. An empty path is the caller's directory.
func EnterBundle(path string) (*specs.Spec, error) {
	if path != "" {
		if err := os.Chdir(path); err != nil {
			return nil, fmt.Errorf("bundle: %w", err)
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return ReadConfig(dir)
}

// ReadConfig reads and checks the specification of a bundle.
func ReadConfig(bundle string) (*specs.Spec, error) {
	path := filepath.Join(bundle, ConfigName)
	var spec *specs.Spec
	if err := readJSON(path, &spec); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("JSON specification file %s not found", path)
		}
		return nil, err
	}
	if spec == nil {
		return nil, fmt.Errorf("%s: config cannot be null", path)
	}
	if err := cmp.Or(CheckProcess(spec.Process), checkMounts(spec.Mounts)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

// optionsSize is how many bytes of a file system's options mount(2) takes: a page, with the
// NUL. mount(2) silently drops the rest, and a limit of size may be in the rest.
const optionsSize = 4096

func checkMounts(mounts []specs.Mount) error {
	for _, m := range mounts {
		if n := len(strings.Join(m.Options, ",")); n >= optionsSize {
			return fmt.Errorf("mount %.100s: options of %d bytes, the kernel takes %d", m.Destination, n, optionsSize-1)
		}
	}
	return nil
}

// ReadProcess reads and checks the description of a process from a file.
func ReadProcess(path string) (*specs.Process, error) {
	var p *specs.Process
	if err := readJSON(path, &p); err != nil {
		return nil, err
	}
	if err := CheckProcess(p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func readJSON(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := json.NewDecoder(f).Decode(into); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}

// CheckProcess refuses mistakes that would otherwise fail late and in other words.
func CheckProcess(p *specs.Process) error {
	switch {
	case p == nil:
		return errors.New("process property must not be empty")
	case p.Cwd == "":
		return errors.New("Cwd property must not be empty") //nolint:staticcheck // in runc's words
	case !filepath.IsAbs(p.Cwd):
		return errors.New("Cwd must be an absolute path") //nolint:staticcheck // in runc's words
	case len(p.Args) == 0:
		return errors.New("args must not be empty")
	}
	return nil
}
