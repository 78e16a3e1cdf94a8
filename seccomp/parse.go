package seccomp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// maxFileSize is far above any profile: Docker's has 15 kB.
const maxFileSize = 1 << 20

// Load reads a profile from the regular file at path, in the form of runtime-spec v1.3.0
// config-linux.md "Seccomp", the object under linux.seccomp. It is stricter than OCI runtimes,
// since a rule that they skip in silence leaves a hole. Errors are: a field that it does not
// know, an action, operator, flag or architecture that libcontainer does not know, a rule
// without effect, and conditions that would be alternatives though they read as "and". So is
// SCMP_ACT_NOTIFY, which needs a listener on the host. Errors name the path, and the field if
// one is wrong, as in syscalls[3].args[0].op.
func Load(path string) (*specs.LinuxSeccomp, error) {
	// O_NONBLOCK: a FIFO is refused below, not waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	defer f.Close()
	return Read(path, f)
}

// Read is Load of a file that somebody has opened, which it reads from the
// beginning and leaves where it is.
func Read(path string, f *os.File) (*specs.LinuxSeccomp, error) {
	if info, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("seccomp profile %s: not a regular file", path)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("seccomp profile %s: larger than %d bytes", path, maxFileSize)
	}
	p, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile %s: %w", path, err)
	}
	return p, nil
}

// parse is Load without the path in the errors.
func parse(data []byte) (*specs.LinuxSeccomp, error) {
	if err := recogniseOtherForms(data); err != nil {
		return nil, err
	}
	p, err := decodeProfile(data)
	if err != nil {
		return nil, err
	}
	if err := check(p); err != nil {
		return nil, err
	}
	return p, nil
}

// recogniseOtherForms answers for files that are something else and well known.
func recogniseOtherForms(data []byte) error {
	var form struct {
		ArchMap    json.RawMessage   `json:"archMap"`
		OCIVersion json.RawMessage   `json:"ociVersion"`
		Linux      json.RawMessage   `json:"linux"`
		Syscalls   []json.RawMessage `json:"syscalls"`
	}
	if err := json.Unmarshal(data, &form); err != nil {
		return nil //nolint:nilerr // decodeProfile names the mistake and its place.
	}
	if form.OCIVersion != nil || form.Linux != nil {
		return errors.New("this is a whole container config; give its linux.seccomp object")
	}
	docker := form.ArchMap != nil
	for _, raw := range form.Syscalls {
		var rule map[string]json.RawMessage
		if json.Unmarshal(raw, &rule) == nil && (rule["includes"] != nil || rule["excludes"] != nil) {
			docker = true
		}
	}
	if docker {
		return errors.New("this is Docker's form of a profile (archMap, includes, excludes), the OCI form is wanted: " +
			"delete archMap and every comment, keep of the rules with includes or excludes those that should hold, without these fields")
	}
	return nil
}

func decodeProfile(data []byte) (*specs.LinuxSeccomp, error) {
	p := &specs.LinuxSeccomp{}
	var rules []json.RawMessage
	err := decodeObject(data, "", map[string]any{
		"defaultAction":    &p.DefaultAction,
		"defaultErrnoRet":  &p.DefaultErrnoRet,
		"architectures":    &p.Architectures,
		"flags":            &p.Flags,
		"listenerPath":     &p.ListenerPath,
		"listenerMetadata": &p.ListenerMetadata,
		"syscalls":         &rules,
	})
	if err != nil {
		return nil, err
	}
	for i, raw := range rules {
		rule, err := decodeRule(raw, fmt.Sprintf("syscalls[%d]", i))
		if err != nil {
			return nil, err
		}
		p.Syscalls = append(p.Syscalls, rule)
	}
	return p, nil
}

func decodeRule(data []byte, at string) (rule specs.LinuxSyscall, err error) {
	var conditions []json.RawMessage
	err = decodeObject(data, at, map[string]any{
		"names":    &rule.Names,
		"action":   &rule.Action,
		"errnoRet": &rule.ErrnoRet,
		"args":     &conditions,
	})
	if err != nil {
		return rule, err
	}
	for i, raw := range conditions {
		var arg specs.LinuxSeccompArg
		err := decodeObject(raw, fmt.Sprintf("%s.args[%d]", at, i), map[string]any{
			"index":    &arg.Index,
			"value":    &arg.Value,
			"valueTwo": &arg.ValueTwo,
			"op":       &arg.Op,
		})
		if err != nil {
			return rule, err
		}
		rule.Args = append(rule.Args, arg)
	}
	return rule, nil
}

// decodeObject reads one JSON object, at the place named in the profile, into
// the pointers of fields. Unlike encoding/json it takes no other key, none
// twice, and none in another case.
func decodeObject(data []byte, at string, fields map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	start, err := d.Token()
	if err != nil {
		return fmt.Errorf("%snot JSON: %w", prefix(at), err)
	}
	if start != json.Delim('{') {
		return fmt.Errorf("%swant an object", prefix(at))
	}
	seen := map[string]bool{}
	for d.More() {
		key, raw, err := nextField(d)
		if err != nil {
			return fmt.Errorf("%snot JSON: %w", prefix(at), err)
		}
		field := strings.TrimPrefix(at+"."+key, ".")
		target, known := fields[key]
		switch {
		case !known:
			return fmt.Errorf("%s: unknown field, %sthere are %s", field, hint(key), listed(slices.Sorted(maps.Keys(fields))))
		case seen[key]:
			return fmt.Errorf("%s: given twice", field)
		}
		seen[key] = true
		if err := json.Unmarshal(raw, target); err != nil {
			return fmt.Errorf("%s: %w", field, typeError(err))
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("%snot JSON: %w", prefix(at), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%ssomething follows the object", prefix(at))
	}
	return nil
}

func nextField(d *json.Decoder) (key string, value json.RawMessage, err error) {
	token, err := d.Token()
	if err != nil {
		return "", nil, err
	}
	key, _ = token.(string) // A key is always a string, the decoder sees to it.
	return key, value, d.Decode(&value)
}

// hint names the field that a field of another form of profile stands for.
func hint(key string) string {
	switch key {
	case "name":
		return `the OCI form has "names": ["…"], `
	case "comment":
		return "JSON profiles have no comments, "
	}
	return ""
}

func prefix(at string) string {
	if at == "" {
		return ""
	}
	return at + ": "
}

// typeError says which JSON type stands where, without names of Go types.
func typeError(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	want := map[string]string{
		"string": "a string", "uint": "a whole number, 0 or above", "uint64": "a whole number, 0 or above",
		"slice": "a list", "struct": "an object", "map": "an object",
	}[wrong.Type.Kind().String()]
	return fmt.Errorf("want %s, got %s", want, wrong.Value)
}
