package rootfs

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

var errNoCopies = errors.New("no shared copies")

// share shows the files, and the other copies below /etc, through a layer that all sandboxes have. After an
// error nothing has changed, and the sandbox must have copies of its own.
func (c *conffilePlan) share(found []candidate) error {
	if c.copies == nil {
		return errNoCopies
	}
	dir, err := c.copies()
	if err != nil {
		return err
	}
	defer dir.Close()
	own := map[string]*node{}
	c.to.hostFiles("", own)
	var all []copiedFile
	for _, name := range slices.Sorted(maps.Keys(own)) {
		all = append(all, copiedFile{name: name, state: own[name].host, link: true})
	}
	for _, one := range found {
		all = append(all, copiedFile{name: one.Name, sum: one.Sum, state: one.state})
	}
	key, err := copyKey(all)
	if err != nil {
		return err
	}
	store := copyStore{dir}
	names, err := store.list(key)
	if errors.Is(err, fs.ErrNotExist) {
		names, err = c.addCopies(store, key, all, found, own)
	}
	if err != nil {
		return err
	}
	layer, err := store.open(key)
	if err != nil {
		return err
	}
	c.sources = append(c.sources, layer)
	c.under, c.to.under = layer, layer
	for _, name := range names {
		c.to.putBelow(name, &node{kind: fileNode, copy: true}, newDir)
	}
	return nil
}

// hostFiles collects the copies of files of the host below a directory, but for names that no list can have.
func (n *node) hostFiles(at string, files map[string]*node) {
	for name, child := range n.children {
		place := path.Join(at, name)
		if child.kind == fileNode && child.host != (fileState{}) && !strings.Contains(place, "\n") {
			files[place] = child
		}
		child.hostFiles(place, files)
	}
}

// addCopies makes the version of a key, and returns the names of the files. The texts must be those of the
// states in the key.
func (c *conffilePlan) addCopies(store copyStore, key string, all []copiedFile, found []candidate, own map[string]*node) ([]string, error) {
	if slices.ContainsFunc(all, func(f copiedFile) bool { return !f.settled(c.began) }) {
		return nil, errUnsettled
	}
	unlock, err := store.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if names, err := store.list(key); err == nil { // another process has made the version
		return names, nil
	}
	texts := map[string]string{}
	for name, n := range own {
		texts[name] = n.text
	}
	if err := c.readAll(found, texts); err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, errNoCopies
	}
	if slices.ContainsFunc(all, func(f copiedFile) bool { return !f.unchanged(c.etc.fd) }) {
		return nil, errUnsettled
	}
	return slices.Collect(maps.Keys(texts)), store.add(key, texts)
}

// readAll reads the files that have no secret.
func (c *conffilePlan) readAll(found []candidate, texts map[string]string) error {
	size := 0
	for _, one := range found {
		text, ok, err := c.read(one.File)
		if err != nil {
			return err
		}
		if ok && size+copySize(text) <= mostConffileCopies && !strings.Contains(one.Name, "\n") {
			size += copySize(text)
			texts[one.Name] = text
		}
	}
	return nil
}
