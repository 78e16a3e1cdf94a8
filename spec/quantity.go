package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/docker/go-units"
)

// Size is a number of bytes. Its text form takes k, m and g (powers of 1024), or is "unlimited";
// JSON takes the text form or a plain number.
type Size int64

// Unlimited is the size without a bound, for limits that allow this.
const Unlimited Size = math.MaxInt64

const unlimitedText = "unlimited"

// A tooLargeError is the error of a number that no integer holds.
type tooLargeError struct{ text string }

func (e *tooLargeError) Error() string { return e.text + " is too large; give a smaller number" }

// ParseSize reads a size such as "512m", "1g", "4096" or "unlimited".
func ParseSize(text string) (Size, error) {
	if strings.TrimSpace(text) == unlimitedText {
		return Unlimited, nil
	}
	n, err := units.RAMInBytes(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("size %q: write it like 512m, 1g or 1048576", text)
	}
	if n < 0 || n == math.MaxInt64 { // out of range; each architecture has its own result
		return 0, &tooLargeError{text}
	}
	return Size(n), nil
}

// String is the shortest text form that is exact.
func (s Size) String() string {
	if s == Unlimited {
		return unlimitedText
	}
	for _, unit := range []struct {
		suffix string
		bytes  Size
	}{{"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}} {
		if s != 0 && s%unit.bytes == 0 {
			return strconv.FormatInt(int64(s/unit.bytes), 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalJSON implements [json.Marshaler].
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON implements [json.Unmarshaler]. A negative number is left to
// [Config.Complete], which knows the field's name.
func (s *Size) UnmarshalJSON(data []byte) (err error) {
	var n int64
	if json.Unmarshal(data, &n) == nil {
		*s = Size(n)
		return nil
	}
	*s, err = ParseSize(unquote(data))
	return err
}

// CPUs is an amount of processor time per time: 1.5 is one core and a half.
type CPUs float64

// ParseCPUs reads an amount such as "1.5".
func ParseCPUs(text string) (CPUs, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, &tooLargeError{text}
	}
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("cpus %q: write it like 0.5, 1 or 2.5", text)
	}
	return CPUs(n), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *CPUs) UnmarshalJSON(data []byte) (err error) {
	*c, err = ParseCPUs(unquote(data))
	return err
}

// unquote is the text of a JSON string or, of anything else, its JSON.
func unquote(data []byte) string {
	var text string
	if json.Unmarshal(data, &text) == nil {
		return text
	}
	return string(data)
}

// ParseBind reads SRC:DST[:ro|rw].
func ParseBind(text string) (Bind, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 2 {
		parts = append(parts, "ro")
	}
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || (parts[2] != "ro" && parts[2] != "rw") {
		return Bind{}, fmt.Errorf("bind %q: write it as SRC:DST, SRC:DST:ro or SRC:DST:rw", text)
	}
	return Bind{Source: parts[0], Target: parts[1], Writable: parts[2] == "rw"}, nil
}

// ParseEnv reads K=V.
func ParseEnv(text string) (name, value string, err error) {
	name, value, found := strings.Cut(text, "=")
	if !found || name == "" {
		return "", "", fmt.Errorf("env %q: write it as NAME=VALUE; the host's own variables are not passed on by name", text)
	}
	return name, value, nil
}
