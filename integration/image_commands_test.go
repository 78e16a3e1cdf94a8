package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestImageList(t *testing.T) {
	h := newImageHost(t)
	if got := h.good("ls"); got != "REPOSITORY   TAG   IMAGE ID   CREATED   SIZE" {
		t.Errorf("without images: %q", got)
	}
	if all := h.list(); all != nil {
		t.Errorf("%+v", all)
	}
	one := imageTree(t, "one")
	id := h.good("import", one, "--name", "one")
	h.good("import", one, "--name", "host.test:5000/one:2")
	other := h.good("import", imageTree(t, "two"))
	digits := strings.TrimPrefix(id, "sha256:")[:12]
	table := h.good("ls")
	for _, want := range []string{
		`(?m)^REPOSITORY +TAG +IMAGE ID +CREATED +SIZE$`,
		`(?m)^one +latest +` + digits + ` +N/A +[0-9.]+kB$`,
		`(?m)^host.test:5000/one +2 +` + digits + ` +N/A +[0-9.]+kB$`,
		`(?m)^<none> +<none> +` + strings.TrimPrefix(other, "sha256:")[:12] + ` `,
	} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("no %s in\n%s", want, table)
		}
	}
	if got := h.good("ls", "-q", "--no-trunc"); len(strings.Fields(got)) != 2 || !strings.Contains(got, id) || !strings.Contains(got, other) {
		t.Errorf("%q", got)
	}
	h.bad("takes no arguments", "ls", "one")
}

func TestImageInspect(t *testing.T) {
	h := newImageHost(t)
	id := h.good("import", imageTree(t, "one"), "--name", "one")
	digits := strings.TrimPrefix(id, "sha256:")
	for _, name := range []string{"one", "one:latest", "docker.io/library/one", id, digits, digits[:6], "sha256:" + digits[:6]} {
		if image := h.inspect(name); image.ID != id || !strings.Contains(string(image.Config), image.Layers[0]) {
			t.Errorf("%s: %+v", name, image)
		}
	}
	if digest := h.inspect("one").References[0].Digest; h.inspect("one@"+digest).ID != id {
		t.Errorf("not found by the digest %s", digest)
	}
	h.bad(`no such image "two"`, "inspect", "two")
	h.bad("say the images", "inspect")
	got := run(t, h.image("inspect", "two", "one"))
	var all []spec.Image
	decode(t, got.stdout, &all)
	if got.code != 1 || len(all) != 1 || all[0].ID != id {
		t.Errorf("with one that is missing: %+v", got)
	}
}

func TestImageRemove(t *testing.T) {
	h := newImageHost(t)
	one, two := imageTree(t, "one"), imageTree(t, "two")
	first := h.good("import", one, "--name", "a")
	h.good("import", one, "--name", "b")
	second := h.good("import", two, "--name", "c")
	third := h.good("import", imageTree(t, "three"))
	h.bad("several names", "rm", first)
	if got := h.good("rm", "a"); got != "Untagged: a:latest" {
		t.Errorf("one of two names: %q", got)
	}
	got := run(t, h.image("rm", "none", "b", strings.TrimPrefix(second, "sha256:")[:8]))
	if got.code != 1 || !strings.Contains(got.stdout, "Untagged: b:latest\n") || !strings.Contains(got.stdout, "Untagged: c:latest\n") ||
		!strings.Contains(got.stdout, "Deleted: "+first+"\n") || !strings.Contains(got.stdout, "Deleted: "+second+"\n") || !strings.Contains(got.stderr, `no such image "none"`) {
		t.Errorf("several: %+v", got)
	}
	var removed spec.RemovedImages
	decode(t, h.good("rm", "--json", third), &removed)
	if len(removed.Deleted) != 1 || removed.Deleted[0] != third || len(removed.DeletedLayers) != 1 || removed.Bytes == 0 {
		t.Errorf("%+v", removed)
	}
	for _, kind := range []string{"layers", "images", "drafts"} {
		if left, err := os.ReadDir(filepath.Join(h.data, "images", kind)); err != nil || len(left) != 0 {
			t.Errorf("%s: %v, %v", kind, left, err)
		}
	}
}

func TestImagePrune(t *testing.T) {
	h := newImageHost(t)
	named := h.good("import", imageTree(t, "one"), "--name", "one")
	nameless := h.good("import", imageTree(t, "two"))
	got := h.good("prune")
	if !strings.Contains(got, "Deleted: "+nameless+"\n") || !regexp.MustCompile(`Total reclaimed space: [0-9.]+kB$`).MatchString(got) {
		t.Errorf("%q", got)
	}
	if all := h.list(); len(all) != 1 || all[0].ID != named {
		t.Errorf("%+v", all)
	}
	if got := h.good("prune"); got != "Total reclaimed space: 0B" {
		t.Errorf("%q", got)
	}
}

func TestImageVerify(t *testing.T) {
	h := newImageHost(t)
	tree := imageTree(t, "one")
	h.good("import", tree, "--name", "one")
	h.good("import", imageTree(t, "two"), "--name", "two")
	if got := h.good("verify", "one"); got != "one: verified" {
		t.Errorf("%q", got)
	}
	layer := filepath.Join(h.data, "images/layers", strings.TrimPrefix(h.inspect("one").Layers[0], "sha256:"), "tar")
	f, err := os.OpenFile(layer, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("x"), 600)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	got := run(t, h.image("verify"))
	if got.code != 1 || strings.Count(got.stdout, ": verified\n") != 1 || !strings.Contains(got.stderr, "is damaged") {
		t.Errorf("%+v", got)
	}
	if got := run(t, h.image("ls")); got.code != 0 || !strings.Contains(got.stderr, "is damaged") {
		t.Errorf("%+v", got)
	}
	h.good("import", tree, "--name", "one")
	if got := h.good("verify", "--json"); strings.Count(got, `"good":true`) != 2 {
		t.Errorf("after the repair: %s", got)
	}
}
