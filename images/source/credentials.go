package source

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Credential is a user name and password, or a token. The zero value asks for nothing but public images.
type Credential struct {
	Username, Password string
	// IdentityToken is exchanged for tokens of the registry, and RegistryToken is such a token.
	IdentityToken, RegistryToken string
}

// Credentials finds credentials.
type Credentials interface {
	// Lookup returns the credential for a repository of a registry, such as "docker.io" and "library/debian".
	Lookup(ctx context.Context, host, repository string) (Credential, error)
}

// Files finds credentials in the files of Docker and podman, and asks the credential helpers named there. The first
// file with an entry counts, in the order $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json,
// $XDG_RUNTIME_DIR/containers/auth.json, ~/.config/containers/auth.json, ~/.docker/config.json.
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

const (
	maxAuthFile   = 4 << 20
	maxHelper     = 1 << 20
	helperTimeout = time.Minute
)

func authFiles() []string {
	var paths []string
	add := func(base string, rest ...string) {
		if base != "" {
			paths = append(paths, filepath.Join(append([]string{base}, rest...)...))
		}
	}
	add(os.Getenv("REGISTRY_AUTH_FILE"))
	add(os.Getenv("DOCKER_CONFIG"), "config.json")
	add(os.Getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
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
	for _, path := range authFiles() {
		file, err := readAuthFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Credential{}, fmt.Errorf("read credentials %s: %w", path, err)
		}
		found, ok, err := file.lookup(ctx, host, repository)
		if err != nil {
			return Credential{}, fmt.Errorf("read credentials %s: %w", path, err)
		}
		if ok {
			return found, nil
		}
	}
	return Credential{}, nil
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

// authKeys are the keys for a repository, the most specific first.
func authKeys(host, repository string) []string {
	var keys []string
	for path := repository; path != "" && path != "."; path = parent(path) {
		keys = append(keys, host+"/"+path)
	}
	keys = append(keys, host)
	if host == "docker.io" {
		keys = append(keys, "https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")
	} else {
		keys = append(keys, "https://"+host, "https://"+host+"/", "https://"+host+"/v1/", "https://"+host+"/v2/", "http://"+host)
	}
	return keys
}

func parent(path string) string {
	slash := strings.LastIndexByte(path, '/')
	return path[:max(slash, 0)]
}

func (f *authFile) lookup(ctx context.Context, host, repository string) (Credential, bool, error) {
	keys := authKeys(host, repository)
	for _, key := range keys {
		if helper, ok := f.CredHelpers[key]; ok {
			return askHelper(ctx, helper, key)
		}
	}
	for _, key := range keys {
		entry, ok := f.Auths[key]
		if !ok || entry == (authEntry{}) { // an empty entry says that the store has it
			continue
		}
		found, err := entry.credential()
		if err != nil {
			return Credential{}, false, fmt.Errorf("entry %q: %w", key, err)
		}
		return found, true, nil
	}
	if f.CredsStore == "" {
		return Credential{}, false, nil
	}
	server := host
	if host == "docker.io" {
		server = "https://index.docker.io/v1/"
	}
	return askHelper(ctx, f.CredsStore, server)
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

// askHelper runs docker-credential-NAME of the caller's PATH (the protocol of docker-credential-helpers).
func askHelper(ctx context.Context, helper, server string) (Credential, bool, error) {
	if helper == "" || strings.ContainsAny(helper, "/\x00") {
		return Credential{}, false, fmt.Errorf("invalid credential helper %q: use the part behind docker-credential-", helper)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, "get")
	cmd.Stdin = strings.NewReader(server)
	out := &bounded{limit: maxHelper}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err != nil {
		if said := strings.TrimSpace(out.String()); strings.Contains(said, "credentials not found") {
			return Credential{}, false, nil
		}
		return Credential{}, false, fmt.Errorf("credential helper %s: %w", cmd.Args[0], err)
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return Credential{}, false, fmt.Errorf("credential helper %s: the answer is not JSON", cmd.Args[0])
	}
	if answer.Username == "<token>" {
		return Credential{IdentityToken: answer.Secret}, true, nil
	}
	return Credential{Username: answer.Username, Password: answer.Secret}, true, nil
}

// bounded is a buffer with a limit.
type bounded struct {
	bytes.Buffer
	limit int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.limit {
		return 0, fmt.Errorf("more than %d bytes", b.limit)
	}
	return b.Buffer.Write(p)
}
