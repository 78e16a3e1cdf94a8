package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// An ImageConfig has the settings of an image that a sandbox takes: image-spec v1.1 config.md. An image's labels,
// ports, health check and stop signal have no effect.
type ImageConfig struct {
	// User is a user as [ParseUser] reads it, but a number alone does not set the group: UserIn looks the group up. Empty:
	// none.
	User string
	// Env has NAME=VALUE.
	Env []string
	// Entrypoint and Cmd together are the command of the image.
	Entrypoint, Cmd []string
	// WorkingDir is a directory of the image. Empty: none.
	WorkingDir string
	// Volumes are directories that the image's programs write to.
	Volumes map[string]struct{}
}

// Bounds of the settings of an image: a launcher keeps them for each sandbox.
const (
	maxVolumes  = 64
	maxImageEnv = 64 << 10 // bytes
)

// ReadImageConfig reads the config of an image, which may be hostile.
func ReadImageConfig(text []byte) (ImageConfig, error) {
	var file struct {
		Config ImageConfig `json:"config"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return ImageConfig{}, fmt.Errorf("config of the image: %w", err)
	}
	c := file.Config
	if len(c.Volumes) > maxVolumes {
		return ImageConfig{}, fmt.Errorf("config of the image: %d volumes are more than %d", len(c.Volumes), maxVolumes)
	}
	size := 0
	for _, line := range c.Env {
		if size += len(line); size > maxImageEnv {
			return ImageConfig{}, fmt.Errorf("config of the image: its environment has more than %d bytes", maxImageEnv)
		}
		if name, _, ok := strings.Cut(line, "="); !ok || name == "" {
			return ImageConfig{}, fmt.Errorf("config of the image: %.64q is no variable of the form NAME=VALUE", line)
		}
	}
	return c, nil
}

// Below returns a configuration with the settings of the image where the configuration has none, but for the user,
// which UserIn returns.
func (i ImageConfig) Below(c Config) Config {
	env := map[string]string{}
	for _, line := range i.Env {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	maps.Copy(env, c.Env)
	if len(env) > 0 {
		c.Env = env
	}
	if i.WorkingDir != "" && c.Workspace == "" && len(c.Overlays) == 0 {
		c.Cwd = cmp.Or(c.Cwd, path.Join("/", i.WorkingDir))
	}
	return c
}

// UserIn returns the ids of the image's user, which must not be empty. read returns the content of the image's
// /etc/passwd or /etc/group by the name passwd or group; a missing file is empty. As in Docker, a number alone stands for
// the groups of the user with this id, and without such a user for the group 0.
func (i ImageConfig) UserIn(read func(name string) ([]byte, error)) (User, error) {
	user, err := ParseUser(i.User)
	if err != nil {
		return User{}, fmt.Errorf("config of the image: %w; name another user with --user", err)
	}
	if user.Name == "" && strings.Contains(i.User, ":") {
		return *user, nil
	}
	return user.LookupIn(read)
}

// Directories are the volumes, sorted. Those of the sandbox's own are left out.
func (i ImageConfig) Directories() []string {
	var all []string
	for dir := range i.Volumes {
		all = append(all, path.Join("/", dir))
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(dir string) bool {
		top, _, _ := strings.Cut(dir[1:], "/")
		return slices.Contains([]string{"", "dev", "proc", "run", "sys", "tmp", "workspace"}, top) || dir == HomePath
	})
}

// Command is the command line of a sandbox with the image: words take the place of Cmd, and follow Entrypoint.
func (i ImageConfig) Command(words []string) []string {
	if len(words) == 0 {
		words = i.Cmd
	}
	return slices.Concat(i.Entrypoint, words)
}
