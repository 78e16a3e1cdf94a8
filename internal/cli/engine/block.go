package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"

	"github.com/pelletier/go-toml/v2"
)

// A block is register's part of a TOML file: lines between two comments, which tell it
// from other lines. TOML lets tables follow each other in any order, so a block at the end
// does not depend on the lines before it.
type block struct {
	start, end int // in the configuration, comments included
	body       string
}

const (
	blockBegin = "# begin sandbox-runtime register "
	blockEnd   = "# end sandbox-runtime register "
)

func blockText(of, body string) string {
	return blockBegin + of + "\n" + body + blockEnd + of + "\n"
}

// findBlock is nil if there is none.
func findBlock(config []byte, of string) (*block, error) {
	begin, end := []byte(blockBegin+of), []byte(blockEnd+of)
	var found *block
	offset := 0
	for line := range bytes.Lines(config) {
		text := bytes.TrimSpace(line)
		switch {
		case found == nil && bytes.Equal(text, begin):
			found = &block{start: offset}
		case found != nil && bytes.Equal(text, end):
			found.end = offset + len(line)
			body := config[found.start:offset]
			found.body = string(body[bytes.IndexByte(body, '\n')+1:])
			return found, nil
		}
		offset += len(line)
	}
	if found != nil {
		return nil, atOffset(config, found.start, "the line %q has no line %q after it: take the lines below it out by hand", begin, end)
	}
	return nil, nil
}

// findRuntime finds the block of a runtime. If there is a path but no block, register did
// not write the runtime, and the error is foreign's.
func findRuntime(config []byte, name, path string, foreign func(name, path string) error) (*block, error) {
	found, err := findBlock(config, name)
	if err == nil && found == nil && path != "" {
		err = foreign(name, path)
	}
	return found, err
}

// appendBlock puts an empty line before the block, or ends the last line, so
// that removeBlock gives back each byte.
func appendBlock(config []byte, of, body string) []byte {
	out := bytes.Clone(config)
	if len(out) > 0 {
		out = append(out, '\n')
	}
	return append(out, blockText(of, body)...)
}

func removeBlock(config []byte, b *block) []byte {
	start := b.start
	if start > 0 && (b.end == len(config) || start > 1 && config[start-2] == '\n') {
		start-- // the empty line of appendBlock
	}
	return append(bytes.Clone(config[:start]), config[b.end:]...)
}

func replaceBlock(config []byte, b *block, of, body string) []byte {
	out := append(bytes.Clone(config[:b.start]), blockText(of, body)...)
	return append(out, config[b.end:]...)
}

func parseTOML(config []byte) (map[string]any, error) {
	tree := map[string]any{}
	if err := toml.Unmarshal(config, &tree); err != nil {
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ := at.Position()
			return nil, &LineError{line, fmt.Errorf("not TOML: %w", err)}
		}
		return nil, fmt.Errorf("not TOML: %w", err)
	}
	return tree, nil
}

// lookup is nil if there is nothing at the path.
func lookup(tree map[string]any, path ...string) any {
	var value any = tree
	for _, key := range path {
		table, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = table[key]
	}
	return value
}

// lookupAs is the zero value if there is no value of the type at the path.
func lookupAs[T any](tree map[string]any, path ...string) T {
	value, _ := lookup(tree, path...).(T)
	return value
}

// without takes the value at path out of the tree, and the tables that are then
// empty where base has none.
func without(tree, base map[string]any, path ...string) {
	if len(path) == 1 {
		delete(tree, path[0])
		return
	}
	below, ok := tree[path[0]].(map[string]any)
	if !ok {
		return
	}
	baseBelow, has := base[path[0]].(map[string]any)
	without(below, baseBelow, path[1:]...)
	if len(below) == 0 && !has {
		delete(tree, path[0])
	}
}

var errEntangled = errors.New("the lines of register cannot be told from the settings around them: add or remove them by hand")

// onlyDiffer makes sure that two configurations, the one with more first, mean the same
// but for the values at the paths. Added or removed text may have changed the meaning of
// the text around it.
func onlyDiffer(more, less []byte, paths ...[]string) error {
	moreTree, err := parseTOML(more)
	lessTree, lessErr := parseTOML(less)
	if err := cmp.Or(err, lessErr); err != nil {
		return fmt.Errorf("%w (%v)", errEntangled, err) //nolint:errorlint // its line is not one of the file
	}
	for _, path := range paths {
		if lookup(lessTree, path...) == nil {
			without(moreTree, lessTree, path...)
		}
	}
	if !reflect.DeepEqual(moreTree, lessTree) {
		return errEntangled
	}
	return nil
}
