package conffiles

import (
	"bytes"
	"crypto/md5" //nolint:gosec // dpkg has these sums, and only root can change the files
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// secretWords are words, in lower case, of a line that may hold a secret.
var secretWords = [][]byte{
	[]byte("passw"), []byte("passphrase"), []byte("secret"), []byte("token"), []byte("credential"), []byte("api_key"), []byte("apikey"), []byte("api-key"),
	[]byte("private key"), []byte("privatekey"), []byte("private_key"), []byte("access_key"), []byte("accesskey"), []byte("authorization"), []byte("bearer "),
	[]byte("_key="), []byte("_auth"), []byte("login"), []byte("_pass"), []byte("-pass"), []byte("pwd"), []byte("psk"),
}

// secretNames are names in lower case. The line gives the value of the name.
var secretNames = []string{"pass", "pin"}

// Harmless says whether the text of the file is still that of its package, or has no word of a
// secret. So a password that the host's owner has put into the file is not shown.
func (f File) Harmless(text []byte) bool {
	if f.unchanged(text) {
		return true
	}
	lower := bytes.ToLower(text)
	for _, word := range secretWords {
		if bytes.Contains(lower, word) {
			return false
		}
	}
	return !hasLogin(lower) && !setsSecret(lower)
}

// setsSecret says whether a line begins with a name of a secret, or gives such a name a value, such as "smtp pass = x".
func setsSecret(text []byte) bool {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		for i, word := range words {
			name, _, sets := bytes.Cut(bytes.ReplaceAll(word, []byte(":"), []byte("=")), []byte("="))
			sets = sets || i+1 < len(words) && (i == 0 || words[i+1][0] == '=' || words[i+1][0] == ':')
			if sets && slices.Contains(secretNames, string(name)) {
				return true
			}
		}
	}
	return false
}

// unchanged compares with the MD5 sum of dpkg, or the SHA-256 sum of rpm.
func (f File) unchanged(text []byte) bool {
	if len(f.Sum) == hex.EncodedLen(md5.Size) {
		sum := md5.Sum(text) //nolint:gosec // as above
		return hex.EncodeToString(sum[:]) == f.Sum
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]) == f.Sum
}

// hasLogin says whether the text has an address with a user, such as https://user:password@host.
func hasLogin(text []byte) bool {
	for {
		at := bytes.Index(text, []byte("://"))
		if at < 0 {
			return false
		}
		text = text[at+3:]
		host, _, _ := bytes.Cut(text, []byte("\n"))
		if end := bytes.IndexAny(host, "/ \t\"'<>"); end >= 0 {
			host = host[:end]
		}
		if bytes.IndexByte(host, '@') >= 0 {
			return true
		}
	}
}
