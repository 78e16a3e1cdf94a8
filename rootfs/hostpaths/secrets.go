package hostpaths

import (
	_ "embed"
	"sync"
)

//go:embed secrets.txt
var secretsText string

var secretGroups = sync.OnceValue(func() []SecretGroup { return ParseGroups(secretsText) })

// A SecretGroup is secrets of one kind, relative to a home directory.
type SecretGroup = Group

// SecretGroups are all secrets, by their kinds. The caller must not change them.
func SecretGroups() []SecretGroup { return secretGroups() }

// Secrets are paths in a home directory with content for its user alone, above all keys
// and sessions. Below an overlay they are shown empty, and cannot be written to. A bind
// of the user's own shows a secret that a command needs.
//
// Where a directory holds more than secrets, the list has the files with the secrets,
// so that the programs of an overlaid home work.
func Secrets() []string {
	var all []string
	for _, group := range SecretGroups() {
		all = append(all, group.Names...)
	}
	return all
}
