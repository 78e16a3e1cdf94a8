package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// One image by each way of its archives has one id.
func TestImageImportOfArchives(t *testing.T) {
	i, h := newImageTools(t), newImageHost(t)
	layout := i.makeLayout()
	from := "oci:" + layout + ":1"
	i.run("skopeo", "copy", from, "oci-archive:"+i.in("oci.tar")+":1")
	i.run("skopeo", "copy", from, "docker-archive:"+i.in("docker.tar")+":name:1")
	if got := run(t, shellCommand("gzip -k "+i.in("oci.tar")+" "+i.in("docker.tar"))); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	id := h.good("import", layout, "--name", "mine")
	if image := h.inspect("mine"); image.ID != id || image.References[0].Name != "docker.io/library/mine:latest" {
		t.Errorf("%s: %+v", id, image)
	}
	// The layers of docker save are plain, so the history is the same and the config, too.
	for _, source := range []string{"oci.tar", "oci.tar.gz"} {
		if got := h.good("import", i.in(source)); got != id {
			t.Errorf("%s has the id %s, and the layout %s", source, got, id)
		}
	}
	docker := h.good("import", i.in("docker.tar"))
	if got := h.good("import", i.in("docker.tar.gz")); got != docker {
		t.Errorf("docker.tar.gz has the id %s, and docker.tar %s", got, docker)
	}
	cmd := h.image("import", "-", "--name", "streamed:2")
	f, err := os.Open(i.in("oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd.Stdin = f
	if got := run(t, cmd); got.code != 0 || got.stdout != id+"\n" {
		t.Errorf("from standard input: %+v", got)
	}
	// The third name is that in docker.tar.
	if image := h.inspect(id); len(image.References) != 3 {
		t.Errorf("%+v", image)
	}
	h.good("verify")
}

func TestImageImportOfADirectory(t *testing.T) {
	h := newImageHost(t)
	dir := imageTree(t, "a word\n")
	id := h.good("import", dir, "--name", "own/tree:1")
	image := h.inspect("own/tree:1")
	if image.ID != id || len(image.Layers) != 1 {
		t.Errorf("%+v", image)
	}
	archive := filepath.Join(t.TempDir(), "root.tar")
	if got := run(t, shellCommand("tar -C "+dir+" -cf "+archive+" . && gzip -k "+archive)); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	plain, zipped := h.inspect(h.good("import", archive)), h.inspect(h.good("import", archive+".gz"))
	if plain.ID != zipped.ID || plain.Size != zipped.Size || len(plain.References) != 0 {
		t.Errorf("%+v and %+v", plain, zipped)
	}
	h.good("verify")
	h.bad("no such file", "import", filepath.Join(dir, "none"))
	h.bad("neither a tar archive nor", "import", filepath.Join(dir, "etc/word"))
	damaged := filepath.Join(dir, "damaged.tar.gz")
	writeFile(t, damaged, "\x1f\x8b damaged")
	h.bad("import "+damaged+": ", "import", damaged)
	h.bad("is empty", "import", dir, "--name", "")
	h.bad("say one file", "import")
	h.bad("say one file", "import", dir, "one", "two")
	h.bad("invalid reference", "import", dir, "--name", "Not A Name")
	if all := h.list(); len(all) != 2 {
		t.Errorf("%+v", all)
	}
}

// The second word is the name, as with docker import.
func TestImageImportTakesANameAsDockerImportDoes(t *testing.T) {
	h := newImageHost(t)
	dir := imageTree(t, "a word\n")
	id := h.good("import", dir, "own/tree:1")
	if again := h.good("import", "--name", "own/tree:1", dir, "own/tree:1"); again != id {
		t.Errorf("%s and %s", again, id)
	}
	if image := h.inspect(id); len(image.References) != 1 || image.References[0].Name != "docker.io/own/tree:1" {
		t.Errorf("%+v", image)
	}
	// The name takes the place of those in an archive of docker save.
	id = h.good("import", dockerArchive(t, []string{"app:1"}, tarOfImage(t, imageFile("word", "another\n"))), "chosen")
	if image := h.inspect(id); len(image.References) != 1 || image.References[0].Name != "docker.io/library/chosen:latest" {
		t.Errorf("%+v", image)
	}
	h.bad("two names", "import", "--name", "other", dir, "own/tree:1")
	h.bad("invalid reference", "import", dir, "Not A Name")
	h.bad("an import changes no settings; give them at the use", "import", "--change", "CMD x", dir)
	h.bad("an import changes no settings", "import", "-c", "CMD x", dir)
	h.bad("curl -fsSL", "import", "https://host.test/root.tar")
	h.bad("image import FILE", "load")
	for _, program := range []string{"xz", "bzip2"} {
		archive := filepath.Join(t.TempDir(), "root.tar."+program)
		if got := run(t, shellCommand("tar -C "+dir+" -c . | "+program+" >"+archive)); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		h.bad("compressed by "+program+", not by gzip or zstd; decompress it first", "import", archive)
	}
}

// Layers that inflate to more than --max-bytes are refused: in the copy of an archive, and at the launcher.
func TestImageImportOfALayerThatInflatesTooFar(t *testing.T) {
	h := newImageHost(t)
	layer := tarOfImage(t, imageFile("zeros", strings.Repeat("\x00", 5<<20)))
	archive := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(archive, layer, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t, shellCommand("gzip -k "+archive)); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	compressed := claimed(t, gzipOfImage(t, layer), digestOfImage(layer)) // as the launcher gets it
	for _, source := range []string{archive + ".gz", "rootfs:" + archive + ".gz", archive, compressed} {
		h.bad("inflated; allow more with --max-bytes", "import", "--quiet", source, "--max-bytes", "4m")
	}
	for _, wrong := range []string{"0", "unlimited", "much", "-1"} {
		h.bad("--max-bytes", "import", archive, "--max-bytes", wrong)
	}
	if all, left := h.list(), h.drafts(); len(all) != 0 || len(left) != 0 {
		t.Errorf("left behind: %+v, %q", all, left)
	}
	h.good("import", compressed, "--max-bytes", "10m")
	h.good("import", archive)
}

// A layer with another content than its digest leaves nothing behind.
func TestImageImportOfADamagedArchive(t *testing.T) {
	i, h := newImageTools(t), newImageHost(t)
	layout := i.makeLayout()
	blobs, err := filepath.Glob(layout + "/blobs/sha256/*")
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, blob := range blobs {
		content, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(content), "\x1f\x8b") {
			continue
		}
		damaged++
		content[len(content)/2] ^= 1
		if err := os.WriteFile(blob, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if damaged != 2 {
		t.Fatalf("%d layers", damaged)
	}
	got := run(t, h.image("import", layout))
	if got.code == 0 || !strings.Contains(got.stderr, "sha256:") {
		t.Errorf("%+v", got)
	}
	if all := h.list(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	if left := h.drafts(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// drafts are the unfinished parts of the store.
func (h *imageHost) drafts() []string {
	h.t.Helper()
	found, err := filepath.Glob(filepath.Join(h.data, "images/drafts/*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return found
}

func TestImageImportTakesTheNamesOfDockerSave(t *testing.T) {
	h := newImageHost(t)
	layer := tarOfImage(t, imageFile("word", "a word\n"))
	archive := dockerArchive(t, []string{"app:1", "host.test:5000/app:2", "docker.io/library/app:1"}, layer)
	id := h.good("import", archive)
	names := func(id string) (all []string) {
		for _, r := range h.inspect(id).References {
			all = append(all, r.Name)
		}
		return all
	}
	if got, want := names(id), []string{"docker.io/library/app:1", "host.test:5000/app:2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// As with docker load, a name goes over to the image that comes later.
	other := h.good("import", dockerArchive(t, []string{"app:1"}, tarOfImage(t, imageFile("word", "another\n"))))
	if got := names(id); !slices.Equal(got, []string{"host.test:5000/app:2"}) {
		t.Errorf("%q", got)
	}
	if got := names(other); !slices.Equal(got, []string{"docker.io/library/app:1"}) {
		t.Errorf("%q", got)
	}
	if chosen := h.good("import", archive, "--name", "chosen"); chosen != id || !slices.Equal(names(id), []string{"docker.io/library/chosen:latest", "host.test:5000/app:2"}) {
		t.Errorf("with a name of the command line: %s has %q", chosen, names(id))
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint("app:many", i)
	}
	for words, names := range map[string][]string{
		"invalid reference": {"app:3", "Not A Name"}, "it has a digest": {"app@" + id}, "101 names": many,
	} {
		h.bad(words, "import", "-q", dockerArchive(t, names, layer))
		h.good("import", "-q", dockerArchive(t, names, layer), "--name", "chosen")
	}
	if all := h.list(); len(all) != 2 {
		t.Errorf("%+v", all)
	}
}
