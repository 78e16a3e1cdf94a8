package protocol

import (
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// checkRequest refuses a request that is larger than a launcher takes.
func checkRequest(body []byte) error {
	if len(body) > MaxRequest {
		return &fault.ConfigError{Reason: fmt.Sprintf("a request of %d bytes is more than a launcher takes: %d", len(body), MaxRequest)}
	}
	return CheckValues(body, MaxValues)
}

// CheckValues refuses JSON with more than a number of values.
func CheckValues(body []byte, most int) error {
	if n := countValues(body); n > most {
		return &fault.ConfigError{Reason: fmt.Sprintf("%d values in a request are more than a launcher takes: %d", n, most)}
	}
	return nil
}

// countValues is at least the number of values in a JSON text. It counts the bytes that
// begin or separate values, which is cheaper than to decode them.
func countValues(text []byte) int {
	n, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case b == '"':
			quoted = !quoted
		case quoted && b == '\\':
			i++
		case !quoted && (b == ',' || b == '[' || b == '{'):
			n++
		}
	}
	return n
}
