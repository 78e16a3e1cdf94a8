package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Credential is a user name and password, or a token. The zero value asks for nothing but public images.
type Credential struct {
	Username, Password string
	// IdentityToken is exchanged for tokens of the registry, and RegistryToken is such a token.
	IdentityToken, RegistryToken string
}

// Credentials finds credentials.
type Credentials interface {
	// Lookup returns the credential for a repository of a registry, such as "docker.io" and "library/debian". An error stops
	// no pull: Options.Note gets the error, and the credential beside it is used, which can be empty.
	Lookup(ctx context.Context, host, repository string) (Credential, error)
}

// Files finds credentials in the files of Docker and podman, and asks the credential helpers named there. The first
// file with an entry counts, in the order $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json,
// $XDG_RUNTIME_DIR/containers/auth.json (without the variable /run/containers/UID/auth.json),
// ~/.config/containers/auth.json, ~/.docker/config.json. Within a file the helper of the registry counts first, then the
// store, then the entries of the file.
//
// A file that cannot be read and a helper that fails count as ones without an entry. Lookup returns their errors beside the
// credential of another place, or beside none.
type Files struct{}

// authFile is the common part of the files of Docker and podman (containers-auth.json(5)).
type authFile struct {
	Auths       map[string]authEntry `json:"auths"`
	CredHelpers map[string]string    `json:"credHelpers"`
	CredsStore  string               `json:"credsStore"`
}

type authEntry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

const maxAuthFile = 4 << 20

func authFiles() []string {
	var paths []string
	add := func(base string, rest ...string) {
		if base != "" {
			paths = append(paths, filepath.Join(append([]string{base}, rest...)...))
		}
	}
	add(os.Getenv("REGISTRY_AUTH_FILE"))
	add(os.Getenv("DOCKER_CONFIG"), "config.json")
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		add(run, "containers", "auth.json")
	} else { // as of a login by cron or sudo
		add("/run/containers", strconv.Itoa(os.Getuid()), "auth.json")
	}
	home := os.Getenv("HOME")
	if config := os.Getenv("XDG_CONFIG_HOME"); config != "" {
		add(config, "containers", "auth.json")
	} else {
		add(home, ".config", "containers", "auth.json")
	}
	add(home, ".docker", "config.json")
	return paths
}

// Lookup reads the files anew each time.
func (Files) Lookup(ctx context.Context, host, repository string) (Credential, error) {
	var failed []error
	for _, path := range authFiles() {
		file, err := readAuthFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var found Credential
		var ok bool
		if err == nil {
			found, ok, err = file.lookup(ctx, host, repository)
		}
		if ctx.Err() != nil {
			return Credential{}, ctx.Err()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("read credentials %s: %w", path, err))
		}
		if ok {
			return found, errors.Join(failed...)
		}
	}
	return Credential{}, errors.Join(failed...)
}

func readAuthFile(path string) (*authFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAuthFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxAuthFile {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxAuthFile)
	}
	file := &authFile{}
	if len(bytes.TrimSpace(text)) == 0 {
		return file, nil
	}
	return file, json.Unmarshal(text, file)
}

// dockerHub is the key of Docker Hub in Docker's files, and dockerHubName the name in references.
const (
	dockerHub     = "https://index.docker.io/v1/"
	dockerHubName = "docker.io"
)

// scopeOf is the part of a registry that a key is for: HOST[:PORT], or HOST[:PORT]/PATH. Docker's keys can be addresses,
// whose path says nothing. Podman's keys can have the path of repositories.
func scopeOf(key string) string {
	_, rest, isAddress := strings.Cut(key, "://")
	if !isAddress {
		rest = key
	}
	host, path, _ := strings.Cut(rest, "/")
	host, path = strings.ToLower(host), strings.Trim(path, "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHubName
	}
	if isAddress || path == "" || path == "v1" || path == "v2" {
		return host
	}
	return host + "/" + path
}

// scopes are those of a repository, the most specific first.
func scopes(host, repository string) (all []string) {
	for path := repository; path != ""; path = path[:max(strings.LastIndexByte(path, '/'), 0)] {
		all = append(all, strings.ToLower(host)+"/"+path)
	}
	return append(all, strings.ToLower(host))
}

// keysFor are the keys for a repository: those of the most specific scope first. Of one scope the key that is the scope comes
// first, then https, http and other spellings.
func keysFor[T any](entries map[string]T, host, repository string) (keys []string) {
	order := scopes(host, repository)
	rank := func(key string) [2]int {
		scope := scopeOf(key)
		scheme, _, isAddress := strings.Cut(key, "://")
		how := slices.Index([]string{"https", "http"}, scheme) // -1 is the scope itself
		if key != scope && !isAddress {
			how = 2
		}
		return [2]int{slices.Index(order, scope), how}
	}
	for key := range entries {
		if rank(key)[0] >= 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		x, y := rank(a), rank(b)
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), cmp.Compare(a, b))
	})
	return keys
}

// lookup asks the helper before the entries, as Docker does: a login removes no old entry. A helper without an answer
// leaves the entries.
func (f *authFile) lookup(ctx context.Context, host, repository string) (Credential, bool, error) {
	helper := f.CredsStore
	if keys := keysFor(f.CredHelpers, host, repository); len(keys) > 0 {
		helper = f.CredHelpers[keys[0]] // an empty one says that the file has the entry
	}
	var failed error
	if helper != "" {
		server := host
		if host == dockerHubName {
			server = dockerHub
		}
		found, ok, err := askHelper(ctx, helper, server)
		if ok {
			return found, true, nil
		}
		failed = err
	}
	for _, key := range keysFor(f.Auths, host, repository) {
		entry := f.Auths[key]
		if entry == (authEntry{}) { // an empty entry says that the store has it
			continue
		}
		found, err := entry.credential()
		if err != nil {
			return Credential{}, false, errors.Join(failed, fmt.Errorf("entry %q: %w", key, err))
		}
		return found, true, failed
	}
	return Credential{}, false, failed
}

func (e authEntry) credential() (Credential, error) {
	c := Credential{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth == "" {
		return c, nil
	}
	text, err := base64.StdEncoding.DecodeString(e.Auth)
	user, password, ok := strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
	if err != nil || !ok {
		return Credential{}, errors.New("the field auth is not the base64 of USER:PASSWORD") // and never shown
	}
	c.Username, c.Password = user, password
	return c, nil
}
