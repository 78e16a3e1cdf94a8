package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// A Digest is "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

const digestPrefix = "sha256:"

// ParseDigest checks a digest.
func ParseDigest(text string) (Digest, error) {
	digits, found := strings.CutPrefix(text, digestPrefix)
	if !found || !isHex(digits) || len(digits) != hex.EncodedLen(sha256.Size) {
		return "", fmt.Errorf("invalid digest %q: use sha256: and 64 lower-case hexadecimal digits", clip(text))
	}
	return Digest(text), nil
}

// digestOf is the digest of a content.
func digestOf(content []byte) Digest {
	sum := sha256.Sum256(content)
	return fromHex(hex.EncodeToString(sum[:]))
}

// fromHex is the digest with these digits.
func fromHex(digits string) Digest { return Digest(digestPrefix + digits) }

// hex is the name of the file or directory of a digest.
func (d Digest) hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// isDigestName says whether a directory entry has the name of a digest.
func isDigestName(name string) bool {
	return len(name) == hex.EncodedLen(sha256.Size) && isHex(name)
}

func isHex(text string) bool {
	return text != "" && strings.Trim(text, "0123456789abcdef") == ""
}

// clip bounds a text that is put into an error.
func clip(text string) string {
	const most = 100
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
