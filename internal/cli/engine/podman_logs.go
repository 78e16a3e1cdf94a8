package engine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// podman asks the runtimes in its list runtime_supports_json for a log in JSON, and shows
// the message of a line there. The log of any other runtime becomes an error as it is, with
// time and level. A list replaces the lists of earlier files, so our list repeats the
// earlier lists. TOML has one such key for a file, so the list has a block of its own, for
// all runtimes that register added.
const podmanLogs = "(runtimes whose log podman reads)"

// podmanLogging is podman's default (containers/common pkg/config/default.go).
var podmanLogging = []string{"crun", "runc", "kata", "runsc", "youki", "krun"}

func podmanLogsBody(list []string) string {
	quoted := make([]string, len(list))
	for i, name := range list {
		quoted[i] = quote(name)
	}
	return fmt.Sprintf("engine.runtime_supports_json = [%s]\n", strings.Join(quoted, ", "))
}

func podmanLogsPath() []string { return []string{"engine", "runtime_supports_json"} }

// loggingIn is the list after a file, which replaces the one before or, with an element
// {append=true}, extends it; nil if no file has one.
func loggingIn(tree map[string]any, before []string) []string {
	values, ok := lookup(tree, podmanLogsPath()...).([]any)
	if !ok {
		return before
	}
	list := []string{}
	for _, value := range values {
		switch v := value.(type) {
		case string:
			list = append(list, v)
		case map[string]any:
			if v["append"] == true {
				if before == nil {
					before = podmanLogging
				}
				list = append(slices.Clone(before), list...)
			}
		}
	}
	return list
}

// logging is the list with the name: the one in our block, or else that of the other files.
func (p *Podman) logging(tree map[string]any, name string) []string {
	list := p.logs
	if list == nil {
		list = podmanLogging
	}
	list = slices.Clone(loggingIn(tree, list))
	if !slices.Contains(list, name) {
		list = append(list, name)
	}
	return list
}

func (p *Podman) addLogging(config []byte, name string) ([]byte, error) {
	tree, err := parseTOML(config)
	if err != nil {
		return nil, err
	}
	list := p.logging(tree, name)
	found, _, err := readLogging(config)
	switch {
	case err != nil:
		return nil, err
	case found != nil:
		return replaceBlock(config, found, podmanLogs, podmanLogsBody(list)), nil
	}
	if there := loggingIn(tree, nil); there != nil {
		if !slices.Contains(there, name) {
			return nil, fmt.Errorf("runtime_supports_json is there already: write %q into it by hand, or leave --config out", name)
		}
		return config, nil
	}
	added := appendBlock(config, podmanLogs, podmanLogsBody(list))
	return added, onlyDiffer(added, config, podmanLogsPath())
}

// readLogging is our block, nil if there is none, and the list in it. It refuses an edited one.
func readLogging(config []byte) (*block, []string, error) {
	found, err := findBlock(config, podmanLogs)
	if err != nil || found == nil {
		return nil, nil, err
	}
	tree, err := parseTOML([]byte(found.body))
	list := loggingIn(tree, nil)
	if err != nil || podmanLogsBody(list) != found.body {
		return nil, nil, edited(config, found)
	}
	return found, list, nil
}

// removeLogging takes the name out of our list, and removes the list if the file has no other
// runtime of ours.
func removeLogging(config []byte, name string) ([]byte, error) {
	found, list, err := readLogging(config)
	if err != nil || found == nil {
		return config, err
	}
	rest := removeBlock(config, found)
	if bytes.Count(rest, []byte(blockBegin)) == 1 {
		return rest, onlyDiffer(config, rest, podmanLogsPath())
	}
	list = slices.DeleteFunc(list, func(n string) bool { return n == name })
	return replaceBlock(config, found, podmanLogs, podmanLogsBody(list)), nil
}
